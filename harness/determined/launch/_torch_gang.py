"""Starts the workers of a torch.distributed training on this machine and lets all workers meet.

The launcher, not rank 0, serves torch's store, as torchrun's does: it holds the port before any worker
starts, so no other trial on the machine can get it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from determined._info import get_cluster_info
from determined.common.api.errors import APIException
from determined.common.forking import python, safety
from determined.constants import COMM_PORT_VARIABLE
from determined.launch import _workers
from determined.launch._fail import fail
from determined.launch._gang import Gang
from determined.launch._meeting import Meeting
from determined.launch._workers import Program, Worker


def machines() -> int:
    """The number of machines of the trial."""
    info = get_cluster_info()
    return len(info.container_addrs) if info is not None else 1


def arrange(count: int) -> Meeting:
    """The meeting point of ``count`` workers on this machine and of those on the trial's other machines.
    Raises SystemExit when the others do not come.
    """
    info = get_cluster_info()
    if info is None or machines() == 1:
        return Meeting.arrange(count)
    try:
        return Meeting.across(count, info)
    except (APIException, OSError) as error:  # TimeoutError and ConnectionError are OSErrors
        fail(f"the launchers of the trial's machines did not meet: {error}")


def share_threads(count: int) -> None:
    """Each worker's share of the trial's ``OMP_NUM_THREADS`` (by default every core)."""
    threads = os.environ.get("OMP_NUM_THREADS") or str(os.cpu_count() or 1)
    if threads.isdecimal():
        os.environ["OMP_NUM_THREADS"] = str(max(int(threads) // count, 1))


def run(count: int, command: list[str], program: Program | None) -> int:
    """Run ``command`` in ``count`` processes on this machine. ``program`` is the same command if this
    interpreter can run it. Returns how the processes ended (:meth:`Gang.wait`). Raises SystemExit when the
    command cannot be started.
    """
    # Without the directory that `-m` puts in front: the program gets its own directory, and none of the
    # launcher's imports may come from there.
    base_path = list(sys.path) if sys.flags.safe_path else sys.path[1:]
    sys.path[:] = base_path
    # Before torch and its libraries are imported: they read it then.
    share_threads(count)
    meeting = arrange(count)
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
        # What the agent wants to know of a program at its end: the launcher itself imports little.
        at_end = python.take_end()
        return [
            _workers.fork(
                meeting.first_rank + local,
                program,
                meeting.environment(local),
                base_path,
                at_end if local == 0 else None,
            )
            for local in range(count)
        ]

    sys.stdout.flush()
    sys.stderr.flush()
    gang = Gang(start, meeting.machines)
    with meeting.store():
        return gang.wait()


def torchrun(count: int, options: list[str], command: list[str]) -> NoReturn:
    """Replace this process by torchrun, which starts ``command`` in ``count`` processes."""
    share_threads(count)
    meeting = arrange(count)
    os.environ["USE_TORCH_DISTRIBUTED"] = "True"
    os.environ["DET_CHIEF_IP"] = meeting.chief
    os.environ[COMM_PORT_VARIABLE] = str(meeting.comm_port)
    if meeting.interface is not None:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", meeting.interface)
    # Later options win: the user's come last.
    launcher = [
        f"--nnodes={meeting.machine_count}",
        f"--node_rank={meeting.machine}",
        f"--nproc_per_node={count}",
        "--max_restarts=0",
        f"--master_addr={meeting.chief}",
        f"--master_port={meeting.store_port}",
        "--no_python",
    ]
    worker = [sys.executable, "-m", "determined.launch.wrap_rank", "RANK", *command]
    sys.stdout.flush()
    sys.stderr.flush()
    # The sockets that held the ports end with this program.
    launcher = [sys.executable, "-m", "torch.distributed.run", *launcher]
    os.execv(sys.executable, [*launcher, *options, *worker])
