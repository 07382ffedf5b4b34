"""Files read to verify a checkpoint are not read again."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from determined import errors
from determined.storage import copies
from determined.storage.objects import ObjectStorageManager
from tests.unit.core.memory_blobs import Memory, contents_of, store

FILES = {"weights": os.urandom(50_000), "sub/state": os.urandom(3000), "sub/empty": b""}
SIZE = 53_000


@pytest.fixture
def blobs() -> Memory:
    return Memory()


@pytest.fixture(params=[False, True], ids=["plain", "packed"])
def manager(blobs: Memory, tmp_path: Path, request: pytest.FixtureRequest) -> ObjectStorageManager:
    manager = ObjectStorageManager(blobs, "p", request.param)
    manager.copies = tmp_path / "run" / "verified"
    return manager


@pytest.fixture
def verified(manager: ObjectStorageManager, blobs: Memory) -> str:
    store(manager, "c", FILES)
    manager.verify("c")
    return "c"


def read(blobs: Memory) -> int:
    """Bytes of files, without the manifest's; the count begins anew."""
    total = sum(size for key, size in blobs.reads if not key.endswith(".json"))
    blobs.reads.clear()
    return total


def tree(path: Path) -> dict[str, bytes]:
    found = (file for file in path.rglob("*") if file.is_file() and file.name[0] != ".")
    return {file.relative_to(path).as_posix(): file.read_bytes() for file in found}


def test_without_a_directory_for_copies_it_is_read_twice(
    manager: ObjectStorageManager, blobs: Memory
) -> None:
    store(manager, "c", FILES)
    manager.copies = None
    manager.verify("c")
    assert read(blobs) >= SIZE
    with manager.restore_path("c") as path:
        assert tree(path) == FILES
    assert read(blobs) >= SIZE


def test_a_restore_gets_the_verified_files(
    manager: ObjectStorageManager, verified: str, blobs: Memory
) -> None:
    assert SIZE <= read(blobs) < 1.2 * SIZE
    with manager.restore_path(verified) as path:
        assert tree(path) == FILES
        assert {entry.name for entry in path.iterdir()} == {"weights", "sub"}
        # The copy belongs to the caller, who may change it freely.
        (path / "weights").write_bytes(b"")
        assert list(Path(str(manager.copies)).iterdir()) == []
    assert not path.exists()
    assert read(blobs) == 0
    with manager.restore_path(verified) as path:
        assert tree(path) == FILES
    assert read(blobs) >= SIZE


def test_a_download_gets_the_verified_files(
    manager: ObjectStorageManager, verified: str, blobs: Memory, tmp_path: Path
) -> None:
    read(blobs)
    some = manager.download(verified, tmp_path / "some", "weights".__eq__)
    assert (some, tree(tmp_path / "some")) == ({"weights": 50_000}, {"weights": FILES["weights"]})
    with manager.restore_path(verified, "sub/state".__eq__) as path:
        assert tree(path) == {"sub/state": FILES["sub/state"]}
    found = manager.download(verified, tmp_path / "all")
    assert (found, tree(tmp_path / "all")) == (dict(manager.manifest("c").resources), FILES)
    assert read(blobs) == 0
    # The copy is removed after the first reader of the whole checkpoint.
    manager.download(verified, tmp_path / "again")
    assert read(blobs) >= SIZE


@pytest.mark.parametrize("content", [b"x" * 50_000, b"short", None])
def test_a_changed_copy_is_not_used(
    manager: ObjectStorageManager, verified: str, tmp_path: Path, content: bytes | None
) -> None:
    assert manager.copies is not None
    (manager.copies / "c" / "weights").unlink()
    if content is not None:
        (manager.copies / "c" / "weights").write_bytes(content)
    assert contents_of(manager, verified, tmp_path / "copy") == FILES


def test_a_damaged_checkpoint_is_not_copied(manager: ObjectStorageManager, blobs: Memory) -> None:
    store(manager, "c", FILES)
    (key,) = (key for key, data in blobs.objects.items() if FILES["weights"] in data)
    blobs.objects[key] = blobs.objects[key].replace(FILES["weights"], bytes(50_000))
    with pytest.raises(errors.CheckpointCorrupted, match="weights: the contents have changed"):
        manager.verify("c")
    assert manager.copies is not None
    assert list(manager.copies.iterdir()) == []
    with pytest.raises(errors.CheckpointCorrupted), manager.restore_path("c"):
        pass


def test_a_stopped_copy_is_removed(
    manager: ObjectStorageManager, blobs: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    store(manager, "c", FILES)
    asked = iter([False] * 3)
    manager.verify("c", stop=lambda: next(asked, True))
    assert manager.copies is not None
    assert list(manager.copies.iterdir()) == []


def test_a_copy_goes_with_its_checkpoint(
    manager: ObjectStorageManager, verified: str, tmp_path: Path
) -> None:
    assert manager.delete(verified, ["weights"]).keys() == {"sub/", "sub/state", "sub/empty"}
    assert contents_of(manager, verified, tmp_path).keys() == {"sub/state", "sub/empty"}
    manager.verify(verified)
    manager.delete(verified)
    with pytest.raises(errors.CheckpointNotFound), manager.restore_path(verified):
        pass


def test_a_disk_without_room_gets_no_copy(
    manager: ObjectStorageManager, blobs: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    store(manager, "c", FILES)
    usage: Any = type("usage", (), {"free": 2 * SIZE - 1})
    monkeypatch.setattr(copies.shutil, "disk_usage", lambda path: usage)
    manager.verify("c")
    assert read(blobs) >= SIZE
    assert manager.copies is not None
    assert list(manager.copies.iterdir()) == []
    usage.free = 2 * SIZE
    manager.verify("c")
    assert [path.name for path in manager.copies.iterdir()] == ["c"]
