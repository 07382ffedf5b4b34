"""What a launcher is: the agent's only way to start work and to learn of its end.

The agent's core decides what runs (legs from the service, flow runs from Prefect), and says so to both. A
launcher decides how it runs: as forks of a warm interpreter, in containers, as pods.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import signal
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from determined.common.wire.legs import ExitKind
from determined_deployments.agent.config import AgentConfig

if TYPE_CHECKING:
    from determined.common.wire.agents import ContainerRights, Slot
    from determined.common.wire.legs import LegSpec

Kind = Literal["leg", "flow_run", "errand"]


class LaunchError(Exception):
    """The job was not started, and nothing of it is left. The message says why."""


class Unusable(Exception):
    """The launcher can start nothing on this machine as it is set up. The message says what to change."""


@dataclass(frozen=True)
class Call:
    """``module:function(argument)`` in an interpreter with our packages; it returns the exit code.

    ``argument`` is JSON. Paths in it are below :meth:`Launcher.work_dir`, or of the cluster's checkpoint
    storage. ``python -m determined_deployments.agent.launchers.call`` makes the call in a separate process.
    """

    function: str
    argument: dict[str, Any]


@dataclass(frozen=True)
class JobCommand:
    """A program that begins in a separate empty directory. ``env`` is added to the launcher's."""

    argv: list[str]
    env: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Job:
    """The job to start. ``id`` is unique within the kind, and fit for a file's name.

    leg: the supervisor of an allocation, or of one node of a gang (``id``: ``LegSpec.name``; several nodes of
        one gang may be one agent's). :attr:`leg` is the service's order, for launchers that prepare
        something for the code, or take resources, an image or an environment from it; the program's argument
        has it, too. The supervisor keeps ``leg.json`` in the allocation's directory, below
        :meth:`Launcher.work_dir`, and removes it after its report.
    flow_run: runs a Prefect flow run (``id``).
    errand: a call that the agent makes for itself and soon waits for. It is not adopted, and may run on the
        agent's machine whatever the launcher does with other jobs.

    ``note`` is JSON that :meth:`Launcher.adopt` gives back.
    """

    kind: Kind
    id: str
    program: Call | JobCommand
    note: dict[str, Any] = field(default_factory=dict)
    leg: LegSpec | None = None


@dataclass(eq=False)
class Running:
    """A job that was started or adopted. Launchers add in a subclass what they need to find it.

    ``identifier`` names it to people and to Prefect: ``host:pid``, a container's or a pod's name.
    """

    kind: Kind
    id: str
    identifier: str
    note: dict[str, Any]


@dataclass(frozen=True)
class Exit:
    """How a job ended: an exit code, or the signal that killed it. Neither is set when nobody can know the
    end.

    Code 0 of a leg means that its supervisor has reported the end; after any other the agent does, with
    ``kind`` and ``reason``. Kind INFRASTRUCTURE: the platform lost the leg (a node that is gone, an
    eviction, a supervisor that died), and the leg is started again without counting. EXITED: the training
    code caused the end, such as by more memory than its limit allows. FAILED_TO_START: another try cannot
    help, such as with an image that does not exist. UNPLACED: the leg never began, because nowhere was room
    for it; it goes back to the queue, with ``reason``. ``reason``: in words for the user; None: the launcher
    knows nothing but that the leg's supervisor is gone.
    """

    code: int | None = None
    signal: int | None = None
    kind: ExitKind = ExitKind.INFRASTRUCTURE
    reason: str | None = None

    @classmethod
    def of_status(cls, status: int | None) -> Exit:
        """From what ``waitpid`` gives."""
        if status is None:
            return cls()
        code = os.waitstatus_to_exitcode(status)
        return cls(code=code) if code >= 0 else cls(signal=-code)

    @property
    def in_order(self) -> bool:
        return self.code == 0

    @property
    def number(self) -> int:
        """As Python's subprocess gives it; 1 when it is not known."""
        if self.signal is not None:
            return -self.signal
        return 1 if self.code is None else self.code

    def __str__(self) -> str:
        if self.signal is not None:
            words = f"signal {self.signal}"
        else:
            words = f"exit code {'unknown' if self.code is None else self.code}"
        return words if self.reason is None else f"{words}: {self.reason}"


