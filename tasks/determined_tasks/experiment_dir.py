"""The directory of one experiment on one machine: what its trials share there.

``<work_dir>/experiments/<experiment id>.<cluster id>/``
    ``packages-<key>/``  what their code installs (:mod:`determined_tasks.packages`); the key tells
        interpreters and accounts apart
    ``lock``  held by the supervisor of each leg that uses the directory, together with the others
    ``making``  held by the one that makes something in it

Legs make it when it is missing. The agent removes it when the experiment has ended; nobody else does.
The cluster's id is in its name because the numbers of experiments begin anew with a new database.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

from determined_tasks import identity, packages
from determined_tasks.identity import Identity
from determined_tasks.packages import Packages

EXPERIMENTS = "experiments"
LOCK = "lock"
MAKING = "making"
# What is being removed; a name that begins so is no experiment's.
GONE = ".gone-"

WHOSE = "which the experiment's trials on this machine share"


@contextlib.contextmanager
def used(work_dir: Path, experiment_id: int, cluster_id: str) -> Iterator[Path]:
    """The experiment's directory, which nobody removes within the block.

    The lock ends with this process. Raises OSError, and ValueError for a cluster's id that is a path.
    """
    root = _path(work_dir, experiment_id, cluster_id)
    while True:
        root.mkdir(parents=True, exist_ok=True, mode=0o700)
        try:
            descriptor = _open(root / LOCK)
        except FileNotFoundError:  # it was removed just now
            continue
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        if _is_file(root / LOCK, descriptor):
            break
        os.close(descriptor)
    try:
        yield root
    finally:
        os.close(descriptor)


def shared_packages(root: Path, account: Identity | None) -> Packages:
    """The packages that legs under ``account`` share in the experiment's directory ``root``.

    They are made if there are none, or if the code has destroyed them. Raises OSError.
    """
    shared = Packages(root / packages.name_for(None if account is None else account.uid))
    whole = root / f"{shared.root.name}.made"
    descriptor = _open(root / MAKING)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        if whole.exists() and shared.has_interpreter():
            return shared
        if shared.root.exists():
            # Another leg may still run there.
            shared.root.rename(root / f"{GONE}{secrets.token_hex(6)}")
        whole.unlink(missing_ok=True)
        shared.root.mkdir(mode=0o700)
        packages.make(shared.root, WHOSE)
        if account is not None:
            identity.give(account, shared.root)
        whole.touch(mode=0o600)
        return shared
    finally:
        os.close(descriptor)


def known(work_dir: Path, cluster_id: str) -> list[int]:
    """The cluster's experiments that have a directory here."""
    ids = (_experiment(path.name, cluster_id) for path in _all(work_dir))
    return sorted(number for number in ids if number is not None)


def remove(work_dir: Path, experiment_id: int, cluster_id: str) -> bool:
    """Removes the directory unless a leg uses it; whether it is gone. Files made undeletable stay."""
    return _remove(_path(work_dir, experiment_id, cluster_id))


def remove_leftovers(work_dir: Path, cluster_id: str) -> None:
    """Removes what is of another cluster, and what a removal that was cut short has left."""
    for path in _all(work_dir):
        if path.name.startswith(GONE):
            shutil.rmtree(path, ignore_errors=True)
        elif _experiment(path.name, cluster_id) is None:
            _remove(path)


def _path(work_dir: Path, experiment_id: int, cluster_id: str) -> Path:
    if "/" in cluster_id:
        raise ValueError(f"not a cluster's id: {cluster_id!r}")
    return work_dir / EXPERIMENTS / f"{int(experiment_id)}.{cluster_id}"


def _experiment(name: str, cluster_id: str) -> int | None:
    number, _, cluster = name.partition(".")
    return int(number) if cluster == cluster_id and number.isdecimal() else None


def _all(work_dir: Path) -> list[Path]:
    try:
        return list((work_dir / EXPERIMENTS).iterdir())
    except FileNotFoundError:
        return []


def _remove(root: Path) -> bool:
    try:
        descriptor = _open(root / LOCK)
    except (FileNotFoundError, NotADirectoryError):
        return not root.exists()
    gone = root.with_name(f"{GONE}{secrets.token_hex(6)}")
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Renamed first: a leg that starts meanwhile makes a new one, and finds nothing half removed.
        root.rename(gone)
    except (BlockingIOError, FileNotFoundError):
        return not root.exists()
    finally:
        os.close(descriptor)
    shutil.rmtree(gone, ignore_errors=True)
    return True


def _open(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def _is_file(path: Path, descriptor: int) -> bool:
    """Whether ``path`` is still the file that was opened."""
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False
