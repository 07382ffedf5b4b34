"""The file system storages: the contract, their paths, and storage that refuses."""

from __future__ import annotations

import errno
import hashlib
import os
import signal
import subprocess
import sys
import threading
import uuid
import zlib
from pathlib import Path
from typing import Any

import pytest

from determined import errors, storage
from determined.storage import files, writeback
from determined.storage.directory import DirectoryStorageManager
from determined.storage.shared_fs import SharedFSStorageManager
from determined.storage.testing import StorageContract, Tamper
from tests.waiting import TIMEOUT_S


class FileSystemContract(StorageContract):
    @pytest.fixture
    def tamper(self, manager: DirectoryStorageManager) -> Tamper:
        def change(storage_id: str, path: str, content: bytes | None) -> None:
            file = manager.root / storage_id / path
            file.unlink()
            if content is not None:
                file.write_bytes(content)

        return change


class TestDirectory(FileSystemContract):
    @pytest.fixture
    def manager(self, tmp_path: Path) -> storage.StorageManager:
        return storage.build({"type": "directory", "container_path": str(tmp_path / "storage")})


class TestSharedFS(FileSystemContract):
    @pytest.fixture
    def manager(self, tmp_path: Path) -> storage.StorageManager:
        return storage.build(
            {"type": "shared_fs", "host_path": str(tmp_path), "storage_path": "deep/storage"}
        )


def test_links_lead_a_deletion_nowhere(tmp_path: Path) -> None:
    """The deleting process may have more rights than the writing one: it is root for trials under separate
    accounts."""
    manager = DirectoryStorageManager(tmp_path / "storage")
    source = tmp_path / "source"
    (source / "sub").mkdir(parents=True)
    for name in ("kept", "sub/file"):
        (source / name).write_text("x")
    for storage_id in ("inside", "itself", "manifest"):
        manager.upload(source, storage_id)
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_text("of somebody else")

    path = tmp_path / "storage" / "inside" / "sub"
    path.rename(tmp_path / "moved")
    path.symlink_to(outside)
    with pytest.raises(errors.StorageError, match="inside/sub is behind a symbolic link"):
        manager.delete("inside", ["sub/*"])
    path = tmp_path / "storage" / "itself"
    path.rename(outside / "sub")
    path.symlink_to(outside / "sub")
    with pytest.raises(errors.StorageError, match="is a file or a symbolic link; nothing was del"):
        manager.delete("itself", ["sub/*"])
    new = tmp_path / "storage" / "manifest" / (files.MANIFEST + ".new")
    new.symlink_to(outside / "file")
    assert manager.delete("manifest", ["kept"])
    assert (outside / "file").read_text() == "of somebody else"
    assert (outside / "sub" / "sub" / "file").exists()


def test_a_deletion_takes_only_checkpoints(tmp_path: Path) -> None:
    """Any directory with a uuid for a name can be reported as a checkpoint, at any host_path."""
    manager = DirectoryStorageManager(tmp_path / "storage")
    foreign, linked, of_determined = (str(uuid.uuid4()) for _ in range(3))
    for name in (foreign, of_determined):
        (manager.root / name).mkdir(parents=True)
        (manager.root / name / "photo").write_text("of somebody else")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / files.MANIFEST).write_bytes(storage.Manifest({}, {}).to_json())
    (manager.root / linked).symlink_to(tmp_path / "elsewhere")
    # Not a file of the directory's own.
    (manager.root / foreign / "metadata.json").symlink_to(tmp_path / "elsewhere" / files.MANIFEST)
    for globs in (None, ["photo"]):
        with pytest.raises(errors.StorageError, match="may not be a checkpoint; nothing was del"):
            manager.delete(foreign, globs)
    with pytest.raises(
        errors.StorageError, match="is a file or a symbolic link; nothing was deleted"
    ):
        manager.delete(linked)
    assert (manager.root / foreign / "photo").exists()
    assert (manager.root / linked / files.MANIFEST).exists()

    (manager.root / of_determined / "metadata.json").write_text("{}")
    manager.delete(of_determined)
    assert not (manager.root / of_determined).exists()