class Launcher(ABC):
    """Starts jobs and learns of their ends. The contract; :mod:`testing` has the tests of it.

    One launcher lives as long as its agent process, and is used on the agent's event loop only. The order
    of calls::

        async with Launcher(config, fetch) as launcher:
            adopt()                     once, before any start()
            ready()                     before the agent offers its slots
            work_dir(kind, id)          at any time
            start(job)                  any number of jobs at a time
            wait(running)               once for each Running, from when the core has it
            signal(running, number)     any number of times, also when the job has ended
            ring(running)               a leg's; likewise
            slots()                     at any time after ready(), and when changed is set
            waits_for(running)          of a leg; likewise
            leaving(running)            likewise
            machine_of(running)         likewise
            clean_up(running)           once or again, after wait() returned and the end is reported

    **Who owns what.** The core knows which jobs are wanted, holds each Running, reports ends to the service
    and to Prefect, and starts no second job of one kind and id before clean_up() of the first returned. The
    launcher owns whatever the job runs in, and every record that it needs to find it again.

    **Jobs outlive the agent.** Leaving the block ends what the launcher started for itself, but no job: the
    core ends jobs by signals first, if it wants that. When the agent is killed, jobs go on, report by
    themselves, and the next agent's adopt() returns them.

    **No shared file system.** The core hands over the job's program and reads nothing where jobs run. Code,
    checkpoints, logs and files of a leg pass between its supervisor and the service or the storage. Where
    jobs see the agent's ``work_dir``, they use that; else the launcher gives each job a directory
    (:meth:`work_dir`), and brings the call there.

    **Entering.** To `det exec` the way into a task leads through its supervisor: it is rung, asks the
    service who wants to come in, opens a port and starts what was asked for beside the training process.
    So a launcher rings, and enters nothing itself; the service must reach the port.

    **Records.** What adopt() needs is kept before the job does anything that must not be done twice: a
    container's name and labels are set when it is created and before it is started; a leg's supervisor
    writes its own record under the allocation's lock. A start() that the agent's death cut short leads to a
    job that adopt() finds, or to one that does nothing. The record stays until clean_up(): an end that was
    not reported when the agent died is an end that the next agent learns of.

    **Twice.** A job that runs unknown to this agent may be started again (the service repeats its orders).
    Launchers need not notice: legs are guarded by their lock, flow runs by the service.

    **Faults.** start() raises LaunchError. Any other exception from any method is a fault of the launcher
    and is logged. What a launcher depends on (a daemon, an API server) may be away: it tries again by
    itself, in start() for seconds, in wait() for ever.
    """

    worker_type: ClassVar[str]
    """The type of the work pool in Prefect, and of the worker that serves it. The agent tells it to the
    service when it registers."""

    worker: ClassVar[str]
    """``module:Class``: what :meth:`worker_class` imports."""

    limits_legs: ClassVar[bool] = False
    """Whether what legs run in holds the settings ``limits``; else their supervisors see to it."""

    keeps_legs: ClassVar[bool] = False
    """Whether legs go on when the agent is told to end, for the next one: they run on other machines."""

    def __init__(self, config: AgentConfig, fetch: Callable[[str], Awaitable[bytes]]) -> None:
        """``fetch`` gets the archive of a model definition by its hash; raises APIException."""
        self.config = config
        self.fetch = fetch
        self.changed = asyncio.Event()
        """To be set when :meth:`slots`, :meth:`waits_for`, :meth:`leaving` or :meth:`machine_of` answers
        otherwise than before. The core clears it and asks all."""

    @classmethod
    def worker_class(cls) -> Any:
        """Prefect's side of ``worker_type``, with the variables that deployments may set: a subclass of
        ``determined_deployments.agent.worker.AgentWorker``. Imports Prefect, which takes a second; called in
        a thread.
        """
        module, _, name = cls.worker.partition(":")
        return getattr(importlib.import_module(module), name)

    def lacks(self) -> dict[str, str]:
        """Programs of some kinds of tasks that are missing where its jobs run, each with what installs it
        (:class:`~determined.common.wire.agents.Registration`). Empty: they are there, or come with images."""
        return {}

    def missing_programs(self) -> dict[str, str]:
        """The programs among :meth:`lacks`, looked for anew; quick, as it is called once a minute."""
        return {}

    def work_dir(self, kind: Kind, id_: str) -> Path:
        """The directory for a job's files, by the path that the job knows it under. Two jobs may have the
        same one; a second job of the same kind and id has."""
        return self.config.work_dir

    def slots(self) -> list[Slot]:
        """What legs can have now, from ready() on. A slot that drains gets no new work, and what runs there
        goes on; a slot that is gone is left out. What runs there, too, goes on until wait() returns."""
        return self.config.devices()

    def waits_for(self, running: Running) -> str | None:
        """Why a leg that start() accepted does not run yet, in words for the user, such as "0/3 nodes are
        available: insufficient nvidia.com/gpu". None: it runs, has ended, or is just being started."""
        return None

    def leaving(self, running: Running) -> str | None:
        """Why the machine under a leg goes away, in words for the user, such as "node n1 is drained". The
        service then has the leg store a checkpoint and go on elsewhere, without waiting for a SIGTERM. None:
        nobody knows that it goes."""
        return None

    def machine_of(self, running: Running) -> str | None:
        """The machine that its cluster chose for a leg, which may be another one than that of the leg's
        slots. None: none is chosen yet, or the launcher starts legs on the machine of their slots."""
        return None

    @property
    def grace_seconds(self) -> float | None:
        """How long a leg goes on after the SIGTERM to its supervisor, which is a notice then. None: the leg
        ends at once."""
        return self.config.grace_seconds

    def rights(self) -> ContainerRights | None:
        """What its containers get, for the service, which refuses at submission what no agent of a pool
        gives. None: jobs run in no containers, or the launcher does not look at ``security.containers``."""
        return None

    async def __aenter__(self) -> Self:
        """Raises Unusable: then the agent ends, and says so."""
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Ends what the launcher runs for itself. Jobs go on."""
        return

    async def ready(self) -> None:
        """Returns when a start() would not wait for the launcher's own preparations."""
        return

    @abstractmethod
    async def adopt(self) -> list[Running]:
        """The legs and flow runs that earlier agents started with this ``work_dir`` and nobody cleaned up,
        whether they still run or not. Removes scratch that belongs to none of them."""

    @abstractmethod
    async def start(self, job: Job) -> Running:
        """Starts the job. After LaunchError it does not run; cancelled, it may.

        A job that is signalled from now on gets the signal, even if its program has not begun: then it may
        die of it.
        """

    @abstractmethod
    async def wait(self, running: Running) -> Exit:
        """Returns when the job has ended; a leg, when all that it started has ended, too.

        The exit code of an adopted leg may be lost: then a leg whose record is gone counts as ended in
        good order, with code 0. A leg's second supervisor, which found the allocation taken, counts as code
        0, too. May be cancelled, which does nothing to the job.
        """

    @abstractmethod
    async def signal(self, running: Running, number: signal.Signals) -> None:
        """Sends the signal to the job's first process; nothing if it has ended.

        SIGUSR1 (end the training process, then report) and SIGTERM (likewise, because the machine stops)
        are handled by supervisors. SIGKILL ends the job and its process group, or its container. Returns
        without waiting for any effect.
        """

    @abstractmethod
    async def ring(self, running: Running) -> bool:
        """Has a leg's supervisor ask the service whether its door is wanted. Where it runs, ``python -m
        determined_tasks.bell DIRECTORY`` rings the allocation's directory. False: nobody listens there (yet,
        or any more). The core rings again while the door is wanted."""

    @abstractmethod
    async def clean_up(self, running: Running) -> None:
        """Removes the record, and the scratch that the job did not remove itself: its directories, its
        container. A leg with code 0 has removed what it did not mean to keep (``debug: true``)."""
