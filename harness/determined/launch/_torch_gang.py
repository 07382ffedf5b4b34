"""The workers of a torch.distributed training on this machine, and how all of them meet.

The launcher, not rank 0, serves torch's store, as torchrun's does: it holds the port before any worker
starts, so no other trial on the machine can get it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from determined._info import get_cluster_info
from determined.common.forking import safety
from determined.launch import _workers
from determined.launch._fail import fail
from determined.launch._gang import Gang
from determined.launch._meeting import Meeting
from determined.launch._workers import Program, Worker


def machines() -> int:
    """How many the trial has."""
    info = get_cluster_info()
    return len(info.container_addrs) if info is not None else 1


def share_threads(count: int) -> None:
    """``OMP_NUM_THREADS`` of the whole trial (every core, where it is not set) for each of ``count``."""
    threads = os.environ.get("OMP_NUM_THREADS") or str(os.cpu_count() or 1)
    if threads.isdecimal():
        os.environ["OMP_NUM_THREADS"] = str(max(int(threads) // count, 1))


def run(count: int, command: list[str], program: Program | None) -> int:
    """``command``, which is ``program`` where this interpreter can run it, in ``count`` processes on this
    machine; the exit code. Raises SystemExit when it cannot be started."""
    # Before torch and its libraries are imported: they read it then.
    share_threads(count)
    meeting = Meeting.arrange(count)
    reason = "it is not Python" if program is None else _workers.why_not_fork(program)

    def start() -> Sequence[Worker]:
        if program is None or reason is not None:
            try:
                return [
                    _workers.execute(
                        meeting.first_rank + local, command, meeting.environment(local)
                    )
                    for local in range(count)
                ]
            except OSError as error:
                fail(f"{command[0]}: {error.strerror}")
        safety.settle()
        # Without the directory that `-m` puts in front: the program has its own.
        base_path = list(sys.path) if sys.flags.safe_path else sys.path[1:]
        return [
            _workers.fork(
                meeting.first_rank + local, program, meeting.environment(local), base_path
            )
            for local in range(count)
        ]

    sys.stdout.flush()
    sys.stderr.flush()
    gang = Gang(start, meeting.machines)
    with meeting.store():
        return gang.wait()
