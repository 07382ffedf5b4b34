"""Reading parts of a checkpoint's files where an account may have laid traps."""

from __future__ import annotations

import os
import uuid
from pathlib import Path

import pytest

from determined import errors
from determined.storage.directory import DirectoryStorageManager
from determined.storage.spans import PIECE_BYTES, Span

SECRET = b"not yours"


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    path = tmp_path / "secret"
    path.write_bytes(SECRET)
    return path


@pytest.fixture
def manager(tmp_path: Path) -> DirectoryStorageManager:
    found = DirectoryStorageManager(tmp_path / "store" / "of" / "alice")
    found.root.mkdir(parents=True)
    found.trusted = tmp_path / "store"
    return found


def store(manager: DirectoryStorageManager, content: bytes = b"abc") -> str:
    name = str(uuid.uuid4())
    with manager.store(name) as staging:
        (staging.path / "sub").mkdir()
        (staging.path / "sub" / "file").write_bytes(content)
    return name


def read(
    manager: DirectoryStorageManager, name: str, path: str = "sub/file", end: int = 3
) -> bytes:
    return b"".join(manager.read(name, [Span(path, 0, end)]))


def test_pieces_are_small(manager: DirectoryStorageManager) -> None:
    content = os.urandom(2 * PIECE_BYTES + 5)
    name = store(manager, content)
    found = list(manager.read(name, [Span("sub/file", 1, len(content))]))
    assert b"".join(found) == content[1:]
    assert max(map(len, found)) == PIECE_BYTES


def test_a_linked_file_is_not_read(manager: DirectoryStorageManager, secret: Path) -> None:
    name = store(manager)
    path = manager.root / name / "sub" / "file"
    path.unlink()
    path.symlink_to(secret)
    with pytest.raises(errors.StorageError, match="symbolic link"):
        read(manager, name)


def test_nothing_behind_a_link_is_read(manager: DirectoryStorageManager, secret: Path) -> None:
    name = store(manager)
    (manager.root / name / "linked").symlink_to(secret.parent)
    with pytest.raises(errors.StorageError, match="symbolic link"):
        read(manager, name, "linked/secret")


def test_a_linked_checkpoint_is_not_read(manager: DirectoryStorageManager, secret: Path) -> None:
    name = str(uuid.uuid4())
    (manager.root / name).symlink_to(secret.parent)
    with pytest.raises(errors.StorageError, match="symbolic link"):
        read(manager, name, "secret")


def test_no_link_above_the_checkpoint_is_followed(
    manager: DirectoryStorageManager, tmp_path: Path
) -> None:
    name = store(manager)
    elsewhere = DirectoryStorageManager(tmp_path / "store" / "link")
    elsewhere.root.symlink_to(manager.root)
    elsewhere.trusted = manager.trusted
    with pytest.raises(errors.StorageError, match="symbolic link"):
        read(elsewhere, name)
    # Without the rule for readers with more rights it is where the storage is.
    elsewhere.trusted = None
    assert read(elsewhere, name) == b"abc"


def test_a_pipe_blocks_no_reader(manager: DirectoryStorageManager) -> None:
    name = store(manager)
    os.mkfifo(manager.root / name / "pipe")
    with pytest.raises(errors.StorageError, match="not a file"):
        read(manager, name, "pipe")


def test_a_file_of_another_account_is_not_read(
    manager: DirectoryStorageManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a hard link to it, which a directory allows its owner."""
    name = store(manager)
    file = manager.root / name / "sub" / "file"
    if os.getuid() != 0:
        pytest.skip("only root can give a file away")
    os.chown(file, 12345, -1)
    with pytest.raises(errors.StorageError, match="another account"):
        read(manager, name)
    manager.trusted = None
    assert read(manager, name) == b"abc"
