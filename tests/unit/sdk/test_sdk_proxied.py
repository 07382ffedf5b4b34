"""Downloads through the service that break off, are killed, or find something else than before."""

from __future__ import annotations

import os
import re
from pathlib import Path

import httpx
import pytest

from determined import errors
from determined.common.api.session import Session
from determined.experimental import _proxied
from tests.unit.sdk.served_files import ServedFiles

UUID = "11111111-2222-3333-4444-555555555555"
FILES = {"a.bin": os.urandom(1000), "empty": b"", "sub/b.bin": os.urandom(500), "z": b"xyz"}


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def served() -> ServedFiles:
    return ServedFiles(FILES, ["sub/", "hollow/"])


def fetch(served: ServedFiles, target: Path) -> None:
    clock = Clock()
    transport = httpx.MockTransport(served.handle)
    with Session("http://fake:8080", token="x", transport=transport, max_retries=0) as session:
        _proxied.fetch_through_service(
            session, UUID, target, sleep=clock.sleep, clock=lambda: clock.now
        )


def tree(root: Path) -> dict[str, bytes]:
    return {
        path.relative_to(root).as_posix(): path.read_bytes()
        for path in root.rglob("*")
        if path.is_file()
    }


def part(target: Path) -> Path:
    return target.parent / f".{target.name}-{UUID}.part"


def test_everything_in_one_request(served: ServedFiles, tmp_path: Path) -> None:
    fetch(served, tmp_path / "out")
    assert tree(tmp_path) == {f"out/{path}": data for path, data in FILES.items()}
    assert (tmp_path / "out" / "hollow").is_dir()
    assert served.ranges == [(0, 1503)]
    fetch(served, tmp_path / "out")
    assert served.ranges == [(0, 1503)], "a second download asks for nothing"


def test_it_goes_on_where_it_broke_off(served: ServedFiles, tmp_path: Path) -> None:
    served.breaks = [0, 300, 0, 700, 2]
    served.refusals = [503, 502]
    fetch(served, tmp_path / "out")
    assert tree(tmp_path / "out") == FILES
    assert [start for start, _ in served.ranges] == [0, 0, 300, 300, 1000, 1002]


def test_it_goes_on_where_a_killed_one_was(served: ServedFiles, tmp_path: Path) -> None:
    target = tmp_path / "out"
    left = part(target) / "files"
    (left / "sub").mkdir(parents=True)
    (left / "a.bin").write_bytes(FILES["a.bin"])
    (left / "sub" / "b.bin").write_bytes(FILES["sub/b.bin"][:123])
    (left / "z").write_bytes(b"x")
    (left / "gone" / "deep").mkdir(parents=True)
    (left / "gone" / "deep" / "file").write_bytes(b"of a checkpoint that had more files")
    fetch(served, target)
    assert tree(tmp_path) == {f"out/{path}": data for path, data in FILES.items()}
    assert not (target / "gone").exists()
    assert served.ranges == [(1123, 1503)]


def test_a_part_that_was_changed_meanwhile_is_fetched_again(
    served: ServedFiles, tmp_path: Path
) -> None:
    left = part(tmp_path / "out") / "files"
    left.mkdir(parents=True)
    (left / "a.bin").write_bytes(b"?" * 1000)
    (left / "z").write_bytes(b"xyz, and more")
    fetch(served, tmp_path / "out")
    assert tree(tmp_path / "out") == FILES
    assert served.ranges == [(0, 1503)]


def test_one_that_begins_wrongly_is_fetched_again(served: ServedFiles, tmp_path: Path) -> None:
    left = part(tmp_path / "out") / "files"
    left.mkdir(parents=True)
    (left / "a.bin").write_bytes(b"?" * 10)
    fetch(served, tmp_path / "out")
    assert tree(tmp_path / "out") == FILES
    assert served.ranges == [(10, 1503), (0, 1000)]


def test_a_damaged_file_ends_it(served: ServedFiles, tmp_path: Path) -> None:
    served.checksums["a.bin"] = "sha256:" + "0" * 64
    with pytest.raises(errors.CheckpointCorrupted, match=r"a\.bin .*checksum"):
        fetch(served, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    assert served.ranges == [(0, 1503), (0, 1000)]


def test_without_checksums_sizes_count(served: ServedFiles, tmp_path: Path) -> None:
    served.checksums.clear()
    served.breaks = [10]
    fetch(served, tmp_path / "out")
    assert tree(tmp_path / "out") == FILES


def test_a_service_that_stays_away(served: ServedFiles, tmp_path: Path) -> None:
    served.breaks = [400] + [0] * 200
    with pytest.raises(errors.ProxiedDownloadFailed, match=r"400 bytes .* go on from there"):
        fetch(served, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    served.breaks, served.ranges = [], []
    fetch(served, tmp_path / "out")
    assert tree(tmp_path) == {f"out/{path}": data for path, data in FILES.items()}
    assert served.ranges == [(400, 1503)]


@pytest.mark.parametrize("status", [401, 403, 404, 409])
def test_a_refusal_is_said_at_once(served: ServedFiles, tmp_path: Path, status: int) -> None:
    served.refusals = [status]
    with pytest.raises(errors.ProxiedDownloadFailed, match="not now"):
        fetch(served, tmp_path / "out")


def test_a_checkpoint_that_changes_meanwhile(
    served: ServedFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask = served.listing

    def listing() -> object:
        found = ask()
        served.version = "v2"
        return found

    monkeypatch.setattr(served, "listing", listing)
    with pytest.raises(errors.ProxiedDownloadFailed, match="have changed"):
        fetch(served, tmp_path / "out")


@pytest.mark.parametrize("path", ["../evil", "/evil", "a/../../evil", "", "a\0b"])
def test_no_path_leads_out_of_the_target(tmp_path: Path, path: str) -> None:
    with pytest.raises(errors.CheckpointCorrupted, match=re.escape(repr(path))):
        fetch(ServedFiles({path: b"x"}), tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_two_do_not_write_the_same_files(served: ServedFiles, tmp_path: Path) -> None:
    with (
        _proxied._part(tmp_path / "out", UUID),
        pytest.raises(errors.ProxiedDownloadFailed, match="another process"),
    ):
        fetch(served, tmp_path / "out")


def test_a_disk_without_room(
    served: ServedFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Usage:
        free = 1502

    monkeypatch.setattr(_proxied.shutil, "disk_usage", lambda _: Usage)
    with pytest.raises(errors.StorageError, match=r"1503 bytes .* 1502 are free"):
        fetch(served, tmp_path / "out")
    assert served.ranges == []
