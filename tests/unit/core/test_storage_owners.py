"""Deleting as root where root is denied what the owner may, as by an NFS server with ``root_squash``."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from determined.storage.directory import DirectoryStorageManager

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to other accounts"),
    pytest.mark.skipif(shutil.which("setpriv") is None, reason="needs setpriv (util-linux)"),
]
AN_ACCOUNT, ANOTHER = 41001, 41002
# Root without these meets permissions as everybody else does.
LESS = "--bounding-set=-dac_override,-dac_read_search,-fowner"
ACTIONS = """
import sys
from pathlib import Path
from determined import errors
from determined.storage.directory import DirectoryStorageManager

storage, action, name = DirectoryStorageManager(Path(sys.argv[1])), sys.argv[2], sys.argv[3]
try:
    given = ["a*"] if action == "delete" and len(sys.argv) > 4 else None
    if action == "sweep":
        print(storage.sweep(name, lambda uuids: []))
    else:
        print(storage.delete(name, given) if action == "delete" else getattr(storage, action)(name))
except errors.StorageError as error:
    print("StorageError:", error)
"""


def as_a_squashed_root(*words: str) -> str:
    command = ["setpriv", LESS, sys.executable, "-c", ACTIONS, *words]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def give(path: Path, uid: int, mode: int) -> None:
    os.chown(path, uid, uid)
    path.chmod(mode)


@pytest.fixture
def root() -> Iterator[Path]:
    """Not below pytest's directory, which each session of pytest closes to other accounts."""
    with tempfile.TemporaryDirectory() as folder:
        give(Path(folder), 0, 0o755)
        yield Path(folder) / "checkpoints"


def stored(root: Path, owner: int) -> str:
    name = str(uuid.uuid4())
    with DirectoryStorageManager(root).store(name) as staging:
        (staging.path / "a.bin").write_bytes(b"x" * 10)
        (staging.path / "sub").mkdir()
        (staging.path / "sub" / "b.bin").write_bytes(b"y" * 20)
    for folder, _, files in os.walk(root / name):
        give(Path(folder), owner, 0o700)
        for file in files:
            give(Path(folder) / file, owner, 0o600)
    return name


@pytest.mark.parametrize(
    ("root_owner", "mode"), [(AN_ACCOUNT, 0o700), (0, 0o1777), (ANOTHER, 0o1777)]
)
def test_a_checkpoint_is_deleted_as_its_owner(root: Path, root_owner: int, mode: int) -> None:
    root.mkdir()
    name = stored(root, AN_ACCOUNT)
    give(root, root_owner, mode)
    assert as_a_squashed_root(str(root), "present", name).startswith("{'")
    left = as_a_squashed_root(str(root), "delete", name, "a*")
    assert "'sub/b.bin': 20" in left
    assert "a.bin" not in left
    assert not (root / name / "a.bin").exists()
    assert as_a_squashed_root(str(root), "delete", name) == "{}"
    assert list(root.iterdir()) == []


def test_a_folder_that_nobody_lists_is_discarded_as_its_owner(root: Path) -> None:
    root.mkdir()
    (root / "events" / "1").mkdir(parents=True)
    (root / "events" / "1" / "file").write_text("x")
    for path in (root / "events" / "1" / "file", root / "events" / "1", root / "events", root):
        give(path, AN_ACCOUNT, 0o700)
    assert as_a_squashed_root(str(root), "discard", "events") == "None"
    assert list(root.iterdir()) == []


def test_what_a_killed_process_left_is_removed_as_its_owner(root: Path) -> None:
    root.mkdir()
    name = stored(root, AN_ACCOUNT)
    draft, note = root / f".incomplete-{uuid.uuid4()}@1.2", root / f".unreported-{name}@1.2"
    (draft / "files").mkdir(parents=True)
    note.touch()
    for path in (draft / "files", draft, note, root):
        give(path, AN_ACCOUNT, 0o700)
    assert as_a_squashed_root(str(root), "sweep", "1.") == str([draft.name, name])
    assert list(root.iterdir()) == []


def test_what_the_owner_may_not_either_is_said(root: Path) -> None:
    root.mkdir()
    name = stored(root, AN_ACCOUNT)
    give(root / name / "sub", ANOTHER, 0o700)
    give(root, AN_ACCOUNT, 0o700)
    said = as_a_squashed_root(str(root), "delete", name)
    assert said.startswith("StorageError:")
    assert "Permission denied" in said
