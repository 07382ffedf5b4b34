"""The directory of one allocation, with the model definition unpacked in it.

``<work_dir>/allocations/<allocation id>/``
    ``workdir/``  the model definition; the training process starts here
    ``run/``      info files (``DET_RUN_DIR``)
    ``packages/`` a virtual environment: what the code installs (:mod:`determined_tasks.packages`), unless
        the trials of the experiment share one (:mod:`determined_tasks.experiment_dir`)
    ``leg.json``  the processes that run here (:mod:`determined_tasks.supervision`)
``<work_dir>/model_defs/<hash>/``
    model definitions by hash, unpacked once and copied for each leg
"""

from __future__ import annotations

import contextlib
import io
import os
import secrets
import shutil
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from determined_tasks import experiment_dir, identity, packages
from determined_tasks.identity import Identity
from determined_tasks.packages import Packages

ALLOCATIONS = "allocations"
PACKAGES = "packages"
"""In an allocation's directory, where its task shares none with others."""
MODEL_DEFS = "model_defs"
WORKDIR = "workdir"
RUN_DIR = "run"

# Least recently used model definitions beyond this many are dropped from the cache.
KEPT_MODEL_DEFS = 20


class ModelDefinitionError(Exception):
    """The model definition cannot be unpacked; the message is meant for the user."""


@dataclass(frozen=True)
class ContextDir:
    """The paths of one allocation; :func:`prepare` makes them. ``shared``: the packages of its experiment."""

    root: Path
    tmp: Path
    shared: Packages | None = None

    @property
    def workdir(self) -> Path:
        return self.root / WORKDIR

    @property
    def packages(self) -> Packages:
        """The packages that the leg's code installs."""
        return self.shared or Packages(self.root / PACKAGES)

    @property
    def run_dir(self) -> Path:
        return self.root / RUN_DIR


def allocation_dir(work_dir: Path, allocation_id: str) -> Path:
    """``<work_dir>/allocations/<allocation id>``; raises ValueError for an id that is a path."""
    if "/" in allocation_id or allocation_id in ("", ".", ".."):
        raise ValueError(f"not an allocation id: {allocation_id!r}")
    return work_dir / ALLOCATIONS / allocation_id


def remove(root: Path) -> None:
    """Deletes an allocation's directory; files that the user made undeletable stay."""
    # The record goes last: a successor that finds it first ends the remains of the leg.
    for name in (WORKDIR, RUN_DIR):
        shutil.rmtree(root / name, ignore_errors=True)
    shutil.rmtree(root, ignore_errors=True)


def choose_tmp() -> Path:
    """The path for a leg's TMPDIR. The directory is not made yet: a record of it is written first.

    Not below the allocation's directory: sockets that users' libraries make in TMPDIR may have paths of
    at most 107 bytes, and data directories are long.
    """
    return Path(tempfile.gettempdir()) / f"det-{secrets.token_hex(6)}"


def prepare(
    work_dir: Path,
    allocation_id: str,
    model_def_hash: str | None,
    fetch: Callable[[str], bytes],
    tmp: Path,
    shared: Packages | None = None,
) -> ContextDir:
    """An allocation's directory with a copy of its model definition, and its TMPDIR ``tmp``.

    ``shared``: the packages of its experiment; None: it gets its own.

    ``fetch`` gets the tar.gz of a hash that is not in the cache. Files that an earlier attempt at the same
    allocation left in ``workdir`` are removed.

    Raises ModelDefinitionError for an archive that cannot be unpacked, OSError for a full disk or missing
    permissions, and the errors of ``fetch``.
    """
    context = ContextDir(allocation_dir(work_dir, allocation_id), tmp, shared)
    context.root.mkdir(parents=True, exist_ok=True, mode=0o700)
    tmp.mkdir(mode=0o700)
    lay_out(context.root, work_dir, model_def_hash, fetch)
    if shared is None:
        if context.packages.root.exists():
            shutil.rmtree(context.packages.root)
        packages.make(context.packages.root)
    return context


def lay_out(
    root: Path, work_dir: Path, model_def_hash: str | None, fetch: Callable[[str], bytes]
) -> None:
    """Makes ``workdir`` with a copy of the model definition, and an empty ``run``, in an allocation's
    directory. Arguments and errors as of :func:`prepare`.
    """
    root.mkdir(parents=True, exist_ok=True, mode=0o700)
    workdir, run_dir = root / WORKDIR, root / RUN_DIR
    # Neither is kept: with a task of another account's, links in it could lead root elsewhere.
    for folder in (workdir, run_dir):
        if folder.exists():
            shutil.rmtree(folder)
    run_dir.mkdir()
    if model_def_hash is None:
        workdir.mkdir()
    else:
        _copy(unpacked(work_dir, model_def_hash, fetch), workdir)


