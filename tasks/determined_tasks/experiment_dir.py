"""The directory of one experiment on one machine: what its trials share there.

``<work_dir>/experiments/<experiment id>.<cluster id>/``
    ``packages-<key>/``  what their code installs (:mod:`determined_tasks.packages`); the key tells
        interpreters and accounts apart
    ``lock``  held while it is used (:mod:`determined_tasks.shared_dir`)
    ``making``  held by the one that makes something in it

Legs make it when it is missing. The agent removes it when the experiment has ended; nobody else does.
The cluster's id is in its name because the numbers of experiments begin anew with a new database.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from determined_tasks import identity, packages, shared_dir
from determined_tasks.identity import Identity
from determined_tasks.packages import Packages

EXPERIMENTS = "experiments"
MAKING = "making"

WHOSE = "which the experiment's trials on this machine share"


@contextlib.contextmanager
def used(work_dir: Path, experiment_id: int, cluster_id: str) -> Iterator[Path]:
    """The experiment's directory, which nobody removes within the block.

    Raises OSError, and ValueError for a cluster's id that is a path.
    """
    with shared_dir.used(_path(work_dir, experiment_id, cluster_id)) as root:
        yield root


def shared_packages(root: Path, account: Identity | None) -> Packages:
    """The packages that legs under ``account`` share in the experiment's directory ``root``.

    They are made if there are none, or if the code has destroyed them. Raises OSError.
    """
    shared = Packages(root / packages.name_for(None if account is None else account.uid))
    whole = root / f"{shared.root.name}.made"
    descriptor = shared_dir.open_lock(root / MAKING)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        if whole.exists() and shared.has_interpreter():
            return shared
        if shared.root.exists():
            # Another leg may still run there.
            shared.root.rename(root / shared_dir.new_gone())
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
    ids = (
        _experiment(path.name, cluster_id) for path in shared_dir.children(work_dir / EXPERIMENTS)
    )
    return sorted(number for number in ids if number is not None)


def size(work_dir: Path, experiment_id: int, cluster_id: str) -> int:
    """The bytes on the disk of the experiment's directory (:func:`bytes_below`)."""
    return bytes_below(_path(work_dir, experiment_id, cluster_id))


def bytes_below(path: Path) -> int:
    """The bytes on the disk below a directory, 0 if there is none; files that vanish meanwhile do not count.

    By descriptors: its owner exchanges directories for links as it likes, and none is followed.
    """
    total = 0
    try:
        for _, folders, files, descriptor in os.fwalk(path):
            for name in (*folders, *files):
                with contextlib.suppress(OSError):
                    found = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
                    total += found.st_blocks * 512
    except (OSError, RecursionError):
        pass  # deeper than anything that is installed, or gone
    return total


def remove(work_dir: Path, experiment_id: int, cluster_id: str) -> bool:
    """Removes the directory unless a leg uses it; whether it is gone. Files made undeletable stay."""
    return shared_dir.remove(_path(work_dir, experiment_id, cluster_id))


def remove_leftovers(work_dir: Path, cluster_id: str) -> None:
    """Remove directories of other clusters, and the remains of interrupted removals."""
    for path in shared_dir.children(work_dir / EXPERIMENTS):
        if path.name.startswith(shared_dir.GONE):
            shutil.rmtree(path, ignore_errors=True)
        elif _experiment(path.name, cluster_id) is None:
            shared_dir.remove(path)


def _path(work_dir: Path, experiment_id: int, cluster_id: str) -> Path:
    if "/" in cluster_id:
        raise ValueError(f"not a cluster's id: {cluster_id!r}")
    return work_dir / EXPERIMENTS / f"{int(experiment_id)}.{cluster_id}"


def _experiment(name: str, cluster_id: str) -> int | None:
    number, _, cluster = name.partition(".")
    return int(number) if cluster == cluster_id and number.isdecimal() else None