def test_a_sweep_ignores_notes_without_a_uuid(tmp_path: Path) -> None:
    """Every account that may write into a directory such as /tmp can leave a note there."""
    manager = DirectoryStorageManager(tmp_path)
    names = ["victim", str(uuid.uuid4()).upper(), f"{{{uuid.uuid4()}}}"]
    for name in names:
        (tmp_path / name).mkdir()
        (tmp_path / name / files.MANIFEST).write_bytes(storage.Manifest({}, {}).to_json())
        (tmp_path / f".unreported-{name}@c.7.a.1").touch()
    assert manager.sweep("c.7.", lambda found: []) == []
    assert all((tmp_path / name).exists() for name in names)


@pytest.mark.parametrize(
    ("config", "container_path", "root"),
    [
        ({"host_path": "/data"}, None, "/data"),
        ({"host_path": "/data", "storage_path": None}, None, "/data"),
        ({"host_path": "/data", "storage_path": "a/b"}, None, "/data/a/b"),
        ({"host_path": "/data", "storage_path": "/data/a"}, None, "/data/a"),
        ({"host_path": "/data/", "storage_path": "x/../a"}, None, "/data/a"),
        ({"host_path": "/data", "container_path": "/legacy"}, None, "/data"),
        ({"host_path": "/data"}, "/mnt", "/mnt"),
        ({"host_path": "/data", "storage_path": "/data/a"}, "/mnt", "/mnt/a"),
    ],
)
def test_shared_fs_paths(config: dict[str, Any], container_path: str | None, root: str) -> None:
    assert SharedFSStorageManager.from_config(config, container_path).root == Path(root)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"type": "shared_fs"}, "host_path must be an absolute path, found None"),
        ({"type": "shared_fs", "host_path": "data"}, "host_path"),
        ({"type": "shared_fs", "host_path": "/data", "storage_path": "../x"}, "storage_path"),
        ({"type": "shared_fs", "host_path": "/data", "storage_path": "/database"}, "storage_path"),
        ({"type": "directory"}, "container_path"),
        ({"type": "hdfs"}, "'hdfs' is not supported.*azure, directory, gcs, s3, shared_fs"),
        ({"type": "s3", "bucket": ""}, "checkpoint_storage.bucket"),
        ({"type": "gcs"}, "checkpoint_storage.bucket"),
        ({"type": "azure", "connection_string": "x"}, "checkpoint_storage.container"),
        ({"type": "azure", "container": "c", "connection_string": "x"}, "Azure container c: "),
        (
            {"type": "shared_fs", "host_path": "/data", "pack_small_files": True},
            "pack_small_files is for azure, gcs, s3, not for shared_fs",
        ),
        ({}, "None is not supported"),
    ],
)
def test_configurations_that_cannot_be_used(config: dict[str, Any], message: str) -> None:
    with pytest.raises(errors.StorageError, match=message):
        storage.build(config)


def test_shortcuts() -> None:
    assert storage.from_string("/a/b") == {"type": "shared_fs", "host_path": "/a/b"}
    assert storage.from_string("file:///a", on_cluster=False) == {
        "type": "directory",
        "container_path": "/a",
    }
    assert storage.from_string("gs://bucket/p/q") == {
        "type": "gcs",
        "bucket": "bucket",
        "prefix": "p/q",
    }
    assert (
        storage.from_string("runs/a", on_cluster=False)["container_path"] == f"{Path.cwd()}/runs/a"
    )
    for bad in ("", "ftp://x", "/a?b=c"):
        with pytest.raises(ValueError, match="checkpoint storage"):
            storage.from_string(bad)


def test_a_path_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    manager = DirectoryStorageManager(tmp_path / "file" / "storage")
    with pytest.raises(errors.StorageError, match=r"cannot write .*file.*: Not a directory"):
        manager.validate()
    with pytest.raises(errors.StorageError, match="Not a directory"), manager.store("x"):
        pass