def _copy(source: Path, target: Path) -> None:
    """Without the times of its files: an archive has 1980 for all, so that equal files have one hash."""
    shutil.copytree(source, target, symlinks=True, copy_function=shutil.copy)
    for folder, _, _ in os.walk(target):
        os.utime(folder)


def hand_over(context: ContextDir, work_dir: Path, account: Identity) -> None:
    """Make the allocation's directories the account's, and the way to them passable.

    Raises IdentityError when a folder above ``work_dir`` is closed to it.
    """
    # Nobody enters before everything in it has the right owner.
    context.root.chmod(0o700)
    owned = [context.workdir, context.run_dir, context.tmp]
    passed = [work_dir, work_dir / ALLOCATIONS, context.root]
    if context.shared is None:
        owned.append(context.packages.root)
    else:
        passed += [work_dir / experiment_dir.EXPERIMENTS, context.shared.root.parent]
    for folder in owned:
        # The folder is closed first: where the account may write beside its files, as in /tmp, it could
        # exchange them for links.
        folder.chmod(0o700)
        identity.give(account, folder)
    identity.let_pass(passed)
    identity.require_reach(
        account, context.workdir, context.tmp, context.packages.site, *identity.interpreter()
    )


def cached(work_dir: Path, model_def_hash: str) -> Path | None:
    """The unpacked model definition, if it is in the cache. Callers must not write to it."""
    if not model_def_hash.isalnum():
        raise ModelDefinitionError(f"not a model definition's hash: {model_def_hash!r}")
    found = work_dir / MODEL_DEFS / model_def_hash
    with contextlib.suppress(FileNotFoundError):
        os.utime(found)  # the cache's clock; also: does it exist
        return found
    return None


def unpacked(work_dir: Path, model_def_hash: str, fetch: Callable[[str], bytes]) -> Path:
    """As :func:`cached`, but unpacks the archive that ``fetch`` gets when the cache has none.

    Raises as :func:`prepare`.
    """
    found = cached(work_dir, model_def_hash)
    if found is not None:
        return found
    cache = work_dir / MODEL_DEFS
    found = cache / model_def_hash
    archive = fetch(model_def_hash)
    cache.mkdir(parents=True, exist_ok=True, mode=0o700)
    # Unpacked aside and renamed: a leg that starts meanwhile sees all of it or nothing.
    aside = Path(tempfile.mkdtemp(prefix=".unpack-", dir=cache))
    try:
        _unpack(archive, aside)
        # The archive may say that the directory is read-only; renaming it and copying into it needs more.
        aside.chmod(0o755)
        with contextlib.suppress(OSError):  # another leg was faster
            aside.rename(found)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    os.utime(found)
    _drop_old(cache)
    return found


def _unpack(archive: bytes, target: Path) -> None:
    """The `data` filter refuses absolute paths, `..`, links out of the directory and devices."""
    try:
        with tarfile.open(fileobj=io.BytesIO(archive), mode="r:*") as tar:
            if hasattr(tarfile, "data_filter"):
                tar.extractall(target, filter="data")
            else:
                tar.extractall(target, members=list(_plain_members(tar)))
    except (tarfile.TarError, EOFError) as error:
        raise ModelDefinitionError(f"the model definition cannot be unpacked: {error}") from error


def _plain_members(tar: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    """For Python 3.11.0 to 3.11.3, which have no filters: only files and directories inside."""
    for member in tar:
        path = PurePosixPath(member.name)
        if path.is_absolute() or ".." in path.parts or not (member.isfile() or member.isdir()):
            raise ModelDefinitionError(f"the model definition may not hold {member.name!r}")
        member.mode &= 0o755
        yield member


def _drop_old(cache: Path) -> None:
    def used(path: Path) -> float:
        with contextlib.suppress(OSError):
            return path.stat().st_mtime
        return 0.0

    # An entry used within the last minute may be being copied.
    entries = sorted((p for p in cache.iterdir() if not p.name.startswith(".")), key=used)
    for path in entries[:-KEPT_MODEL_DEFS]:
        if used(path) < time.time() - 60:
            shutil.rmtree(path, ignore_errors=True)
