"""The processes of an allocation's directory: their record (``leg.json``) and a lock.

The record outlives its writer: an agent that starts again finds the supervisors that are alive, and the
processes that a killed supervisor left running. A process is named by its id and its start time, because the
system uses ids again.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

import psutil

from determined_tasks.leg_groups import LegGroup

SUPERVISE = "determined_tasks.leg:supervise"
"""The entry point of a leg's supervisor."""
RECORD = "leg.json"
ORDER = "order.json"
"""The order of a leg whose training process outlives its supervisor, for the next one."""
KILL_SIGNAL = signal.SIGUSR1
"""The service's order, passed on to a supervisor: the leg is to end at once."""
DEATH_SECONDS = 2.0
"""Seconds to wait for a killed process: until then it may still write."""
LOCK = "lock"


def write_private(path: Path, content: bytes) -> None:
    """Write a file that no other account can read, in one step: readers find all of it or no file. Raises
    OSError."""
    aside = path.with_name(f"{path.name}.part")
    aside.touch(mode=0o600)
    aside.write_bytes(content)
    aside.rename(path)


@dataclass(frozen=True)
class ProcessName:
    """A process that is not confused with a later one of the same id.

    ``started``: start time in seconds since the epoch.
    """

    pid: int
    started: float

    @classmethod
    def of(cls, pid: int) -> ProcessName | None:
        """The process with this id, or None when there is none (any more)."""
        try:
            return cls(pid, psutil.Process(pid).create_time())
        except psutil.Error:
            return None

    def is_alive(self) -> bool:
        """True if the process still runs; one that only waits to be reaped does not."""
        try:
            process = psutil.Process(self.pid)
            # The start time is kept in clock ticks of 10 ms, and the boot time it counts from is
            # corrected by up to a second.
            same = abs(process.create_time() - self.started) < 2.0
            return same and process.status() != psutil.STATUS_ZOMBIE
        except psutil.Error:
            return False


@dataclass(frozen=True)
class LegRecord:
    """``leg.json``. ``user``: the training process, leader of its own session; ``tmp``: its TMPDIR;
    ``groups``: the folders of its control group.

    It is written with ``tmp`` before that directory is made, and again with ``user`` when the process runs:
    everything that the supervisor made is found whenever it dies.
    """

    allocation_id: str
    experiment_id: int | None
    supervisor: ProcessName
    user: ProcessName | None = None
    tmp: str | None = None
    groups: list[str] = field(default_factory=list)

    def write(self, root: Path) -> None:
        write_private(root / RECORD, json.dumps(asdict(self)).encode())

    @classmethod
    def read(cls, root: Path) -> LegRecord | None:
        """The record in an allocation's directory, or None when there is none that can be read."""
        try:
            data = json.loads((root / RECORD).read_text())
            user = data["user"]
            return cls(
                allocation_id=data["allocation_id"],
                experiment_id=data["experiment_id"],
                supervisor=ProcessName(**data["supervisor"]),
                user=ProcessName(**user) if user else None,
                tmp=data.get("tmp"),
                groups=data.get("groups") or [],
            )
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def clear_up(self) -> None:
        """For a supervisor that is gone: kill the remaining processes of the leg, delete its TMPDIR and its
        control group."""
        LegGroup([Path(folder) for folder in self.groups]).end()
        if self.user is not None and self.user.is_alive():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.user.pid, signal.SIGKILL)
        deadline = time.monotonic() + DEATH_SECONDS
        # Repeated, because those that are killed may have started others meanwhile.
        while (left := self._left()) and time.monotonic() < deadline:
            for process in left:
                with contextlib.suppress(psutil.Error):
                    process.kill()
            psutil.wait_procs(left, max(0.0, deadline - time.monotonic()))
        if self.tmp is not None:
            shutil.rmtree(self.tmp, ignore_errors=True)

    def _left(self) -> list[psutil.Process]:
        """The leg's processes that run, also those whose parents and group are gone (a notebook's kernels):
        of the training process' session, or with the leg's TMPDIR, which no other leg has, in their
        environment."""
        spared = {os.getpid(), self.supervisor.pid}
        return [
            process
            for process in psutil.process_iter()
            if process.pid not in spared and self._is_own(process)
        ]

    def _is_own(self, process: psutil.Process) -> bool:
        with contextlib.suppress(psutil.Error, OSError):
            if process.status() == psutil.STATUS_ZOMBIE:
                return False
            # While a session has members, the number of its leader is not used again.
            if self.user is not None and os.getsid(process.pid) == self.user.pid:
                return process.create_time() > self.user.started - 2.0
            if self.tmp is not None:
                inside = f"{self.tmp}{os.sep}"
                return any(
                    f"{value}{os.sep}".startswith(inside) for value in process.environ().values()
                )
        return False


@contextlib.contextmanager
def heeding(stop: Callable[[int], None]) -> Iterator[None]:
    """Within the block ``stop`` is called with KILL_SIGNAL or SIGTERM when one of them comes.

    After it both are ignored: the last logs and the exit are still to be reported.
    """
    numbers = (KILL_SIGNAL, signal.SIGTERM)
    for number in numbers:
        signal.signal(number, lambda number, frame: stop(number))
    try:
        yield
    finally:
        for number in numbers:
            signal.signal(number, signal.SIG_IGN)


@contextlib.contextmanager
def lock(root: Path) -> Iterator[bool]:
    """Yields whether this process may run the allocation: False when another one does.

    An order that reaches an agent twice must not train twice. The lock ends with the process.

    This is flock, not the package filelock, which acts at each fork of a process that holds a lock: the
    supervisor forks the training process, which closes the descriptor itself.
    """
    root.mkdir(parents=True, exist_ok=True, mode=0o700)
    descriptor = os.open(root / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True
    finally:
        os.close(descriptor)