@pytest.mark.parametrize("call", ["fsync", "rename"])
def test_a_disk_that_fills_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    def full(*args: Any, **kwargs: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    manager = DirectoryStorageManager(tmp_path)
    monkeypatch.setattr(os, call, full)
    with (
        pytest.raises(errors.StorageError, match=f"cannot write {tmp_path}.*No space left"),
        manager.store("x") as staging,
    ):
        (staging.path / "a").write_text("a")
    monkeypatch.undo()
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_met_by_the_users_own_write(tmp_path: Path) -> None:
    manager = DirectoryStorageManager(tmp_path)
    with (
        pytest.raises(errors.StorageError, match=r"cannot write .*weights.*No space left"),
        manager.store("x") as staging,
    ):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(staging.path / "weights"))
    with pytest.raises(RuntimeError) as caught, manager.store("y"):
        raise RuntimeError("PytorchStreamWriter failed")
    assert "MiB free" in caught.value.__notes__[0]
    with pytest.raises(OSError, match="No space left") as full, manager.store("y"):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))  # as write() does
    assert "MiB free" in full.value.__notes__[0]
    with pytest.raises(FileNotFoundError), manager.store("z"):
        (tmp_path.parent / "no such data set").read_bytes()


def test_a_put_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(source: Any, target: Any, length: int) -> None:
        target.write(b"a part")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    (tmp_path / "events").write_text("all")
    monkeypatch.setattr("shutil.copyfileobj", full)
    manager = DirectoryStorageManager(tmp_path / "s")
    with pytest.raises(errors.StorageError, match=r"cannot write .*/s/run/events: No space left"):
        manager.put("run/events", tmp_path / "events")
    assert list((tmp_path / "s/run").iterdir()) == []


def test_an_entry_that_is_neither_file_nor_directory(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "dangling").symlink_to(tmp_path / "gone")
    with pytest.raises(errors.StorageError, match="dangling"):
        DirectoryStorageManager(tmp_path / "s").upload(source, "x")


def test_names_that_are_not_text(tmp_path: Path) -> None:
    manager = DirectoryStorageManager(tmp_path / "s")
    with (
        pytest.raises(errors.StorageError, match=r"b'bad\\xff' in .* is not valid UTF-8"),
        manager.store("x") as staging,
    ):
        (staging.path / os.fsdecode(b"bad\xff")).touch()
    assert list((tmp_path / "s").iterdir()) == []


KILLED = """
import os, signal, sys
from pathlib import Path
from determined.storage import files
from determined.storage.directory import DirectoryStorageManager
synced = 0
def sync(path):
    global synced
    synced += 1
    if synced == int(sys.argv[2]):
        os.kill(os.getpid(), signal.SIGKILL)
os.fsync = sync
with DirectoryStorageManager(Path(sys.argv[1])).store("ckpt") as staging:
    for i in range(3):
        (staging.path / f"f{i}").write_text("x" * 100)
"""


@pytest.mark.parametrize("at", [1, 3, 5])
def test_a_killed_writer_leaves_nothing_that_looks_like_a_checkpoint(
    tmp_path: Path, at: int
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(tmp_path), str(at)], timeout=TIMEOUT_S, check=False
    )
    assert done.returncode == -signal.SIGKILL
    manager = DirectoryStorageManager(tmp_path)
    with pytest.raises(errors.CheckpointNotFound):
        manager.manifest("ckpt")
    with manager.store("ckpt") as staging:
        (staging.path / "f").write_text("second try")
    assert manager.manifest("ckpt").resources == {"f": 10}


def test_a_checkpoint_of_another_tool_is_read_unverified(tmp_path: Path) -> None:
    (tmp_path / "old").mkdir(parents=True)
    (tmp_path / "old" / "w").write_text("123")
    manager = DirectoryStorageManager(tmp_path)
    assert manager.manifest("old").resources == {"w": 3}
    manager.download("old", tmp_path / "copy")
    assert (tmp_path / "copy" / "w").read_text() == "123"


def test_a_damaged_list_of_files(tmp_path: Path) -> None:
    manager = DirectoryStorageManager(tmp_path)
    with manager.store("ckpt") as staging:
        (staging.path / "w").write_text("123")
    (tmp_path / "ckpt" / ".determined-manifest.json").write_text('{"resources"')
    with pytest.raises(errors.CheckpointCorrupted, match=r"manifest\.json is damaged"):
        manager.verify("ckpt")


def test_a_missing_storage_damages_no_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(errors.StorageError, match="cannot read") as caught:
        DirectoryStorageManager(tmp_path / "unmounted").verify("ckpt")
    assert type(caught.value) is errors.StorageError


