"""What carries the training process of a leg: a process of this machine, or a container.

The course of a leg is the same over every carrier and stands in :mod:`determined_tasks.leg`. What differs is
behind :class:`Carrier`. A pod needs no carrier: the supervisor runs inside it, over the process kind.
"""

from __future__ import annotations

import contextlib
import os
import socket
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from determined.common.wire.legs import LegSpec
from determined_tasks import compiled_code, context_dir, entrypoint, ports, task_environment
from determined_tasks.exit_reason import LegResult
from determined_tasks.identity import Identity
from determined_tasks.leg_reporter import LegReporter
from determined_tasks.supervision import LegRecord, ProcessName
from determined_tasks.task_environment import AgentSide

Fetch = Callable[[str], bytes]
"""Gets the archive of a model definition by its hash. Raises APIException."""


class NotStarted(Exception):
    """The training process was not started, or was lost. ``result`` is the end of the leg."""

    def __init__(self, result: LegResult) -> None:
        super().__init__(str(result))
        self.result = result


@dataclass(frozen=True)
class Listening:
    """Where the training process listens, as this machine sees it.

    ``pid``: its id on this machine; None: not known. ``pids``: a port counts as the task's when one of these
    processes or of their descendants listens at it; None: whoever listens at ``address``.
    """

    pid: int | None
    address: str
    pids: list[int] | None


class Carrier(ABC):
    """Carries the training process of one leg. The contract; ``tests/programs/legs/contract.py`` tests it.

    A carrier lives as long as its supervisor. The order of calls::

        record()                     any number of times; first of all, and again after start()
        found()                      once
        prepare(fetch)               once, if found() returned False; the same holds for the next two
        with files(): ...            once
        start(spec, variables)       once
        listening()                  once, after start(), or after found() returned True
        wait()                       once, after listening()
        enter(connection, ...)       any number of times after start() or found(), each in its own thread
        ask_to_end()                 any number of times from listening() on, in a thread
        kill()                       at any time, any number of times, in any thread and in signal handlers
        end()                        once, after the last of the calls above, whatever they raised
        clean_up(keep)               once, after end(), when the exit is reported

    **Who owns what.** The leg owns the allocation's directory, its lock and ``leg.json``, the reporter, the
    ports, the bell, and the decision how a stopped leg ended. The carrier owns the training process, all
    that this starts, and everything that is made for it elsewhere: a temporary directory, a control group, a
    container. Files that the carrier keeps in the allocation's directory for itself are there until
    clean_up().

    **What survives kill -9 of the supervisor.** With :attr:`outlives`, the training process goes on, its
    output waits, and found() of the next supervisor returns True: no line is lost, none is shipped twice.
    Without it the training process ends with its supervisor, and record() names what may be left: the agent,
    or the next supervisor, ends that before anything starts again. Either way the same leg never runs twice
    at the same time.

    **Threads.** A carrier may fork this process in start(). Until that has returned, the leg starts no
    thread. A carrier that never forks begins the reporter in found(), so that the log has its words at once.

    **Errors.** found(), prepare() and start() raise :class:`NotStarted` with an end in the carrier's own
    words, or EntrypointError, ModelDefinitionError, IdentityError, OSError, APIException. After any of them
    no training process runs. A training process that fails is not an error: wait() returns that.
    """

    outlives: ClassVar[bool]
    """Whether the training process outlives its supervisor."""

    reader: Identity | None = None
    """Who reads the files that come back to the task's owner, after prepare(). None: this process itself."""

    listen_host: str = ports.LOOPBACK
    """The address at which servers of the training process must listen, after prepare()."""

    has_run = False
    """Whether the training process has run, perhaps under an earlier supervisor."""

    def __init__(self, spec: LegSpec, place: AgentSide, root: Path, reporter: LegReporter) -> None:
        """``root``: the allocation's directory. ``reporter`` gets the output and the carrier's own lines."""
        self.spec = spec
        self.place = place
        self.inside = place
        """The place as the training process sees it."""
        self.root = root
        self.reporter = reporter
        self._held = contextlib.ExitStack()
        self._this = ProcessName.of(os.getpid())

    def record(self) -> LegRecord:
        """What ``leg.json`` says of this process and of what may be left when it is killed."""
        assert self._this is not None
        return LegRecord(self.spec.name, self.spec.experiment_id, self._this)

    def found(self) -> bool:
        """Whether the training process that an earlier supervisor started is there, running or ended. If so,
        this supervisor follows it."""
        return False

    @abstractmethod
    def prepare(self, fetch: Fetch) -> None:
        """Lays out ``workdir`` with the model definition and an empty ``run`` in the allocation's directory,
        and gets whatever else start() needs and may take long."""

    @abstractmethod
    def files(self) -> AbstractContextManager[None]:
        """In the block the leg reads the checkpoint to start from, and writes into ``run``. What it has
        written there is the training process' own afterwards."""

    @abstractmethod
    def start(self, spec: LegSpec, variables: Mapping[str, str]) -> None:
        """Starts the training process. ``spec``: with the checkpoint that was chosen; ``variables``: of the
        ports, for its environment. After kill() it may raise NotStarted, and what it starts is killed."""

    @abstractmethod
    def listening(self) -> Listening:
        """Where the training process listens."""

    @abstractmethod
    def wait(self) -> LegResult:
        """Passes the output to the log, in order and each line once, until the training process has ended
        and all that it printed is passed on. Returns exit code or signal, the kind of end, and the reason
        where code or signal do not say it. After kill(), the process has ended, and nobody reads the result.
        """

    @abstractmethod
    def kill(self) -> None:
        """Ends the training process at once, or before it starts. Returns without waiting."""

    @abstractmethod
    def ask_to_end(self) -> None:
        """Sends SIGTERM to the training process, and to what it started in its group, where there are groups.
        Returns without waiting for their end; nothing if it has ended, or a try that failed."""

    @abstractmethod
    def enter(self, connection: socket.socket, variables: Mapping[str, str]) -> None:
        """As :class:`determined_tasks.doors.Enter`: beside the training process, with its account, its
        environment and its limits."""

    def end(self) -> None:
        """Ends whatever of the training process is left. Nothing of it writes after that."""
        return

    @abstractmethod
    def clean_up(self, keep: bool) -> None:
        """Removes what the carrier made. ``keep``: not the files that a user looks at (``debug: true``). The
        leg removes the allocation's directory itself."""

    def _resolved(self, resolve: Callable[..., Identity | None]) -> Identity | None:
        """The account of the training process, as :func:`identity.resolve` finds it. Raises IdentityError."""
        place = self.place
        return resolve(
            self.spec.agent_user,
            place.default_task,
            allow_root=place.allow_root,
            agent_id=place.agent_id,
        )

    def _hold_compiled(self, account: Identity | None, image: str | None = None) -> Path | None:
        """The directory for what this leg compiles, until clean_up(). ``image``: its id."""
        return self._held.enter_context(
            compiled_code.used(
                self.place.work_dir, self.spec, account, self.place.compiled_bytes, image
            )
        )

    def _pending_hook(self, workdir: Path) -> str | None:
        """The startup hook that did not get to its end; None: there is none, or the gang did not meet."""
        run_dir = self.root / context_dir.RUN_DIR
        if not task_environment.has_met(run_dir, self.spec.nodes):
            return None
        return entrypoint.pending_hook(workdir, run_dir)
