"""The limits of a leg on its machine, and their enforcement without control groups.

Without them the kernel counts processes by account only, and memory not at all: a thread of the supervisor
looks at it.
"""

from __future__ import annotations

import contextlib
import os
import resource
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

PROCESSES = 16_384
"""The number of processes and threads that a leg may have, unless the agent's settings say otherwise."""
OPEN_FILES = 65_536
MEMORY_SHARE = 0.9
OOM_SCORE = 500
"""When the machine's memory runs out, the kernel ends processes of tasks before those of the agent."""
LOOK_SECONDS = 1.0
_PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True)
class Limits:
    """The agent's settings ``limits``, for one leg: ``processes`` with their threads and bytes of ``memory``
    all together (None: no limit), ``open_files`` of each process, ``cpus`` that all of them compute on at
    once (None: as many as are free). ``homes``: the folders in which each leg gets a control group
    (:mod:`leg_groups`); without any, other means hold as far as they go, and none holds processor time.
    """

    processes: int = PROCESSES
    memory: int | None = None
    open_files: int = OPEN_FILES
    homes: tuple[str, ...] = ()
    cpus: float | None = None

    @classmethod
    def from_json(cls, given: Mapping[str, Any]) -> Limits:
        return cls(**{**given, "homes": tuple(given.get("homes") or ())})

    @property
    def memory_in_words(self) -> str:
        size = "" if self.memory is None else f" of {self.memory / (1 << 20):.0f} MiB"
        return (
            f"out of memory, by the limit{size} of each leg (limits.memory of the agent's settings)"
        )

    @property
    def processes_in_words(self) -> str:
        return (
            f"too many processes: a leg has {self.processes} with their threads at most (limits.processes of"
            " the agent's settings)"
        )


def default_memory() -> int:
    """Bytes of a leg where the settings give none: one that takes more would end others."""
    return int(os.sysconf("SC_PHYS_PAGES") * _PAGE * MEMORY_SHARE)


def restrict(limits: Limits, uid: int) -> None:
    """Apply the limits to this process and its children, before it becomes the account ``uid``."""
    _lower(resource.RLIMIT_NOFILE, limits.open_files)
    if not limits.homes and uid != 0:
        # It counts all processes of the account, and does not hold root.
        _lower(resource.RLIMIT_NPROC, limits.processes)
    score = Path("/proc/self/oom_score_adj")
    with contextlib.suppress(OSError, ValueError):
        score.write_text(str(max(OOM_SCORE, int(score.read_text()))))


def _lower(kind: int, most: int) -> None:
    def lowered(value: int) -> int:
        return most if value == resource.RLIM_INFINITY else min(value, most)

    soft, hard = resource.getrlimit(kind)
    resource.setrlimit(kind, (lowered(soft), lowered(hard)))


def has_all_processes(limits: Limits, uid: int) -> bool:
    """True if the account has about as many processes and threads as it may, without a control group."""
    if limits.homes or uid == 0:
        return False
    count = 0
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.uids().real == uid:
                count += process.num_threads()
    return count >= limits.processes * 0.95


class MemoryWatch(threading.Thread):
    """Ends a leg whose processes hold more memory than it may, where no control group does it.

    ``end`` is called once, in this thread.
    """

    def __init__(self, most: int, end: Callable[[], None]) -> None:
        super().__init__(name="memory-watch", daemon=True)
        self._most = most
        self._end = end
        self._over = threading.Event()

    def run(self) -> None:
        while not self._over.wait(LOOK_SECONDS):
            if self._exceeds():
                self._end()
                return

    def stop(self) -> None:
        self._over.set()

    def _exceeds(self) -> bool:
        machine = psutil.virtual_memory()
        if machine.total - machine.available <= self._most:
            # All processes of the machine together use less.
            return False
        pids = [child.pid for child in psutil.Process().children(recursive=True)]
        # What processes share is in this sum once for each of them.
        if sum(map(_resident, pids)) <= self._most:
            return False
        return sum(map(_share, pids)) > self._most


def _resident(pid: int) -> int:
    with contextlib.suppress(OSError, IndexError, ValueError):
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE
    return 0


def _share(pid: int) -> int:
    """The process's memory in bytes; of shared memory it counts its share."""
    with contextlib.suppress(OSError, IndexError, ValueError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) << 10
    return _resident(pid)
