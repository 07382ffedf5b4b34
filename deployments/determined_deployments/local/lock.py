"""One `cluster-up` or `cluster-down` at a time per data directory."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from filelock import FileLock, Timeout

from determined_deployments.local.errors import ClusterError

POLL_SECONDS = 0.1


@contextlib.contextmanager
def held(path: Path, waiting: Callable[[str], None], timeout: float = 300.0) -> Iterator[None]:
    """Hold the lock file. ``waiting`` is called once with the holder if another process has it.

    The kernel drops the lock when its holder dies, so a stale file blocks nobody. Raises
    ClusterError after ``timeout`` seconds.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # Beside the lock: the contents of the lock file belong to the library.
    pid_file = path.with_name(f"{path.name}.pid")
    lock = FileLock(path)
    try:
        lock.acquire(blocking=False)
    except Timeout:
        waiting(
            f"another cluster command (pid {_read(pid_file)}) is running for this data "
            "directory; waiting for it to end"
        )
        try:
            lock.acquire(timeout, poll_interval=POLL_SECONDS)
        except Timeout:
            raise ClusterError(
                f"pid {_read(pid_file)} has held {path} for {timeout:.0f} s; stop it first"
            ) from None
    try:
        pid_file.write_text(str(os.getpid()))
        yield
    finally:
        lock.release()


def _read(pid_file: Path) -> str:
    with contextlib.suppress(OSError):
        return pid_file.read_text().strip() or "unknown"
    return "unknown"
