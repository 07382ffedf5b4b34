"""The process that deletes and writes in a storage may be root, and the account that wrote there may exchange
a directory for a link at any moment. Each test exchanges it right before the step that counts; a process that
does so by chance needs many tries, and here none."""

from __future__ import annotations

import os
import shutil
import subprocess
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from determined import errors
from determined.storage import files
from determined.storage.base import Manifest
from determined.storage.directory import DirectoryStorageManager
from determined_tasks import identity
from tests.hostile.conftest import SECRET


@pytest.fixture
def manager(tmp_path: Path) -> DirectoryStorageManager:
    return DirectoryStorageManager(tmp_path / "home" / "storage")


@pytest.fixture
def checkpoint(manager: DirectoryStorageManager, tmp_path: Path) -> str:
    source = tmp_path / "source"
    (source / "sub").mkdir(parents=True)
    for name in ("kept", "sub/file"):
        (source / name).write_text("the user's")
    found = str(uuid.uuid4())
    manager.upload(source, found)
    return found


def before(
    patch: pytest.MonkeyPatch, module: Any, name: str, attack: Callable[[], None], skip: int = 0
) -> None:
    """The next call of ``module.name``, after ``skip`` others, comes a moment too late."""
    real, left = getattr(module, name), [skip + 1]

    def late(*args: Any, **kwargs: Any) -> Any:
        left[0] -= 1
        if not left[0]:
            attack()
        return real(*args, **kwargs)

    patch.setattr(module, name, late)


def exchange(path: Path, target: Path) -> Callable[[], None]:
    """``path`` becomes a link to ``target``."""

    def attack() -> None:
        path.rename(path.with_name(f"{path.name}-before"))
        path.symlink_to(target)

    return attack


