"""Compilers' output (kernels and extensions), kept between the legs of one user's same code on this machine.

``<work_dir>/compiled/<key>.<cluster id>/``
    ``lock``  held while it is used (:mod:`determined_tasks.shared_dir`); its time is that of the last use
    ``making``  held by the one that makes or mends something in it
    ``code/``  the account's own: a folder for each of :data:`VARIABLES`

What lies there is run: the key tells users, accounts, model definitions, interpreters and images apart. When
all together are larger than the agent's settings allow, those that were unused for the longest time go.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import logging
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from determined.common.wire.legs import LegSpec
from determined.storage import beneath
from determined_tasks import identity, packages, shared_dir
from determined_tasks.identity import Identity

logger = logging.getLogger(__name__)

COMPILED = "compiled"
CODE = "code"
MAKING = "making"
MEASURED = "measured"
EXTENSIONS = "extensions"
VARIABLES = {
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "TRITON_CACHE_DIR": "triton",
    "TORCH_EXTENSIONS_DIR": EXTENSIONS,
    "CUDA_CACHE_PATH": "cuda",
    "JAX_COMPILATION_CACHE_DIR": "jax",
}
# To add up a hundred thousand files takes a second.
MEASURE_SECONDS = 60.0


def variables(code: Path) -> dict[str, str]:
    """By which compilers find the directory ``code``, as the task sees it."""
    return {name: str(code / folder) for name, folder in VARIABLES.items()}


@contextlib.contextmanager
def used(
    work_dir: Path,
    spec: LegSpec,
    account: Identity | None,
    most: int,
    image: str | None = None,
) -> Iterator[Path | None]:
    """The directory for code that the leg compiles, owned by its account; None: nothing is kept for legs like
    this one.

    ``most``: the bytes of all directories together; 0: nothing is kept. The lock ends with this process.
    Raises OSError, and ValueError for a cluster's id that is a path.
    """
    if most == 0 or spec.trial_id is None or spec.model_def_hash is None:
        yield None
        return
    if "/" in spec.cluster_id:
        raise ValueError(f"not a cluster's id: {spec.cluster_id!r}")
    home = work_dir / COMPILED
    root = home / f"{_key(spec, account, image)}.{spec.cluster_id}"
    with shared_dir.used(root):
        os.utime(root / shared_dir.LOCK)
        code = _made(root, account)
        if account is not None:
            identity.let_pass((home, root))
        _drop_dead_batons(root)
        try:
            yield code
        finally:
            with contextlib.suppress(OSError):
                os.utime(root / shared_dir.LOCK)
            _drop_dead_batons(root)
    _tidy(root, most)


def _key(spec: LegSpec, account: Identity | None, image: str | None) -> str:
    uid = None if account is None else account.uid
    where = [image] if image else [packages.name_for(uid), _torch()]
    what = [spec.owner, uid, spec.model_def_hash, *where]
    return hashlib.sha256(json.dumps(what).encode()).hexdigest()[:16]


def _torch() -> int | None:
    """The version of the agent's torch: extensions built with another torch cannot be loaded."""
    for site in packages.parent_sites():
        with contextlib.suppress(OSError):
            return Path(site, "torch/version.py").stat().st_mtime_ns
    return None


def _made(root: Path, account: Identity | None) -> Path:
    code = root / CODE
    with _making(root):
        if not code.exists():
            # A new name: a directory handed over by a killed process must not be handed over again.
            aside = root / shared_dir.new_gone()
            aside.mkdir(mode=0o700)
            # The driver makes no folder for its own.
            (aside / VARIABLES["CUDA_CACHE_PATH"]).mkdir(mode=0o700)
            if account is not None:
                identity.give(account, aside)
            aside.rename(code)
    return code


@contextlib.contextmanager
def _making(root: Path) -> Iterator[None]:
    descriptor = shared_dir.open_lock(root / MAKING)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _drop_dead_batons(root: Path) -> None:
    """torch builds an extension while it has the file ``lock`` open that it has made there, and others wait
    until the file is gone: for ever, if the builder was killed."""
    with (
        contextlib.suppress(OSError),
        _making(root),
        beneath.opened(root / CODE, EXTENSIONS) as folder,
    ):
        found: dict[tuple[int, int], str] = {}
        for name in [entry.name for entry in os.scandir(folder)]:
            with contextlib.suppress(OSError):
                status = os.stat(f"{name}/lock", dir_fd=folder, follow_symlinks=False)
                found[status.st_dev, status.st_ino] = f"{name}/lock"
        for path in Path("/proc").glob("[0-9]*/fd/*") if found else ():
            with contextlib.suppress(OSError):
                status = path.stat()
                found.pop((status.st_dev, status.st_ino), None)
        for baton in found.values():
            with contextlib.suppress(OSError):
                beneath.remove_one(folder, baton)


def _tidy(root: Path, most: int) -> None:
    """After a leg: most compile nothing, and leave nothing. Once a minute the surplus is removed."""
    try:
        if _is_empty(root / CODE):
            shared_dir.remove(root)
        elif _is_time(root.parent / MEASURED):
            drop_unused(root.parent, root.name.rpartition(".")[2], most)
    except (OSError, RecursionError) as error:
        logger.warning("cannot remove unused compiled code: %s", error)


def _is_empty(code: Path) -> bool:
    return all(path.name == VARIABLES["CUDA_CACHE_PATH"] for path in code.iterdir()) and not any(
        (code / VARIABLES["CUDA_CACHE_PATH"]).iterdir()
    )


def _is_time(marker: Path) -> bool:
    with contextlib.suppress(FileNotFoundError):
        if 0 <= time.time() - marker.stat().st_mtime < MEASURE_SECONDS:
            return False
    marker.touch()
    return True


def drop_unused(home: Path, cluster_id: str, most: int) -> None:
    """Remove directories that no leg uses, the longest unused first, until all together have ``most`` bytes;
    also those of other clusters, and half removed ones."""
    sizes: dict[Path, int] = {}
    for path in shared_dir.children(home):
        if path.name.startswith(shared_dir.GONE):
            shutil.rmtree(path, ignore_errors=True)
        elif path.name != MEASURED and path.name.rpartition(".")[2] != cluster_id:
            shared_dir.remove(path)
        elif path.name != MEASURED:
            sizes[path] = _size(path)
    total = sum(sizes.values())
    for path in sorted(sizes, key=_last_use):
        if total <= most:
            return
        if shared_dir.remove(path):
            total -= sizes[path]


def _last_use(root: Path) -> float:
    with contextlib.suppress(OSError):
        return (root / shared_dir.LOCK).stat().st_mtime
    return 0.0


def _size(root: Path) -> int:
    with beneath.opened(root) as folder:
        return sum(status.st_blocks * 512 for _, status, _ in beneath.regular_files(folder))
