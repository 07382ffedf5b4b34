"""The archive of a submission."""

from __future__ import annotations

import base64
import io
import tarfile

import pytest

from determined_service.base.errors import BadRequest
from determined_service.base.recent import Recent
from determined_service.submission import model_definition
from determined_service.submission.model_definition import pack


def file(path: str, content: bytes = b"", **more: object) -> dict[str, object]:
    return {"path": path, "type": 48, "content": base64.b64encode(content).decode(), **more}


def test_content_mode_and_kind_are_kept() -> None:
    found = pack(
        [file("run.sh", b"echo", mode=0o100755), {"path": "d/", "type": "5", "mode": 0o755}]
    )
    assert found is not None
    with tarfile.open(fileobj=io.BytesIO(found.archive)) as tar:
        script, folder = tar.getmember("run.sh"), tar.getmember("d")
        held = tar.extractfile(script)
        assert held is not None
        assert held.read() == b"echo"
    assert script.mode == 0o755
    assert folder.isdir()


def test_order_times_and_owners_do_not_matter() -> None:
    one = pack([file("a", b"1", mtime="1"), file("b", b"2")])
    two = pack([file("b", b"2", uid=5), file("a", b"1", mtime="2")])
    assert one == two
    assert one != pack([file("a", b"1"), file("b", b"3")])


def test_the_same_small_files_are_packed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_definition, "_recent", Recent(2))
    packed: list[int] = []
    anew = model_definition.pack_anew
    monkeypatch.setattr(
        model_definition, "pack_anew", lambda files: packed.append(len(files)) or anew(files)
    )
    small = [file("a", b"1"), file("b", b"2", mode=0o755)]
    assert pack(small) == pack(small) == anew(small)
    assert pack([*small[:1], file("b", b"2", mode=0o644)]) != pack(small)
    assert packed == [2, 2]
    large = [file("a", b"x" * model_definition.REMEMBERED_BYTES)]
    assert pack(large) == pack(large)
    assert packed == [2, 2, 1, 1]


def test_no_files() -> None:
    assert pack([]) is None


def test_the_limit_counts_all_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_definition, "LIMIT_BYTES", 10)
    pack([file("a", b"12345"), file("b", b"12345")])
    with pytest.raises(BadRequest, match="detignore"):
        pack([file("a", b"12345"), file("b", b"123456")])


@pytest.mark.parametrize("path", ["", "/etc/passwd", "../x", "a/../../x", "a\0b"])
def test_paths_stay_inside(path: str) -> None:
    with pytest.raises(BadRequest, match="not inside"):
        pack([file(path)])


def test_twice_is_refused() -> None:
    with pytest.raises(BadRequest, match="twice"):
        pack([file("a/b"), file("a//b")])