def test_a_directory_exchanged_for_a_link_after_the_check_of_names_leads_no_unlink_out_of_the_checkpoint(
    manager: DirectoryStorageManager,
    checkpoint: str,
    victim: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Gains: any file that root may delete is gone."""
    # The manifest is replaced between the check and the unlink.
    before(monkeypatch, os, "replace", exchange(manager.root / checkpoint / "sub", victim))
    with pytest.raises(errors.StorageError, match="behind a symbolic link, which a deletion does"):
        manager.delete(checkpoint, ["sub/file"])
    assert (victim / "file").read_text() == SECRET


def test_a_link_laid_where_the_manifest_is_written_gets_no_bytes(
    manager: DirectoryStorageManager,
    checkpoint: str,
    victim: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Gains: any file of root's is overwritten."""
    new = manager.root / checkpoint / (files.MANIFEST + ".new")
    new.write_text("")
    real = os.unlink

    def unlink(path: Any, **kwargs: Any) -> None:
        real(path, **kwargs)
        if str(path).endswith(".new"):
            new.symlink_to(victim / "file")

    monkeypatch.setattr(os, "unlink", unlink)
    with pytest.raises(errors.StorageError, match="File exists"):
        manager.delete(checkpoint, ["sub/file"])
    assert (victim / "file").read_text() == SECRET


def test_a_storage_exchanged_for_a_link_after_the_check_leads_no_deletion_of_a_checkpoint_elsewhere(
    manager: DirectoryStorageManager,
    checkpoint: str,
    victim: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Gains: the deletion of any directory of root that has a uuid as name."""
    (victim / checkpoint).mkdir()
    (victim / checkpoint / "file").write_text(SECRET)
    before(monkeypatch, os, "rename", exchange(manager.root, victim))
    manager.delete(checkpoint)
    assert (victim / checkpoint / "file").read_text() == SECRET


def test_a_directory_exchanged_for_a_checkpoint_after_the_check_is_not_emptied(
    manager: DirectoryStorageManager, checkpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gains: a directory that bears no mark of a checkpoint is emptied."""
    other = manager.root / "of-others"
    other.mkdir()
    (other / "file").write_text(SECRET)

    def attack() -> None:
        (manager.root / checkpoint).replace(manager.root / "aside")
        other.replace(manager.root / checkpoint)
        monkeypatch.undo()
        # At the second step of the deletion it stands where it stood, and something small in its place.
        real = os.fsync

        def back(descriptor: int) -> None:
            real(descriptor)
            (manager.root / f".deleting-{checkpoint}").replace(other)

        monkeypatch.setattr(os, "fsync", back)

    before(monkeypatch, os, "rename", attack)
    manager.delete(checkpoint)
    assert (other / "file").read_text() == SECRET
    assert list((manager.root / "aside").iterdir()) == []


def test_a_parent_exchanged_for_a_link_gets_no_file(
    manager: DirectoryStorageManager,
    tmp_path: Path,
    victim: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Gains: a file of the attacker's contents in any directory, written as root (say, in ``cron.d``)."""
    (tmp_path / "source").write_text("the user's")
    import secrets

    before(monkeypatch, secrets, "token_hex", exchange(manager.root / "a" / "b", victim))
    (manager.root / "a" / "b").mkdir(parents=True)
    manager.put("a/b/new", tmp_path / "source")
    assert sorted(path.name for path in victim.iterdir()) == ["file"]
    assert (manager.root / "a" / "b-before" / "new").read_text() == "the user's"


def test_a_parent_that_is_a_link_gets_no_file(
    manager: DirectoryStorageManager, tmp_path: Path, victim: Path
) -> None:
    """Gains: as before. Everybody may make the directory of the next experiment's TensorBoard files."""
    (tmp_path / "source").write_text("the user's")
    (manager.root / "a").mkdir(parents=True)
    (manager.root / "a" / "b").symlink_to(victim)
    with pytest.raises(errors.StorageError, match=r"cannot write .*a/b/new"):
        manager.put("a/b/new", tmp_path / "source")
    assert sorted(path.name for path in victim.iterdir()) == ["file"]


def test_a_parent_exchanged_for_a_link_leads_no_discard_elsewhere(
    manager: DirectoryStorageManager, victim: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gains: any directory of root's is gone."""
    (victim / "b").mkdir()
    (victim / "b" / "file").write_text(SECRET)
    (manager.root / "a" / "b").mkdir(parents=True)
    before(monkeypatch, shutil, "rmtree", exchange(manager.root / "a", victim))
    manager.discard("a/b")
    assert (victim / "b" / "file").read_text() == SECRET
    assert not (manager.root / "a-before" / "b").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to other accounts")
def test_a_note_of_one_account_deletes_no_checkpoint_of_another(
    manager: DirectoryStorageManager, checkpoint: str
) -> None:
    """Gains: a checkpoint of another user's that is stored and not yet reported is gone."""
    os.chown(manager.root / checkpoint, 4711, 4711)
    note = manager.root / f".unreported-{checkpoint}@c.7.1"
    note.touch()
    os.chown(note, 4712, 4712)
    assert manager.sweep("c.7", lambda found: []) == []
    assert not note.exists()
    assert (manager.root / checkpoint / "kept").exists()


def test_a_checkpoint_nested_deeper_than_a_deletion_goes_ends_that_deletion_with_a_reason(
    manager: DirectoryStorageManager,
) -> None:
    """Gains: the flow that collects ends in an error that names nothing."""
    checkpoint = str(uuid.uuid4())
    folder = manager.root / checkpoint
    folder.mkdir(parents=True)
    (folder / files.MANIFEST).write_bytes(Manifest({}, {}).to_json())
    descriptor = os.open(folder, os.O_RDONLY)
    for _ in range(3000):
        os.mkdir("d", dir_fd=descriptor)
        inner = os.open("d", os.O_RDONLY, dir_fd=descriptor)
        os.close(descriptor)
        descriptor = inner
    os.close(descriptor)
    try:
        with pytest.raises(errors.StorageError, match="cannot delete"):
            manager.delete(checkpoint)
    finally:
        # pytest could not, either.
        subprocess.run(["rm", "-rf", str(manager.root)], check=True)


def test_a_directory_made_beforehand_gets_no_file_of_another_account(
    manager: DirectoryStorageManager, tmp_path: Path
) -> None:
    """Gains: the TensorBoard files of the experiment whose number comes next, to read and to change."""
    if os.geteuid() != 0:
        pytest.skip("only root gives directories to other accounts")
    (tmp_path / "source").write_text("alice's")
    (manager.root / "c" / "8").mkdir(parents=True)
    os.chown(manager.root / "c" / "8", 4711, 4711)
    with pytest.raises(errors.StorageError, match=r"belongs to another account \(uid 4711\)"):
        manager.put("c/8/events", tmp_path / "source")
    assert list((manager.root / "c" / "8").iterdir()) == []


def test_links_in_a_storage_that_others_write_are_not_fetched(
    manager: DirectoryStorageManager, victim: Path, tmp_path: Path
) -> None:
    """Gains: files of the fetching account, served from the copy."""
    (manager.root / "key" / "sub").mkdir(parents=True)
    (manager.root / "key" / "own").write_text("the user's")
    (manager.root / "key" / "linked").symlink_to(victim / "file")
    (manager.root / "key" / "folder").symlink_to(victim)
    assert manager.fetch("key", tmp_path / "copy") == ["own"]


def test_the_clusters_folders_are_opened_to_all_and_no_link_is(tmp_path: Path) -> None:
    """Gains: any directory of root's is writable to everybody."""
    storage, private = tmp_path / "storage", tmp_path / "private"
    identity.let_store(storage, "c")
    assert (storage / "c" / "mlflow").stat().st_mode & 0o7777 == 0o711
    for folder in ("", "c", "c/notebook", "c/tensorboard", "c/tensorboard/experiment"):
        assert (storage / folder).stat().st_mode & 0o7777 == 0o1777
    private.mkdir(mode=0o700)
    (storage / "d").symlink_to(private)
    with pytest.raises(identity.IdentityError, match="only the cluster may make this directory"):
        identity.let_store(storage, "d")
    assert private.stat().st_mode & 0o7777 == 0o700