def test_a_deletion_of_files_that_was_killed_is_finished_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = DirectoryStorageManager(tmp_path)
    with manager.store("ckpt") as staging:
        (staging.path / "sub").mkdir()
        for name in ("a", "sub/b", "sub/c", "stays"):
            (staging.path / name).write_text(name)

    def die(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("determined.storage.beneath.remove_one", die)
        with pytest.raises(KeyboardInterrupt):
            manager.delete("ckpt", ["a", "sub"])
    manager.verify("ckpt")
    for _ in range(2):
        assert manager.delete("ckpt", ["a", "sub"]) == {"stays": 5}
        assert {path.name for path in (tmp_path / "ckpt").iterdir()} == {
            "stays",
            files.MANIFEST,
        }


@pytest.mark.parametrize("size", [0, 9, 10, 11, 20, 35])
def test_checksums_of_large_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    monkeypatch.setitem(files.PIECE_BYTES, files.PIECES, 10)
    monkeypatch.setitem(files.PIECE_BYTES, files.QUICK, 10)
    monkeypatch.setitem(files.PIECE_BYTES, "sha256-64MiB", 20)
    content = os.urandom(size)
    file = tmp_path / "f"
    file.write_bytes(content)
    plain = "sha256:" + hashlib.sha256(content).hexdigest()

    def digests(length: int) -> list[bytes]:
        parts = (content[at : at + length] for at in range(0, size, length))
        return [hashlib.sha256(part).digest() for part in parts]

    pieces = "sha256-16MiB:" + hashlib.sha256(b"".join(digests(10))).hexdigest()
    crcs = (zlib.crc32(content[at : at + 10]).to_bytes(4, "big") for at in range(0, size, 10))
    quick = "crc32-16MiB:" + hashlib.sha256(b"".join(crcs)).hexdigest()
    early = "sha256-64MiB:" + hashlib.sha256(b"".join(digests(20))).hexdigest()
    assert files.checksum(file) == (plain if size <= 10 else pieces)
    assert files.checksum(file, large=files.QUICK) == (plain if size <= 10 else quick)
    if size:
        assert files.checksum_of(digests(10)) == files.checksum(file)
    for expected in (plain, pieces, quick, early):
        assert files.checksum(file, expected) == expected
        assert files.copy_with_checksum(file, tmp_path / "copy", expected) == expected
        digest = files.Digest(expected.partition(":")[0])
        for at in range(0, size, 7):
            digest.update(content[at : at + 7])
        assert digest.value() == expected
    assert files.checksum_unless(file, lambda: True) is None
    with pytest.raises(errors.StorageError, match="'md5' are not known"):
        files.checksum(file, "md5:0")


def test_a_large_file_is_verified(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(files.PIECE_BYTES, files.QUICK, 10)
    manager = DirectoryStorageManager(tmp_path)
    with manager.store("ckpt") as staging:
        (staging.path / "w").write_bytes(bytes(35))
    assert manager.manifest("ckpt").checksums["w"].startswith("crc32-16MiB:")
    manager.verify("ckpt")
    manager.download("ckpt", tmp_path / "copy")
    (tmp_path / "ckpt" / "w").write_bytes(bytes(34) + b"!")
    for call in (manager.verify, lambda name: manager.download(name, tmp_path / "copy")):
        with pytest.raises(errors.CheckpointCorrupted, match="have changed"):
            call("ckpt")


def test_large_files_go_to_the_disk_early(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: set[str] = set()
    seen = threading.Event()

    def begin(call: object, path: Path) -> None:
        begun.add(path.name)
        seen.set()

    monkeypatch.setattr(writeback, "_begin", begin)
    monkeypatch.setattr(writeback, "SECONDS", 0.001)
    monkeypatch.setattr(writeback, "WORTH_IT_BYTES", 10)
    manager = DirectoryStorageManager(tmp_path)
    with manager.store("ckpt") as staging:
        (staging.path / "sub").mkdir()
        (staging.path / "sub" / "small").write_bytes(bytes(9))
        (staging.path / "sub" / "large").write_bytes(bytes(10))
        assert seen.wait(TIMEOUT_S)
    assert begun == {"large"}
    manager.verify("ckpt")
