"""One `cluster-up` or `cluster-down` at a time per data directory."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from determined_deployments.local.errors import ClusterError


@contextmanager
def held(path: Path, waiting: Callable[[str], None], timeout: float = 300.0) -> Iterator[None]:
    """Holds the lock file; ``waiting`` is called once with the holder when somebody else has it.

    The kernel drops the lock when its holder dies, so a stale file blocks nobody. Raises
    ClusterError after ``timeout`` seconds.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+") as file:
        deadline = time.monotonic() + timeout
        told = False
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                file.seek(0)
                who = file.read().strip() or "unknown"
            if not told:
                waiting(f"another cluster command (pid {who}) is at work here; waiting for it")
                told = True
            if time.monotonic() > deadline:
                raise ClusterError(f"pid {who} has held {path} for {timeout:.0f} s; stop it first")
            time.sleep(0.1)
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield
