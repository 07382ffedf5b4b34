"""Unpacking a model definition, with Python's own filter and without it (before 3.11.4)."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest

from determined_tasks import context_dir
from determined_tasks.context_dir import ModelDefinitionError


@pytest.fixture(params=["filter", "no filter"])
def unpacker(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "no filter":
        monkeypatch.delattr(tarfile, "data_filter", raising=False)
    elif not hasattr(tarfile, "data_filter"):
        pytest.skip("this Python's tarfile has no filters")


def archive(name: str, kind: bytes = tarfile.REGTYPE) -> bytes:
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w:gz") as tar:
        info = tarfile.TarInfo(name)
        info.type, info.mode, info.size = kind, 0o755, 2 if kind == tarfile.REGTYPE else 0
        info.linkname = "/etc/passwd"
        tar.addfile(info, io.BytesIO(b"ok"))
    return data.getvalue()


@pytest.mark.usefixtures("unpacker")
def test_files_are_unpacked(tmp_path: Path) -> None:
    context_dir._unpack(archive("sub/run.sh"), tmp_path)
    assert (tmp_path / "sub/run.sh").read_bytes() == b"ok"
    assert (tmp_path / "sub/run.sh").stat().st_mode & 0o777 == 0o755


@pytest.mark.usefixtures("unpacker")
@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("../evil", tarfile.REGTYPE),
        ("sub/../../evil", tarfile.REGTYPE),
        ("link", tarfile.SYMTYPE),
        ("device", tarfile.CHRTYPE),
    ],
)
def test_nothing_gets_out_of_the_directory(tmp_path: Path, name: str, kind: bytes) -> None:
    inner = tmp_path / "inner"
    inner.mkdir()
    with pytest.raises(ModelDefinitionError):
        context_dir._unpack(archive(name, kind), inner)
    assert not (tmp_path / "evil").exists()


def test_the_files_of_a_task_are_as_old_as_its_copy(tmp_path: Path) -> None:
    """Archives have one time for all: 1980, in a file browser "46 years ago"."""
    packed = archive("sub/train.py")
    for number in (1, 2):  # the second one from the cache
        context_dir.lay_out(tmp_path / str(number), tmp_path, "abc", lambda _: packed)
        workdir = tmp_path / str(number) / "workdir"
        assert (workdir / "sub/train.py").read_bytes() == b"ok"
        assert all(path.stat().st_mtime > 1e9 for path in (workdir, *workdir.rglob("*")))
        assert (workdir / "sub/train.py").stat().st_mode & 0o777 == 0o755
