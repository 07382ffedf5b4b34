"""Returned files of a task: where they are written, and which are never written."""

from __future__ import annotations

import hashlib
import io
import json
import os
import tarfile
from pathlib import Path
from typing import Any

import pytest

from determined.cli.launched import returned
from determined.common.wire import returned as wire
from determined_tasks import returning

SUFFIX = ".from-1a2b3c4d"


def archive(*files: tuple[str, bytes, str], **more: Any) -> io.BytesIO:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz", format=tarfile.PAX_FORMAT) as tar:
        for name, content, before in files:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            info.pax_headers = {wire.BEFORE: before}
            for key, value in more.items():
                setattr(info, key, value)
            tar.addfile(info, io.BytesIO(content))
    out.seek(0)
    return out


def sha(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def tree(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): path.read_text()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.is_symlink()
    }


def test_there_and_back(tmp_path: Path) -> None:
    """As the supervisor packs it, `det` writes it."""
    task, root, here = (tmp_path / name for name in ("task", "root", "here"))
    for folder in (task, here):
        (folder / "sub").mkdir(parents=True)
        for name in ("kept", "changed", "touched", "both", "sub/deleted"):
            (folder / name).write_text(name)
    root.mkdir()
    returning.remember(root, task)
    (task / "changed").write_text("by the task")
    (task / "both").write_text("by the task")
    (task / "touched").write_text("touched")
    (task / "sub/deleted").unlink()
    (task / "new/deep").mkdir(parents=True)
    (task / "new/deep/run.sh").write_text("echo")
    (task / "new/deep/run.sh").chmod(0o755)
    (task / "__pycache__").mkdir()
    (task / "__pycache__/x.pyc").write_text("")
    (task / "link").symlink_to("/etc/passwd")
    os.mkfifo(task / "pipe")
    (here / "both").write_text("here, meanwhile")
    out = io.BytesIO()
    assert returning.pack(task, json.loads((root / returning.RECORD).read_text()), out) == []
    out.seek(0)
    found = returned.unpack(out, here, SUFFIX)
    assert (found.new, found.changed, found.same) == (["new/deep/run.sh"], ["changed"], [])
    assert found.kept == {"both": f"both{SUFFIX}"}
    assert tree(here) == {
        "kept": "kept",
        "changed": "by the task",
        "touched": "touched",
        "both": "here, meanwhile",
        f"both{SUFFIX}": "by the task",
        "sub/deleted": "sub/deleted",
        "new/deep/run.sh": "echo",
    }
    assert os.access(here / "new/deep/run.sh", os.X_OK)
    assert not os.access(here / "changed", os.X_OK)
    # A second time nothing happens.
    out.seek(0)
    again = returned.unpack(out, here, SUFFIX)
    assert sorted(again.same) == ["changed", "new/deep/run.sh"] and again.kept == found.kept


def test_the_small_ones_come_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "MOST_BYTES", 100)
    monkeypatch.setattr(wire, "MOST_FILES", 3)
    for number, size in enumerate((200, 60, 60, 1, 1)):
        (tmp_path / f"f{number}").write_bytes(b"x" * size)
    out = io.BytesIO()
    (remark,) = returning.pack(tmp_path, {}, out)
    assert remark.startswith("these files do not come back: f2 (0.0 MiB), f0 (0.0 MiB). At most 3")
    out.seek(0)
    (here := tmp_path / "here").mkdir()
    assert returned.unpack(out, here, SUFFIX).new == ["f3", "f4", "f1"]


@pytest.mark.parametrize("name", ["/etc/x", "../x", "a/../../x", "a//x", "./x", "", "x" * 300])
def test_names_outside_are_refused(tmp_path: Path, name: str) -> None:
    (here := tmp_path / "here").mkdir()
    with pytest.raises(ValueError, match=r"is not a file name inside|is not a file"):
        returned.unpack(archive((name, b"bad", "")), here, SUFFIX)
    assert tree(tmp_path) == {}


@pytest.mark.parametrize(
    "kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.DIRTYPE]
)
def test_only_files_are_taken(tmp_path: Path, kind: bytes) -> None:
    with pytest.raises(ValueError, match="is not a file"):
        returned.unpack(
            archive(("x", b"", ""), type=kind, linkname="/etc/passwd"), tmp_path, SUFFIX
        )
    assert list(tmp_path.iterdir()) == []


def test_links_here_lead_nothing_out(tmp_path: Path) -> None:
    here, outside = tmp_path / "here", tmp_path / "outside"
    here.mkdir()
    outside.mkdir()
    (outside / "x").write_text("not to be touched")
    (here / "folder").symlink_to(outside)
    (here / "file").symlink_to(outside / "x")
    (here / "was-file").write_text("")
    found = returned.unpack(
        archive(
            ("folder/x", b"1", sha("not to be touched")),
            ("file", b"2", sha("not to be touched")),
            ("was-file/inner", b"3", ""),
        ),
        here,
        SUFFIX,
    )
    assert tree(outside) == {"x": "not to be touched"} and (here / "file").is_symlink()
    assert found.kept == {
        "folder/x": f"folder{SUFFIX}/x",
        "file": f"file{SUFFIX}",
        "was-file/inner": f"was-file{SUFFIX}/inner",
    }
    assert {(here / beside).read_text() for beside in found.kept.values()} == {"1", "2", "3"}


def test_an_archive_that_says_too_much(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(returned, "LARGEST", 1 << 20)
    with pytest.raises(ValueError, match="more than it may"):
        returned.unpack(archive(("x", bytes(2 << 20), "")), tmp_path, SUFFIX)
    monkeypatch.setattr(wire, "MOST_FILES", 2)
    with pytest.raises(ValueError, match="more than 2 files"):
        returned.unpack(archive(*((f"f{n}", b"", "") for n in range(3))), tmp_path, SUFFIX)
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".det-")]
