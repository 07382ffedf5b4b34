"""One leg of a task: from the launch order to the reported exit.

The supervisor is a process by itself, independent of the agent: when the agent dies it goes on, ships the
logs and reports the exit. What the training process runs in is the carrier's part
(:mod:`determined_tasks.carrier`). Two signals end the training process at once: KILL_SIGNAL is the service's
order, SIGTERM means that this machine or its agent is stopped, which is not the training code's fault. Where
the machine stays for a while after it, SIGTERM is a notice (:mod:`determined_tasks.going_away`).
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from determined.common import unsent
from determined.common.api import Session, errors
from determined.common.backoff import Backoff
from determined.common.forking import process as forked
from determined.common.wire import paths
from determined.common.wire.legs import ExitKind, LegSpec, Port
from determined_tasks import (
    bell,
    context_dir,
    exit_reason,
    gating,
    ports,
    restore_point,
    returning,
    start_ids,
    supervision,
    task_environment,
)
from determined_tasks.carrier import Carrier, NotStarted
from determined_tasks.context_dir import ModelDefinitionError
from determined_tasks.entrypoint import EntrypointError
from determined_tasks.exit_reason import LegResult
from determined_tasks.going_away import GoingAway
from determined_tasks.identity import IdentityError
from determined_tasks.leg_reporter import LegReporter
from determined_tasks.process_carrier import ForkOptions, ProcessCarrier
from determined_tasks.supervision import KILL_SIGNAL, LegRecord, heeding, lock
from determined_tasks.task_environment import AgentSide

if TYPE_CHECKING:
    from determined_tasks.gates import Gates

logger = logging.getLogger(__name__)

SPOOL = "logs.spool"
PORTS = "ports.json"
"""The ports that were reserved, for a supervisor that takes over."""

# About a minute; then the leg is given back to be started again.
FETCH_TRIES = 10
FETCH_RETRY_SECONDS = (0.2, 20.0)

MakeCarrier = Callable[[LegSpec, AgentSide, Path, LegReporter], Carrier]


def run_leg(
    leg: LegSpec,
    *,
    work_dir: Path,
    place: AgentSide | None = None,
    fork: ForkOptions | None = None,
) -> LegResult:
    """Runs the leg to its end, as processes of this machine.

    Reports to the service that it runs, its logs and its exit. Without ``place`` the service is the
    one named by ``DET_MASTER`` and ``DET_AGENT_TOKEN``. Without ``fork`` the training process is
    always a program, and this may be called in a process with other threads, which no agent signals.

    A failure of the leg is in the result, not raised. An exception that interrupts it
    (Ctrl-C, a cancelled flow) kills the training process, is reported as ``infrastructure`` and
    raised again.
    """
    where = place or AgentSide(
        work_dir=work_dir,
        master=os.environ["DET_MASTER"],
        token=leg.supervisor_token or os.environ["DET_AGENT_TOKEN"],
        agent_id=f"prefect-worker@{socket.gethostname()}",
        shares_packages=False,
    )

    try:
        return _run(leg, where, partial(ProcessCarrier, fork=fork), has_agent=fork is not None)
    except OSError as error:
        # A full or read-only disk: not even the records of the leg can be kept.
        result = exit_reason.infrastructure(f"{where.agent_id} cannot run the leg: {error}")
        root = context_dir.allocation_dir(where.work_dir, leg.name)
        with where.session() as service:
            LegReporter(service, leg, where.agent_id, root / SPOOL, _nothing).finish(result)
        return result


def supervise(order: Mapping[str, Any]) -> int:
    """Entry point for launchers: a fresh fork becomes a leg's supervisor.

    ``order``: ``spec`` (JSON of a LegSpec), ``place`` (arguments of :class:`AgentSide`), and for processes
    ``base_path`` and ``learn_into`` (a path or None), or for containers ``container`` (arguments of
    ContainerSettings). Or ``allocation``: the directory of a leg whose supervisor is gone, and ``stop``: the
    signal that it was to get, if any. Returns the exit code: 0 when the leg's exit is reported.
    """
    assert threading.active_count() == 1, "a fork server must not start threads"
    forked.set_title("leg")
    stop = order.get("stop")
    if "allocation" in order:
        order = orjson.loads(Path(order["allocation"], supervision.ORDER).read_bytes())
    spec, place = LegSpec.from_json(order["spec"]), AgentSide.from_json(order["place"])
    if "container" in order:
        from determined_tasks.containers.carrier import ContainerCarrier

        _run(spec, place, partial(ContainerCarrier, order=order), stop=stop)
        return 0
    forked.become_subreaper()
    learn_into = order.get("learn_into")
    fork = ForkOptions(order["base_path"], Path(learn_into) if learn_into else None)
    run_leg(spec, work_dir=place.work_dir, place=place, fork=fork)
    return 0


def _run(
    spec: LegSpec,
    place: AgentSide,
    make: MakeCarrier,
    *,
    has_agent: bool = True,
    stop: int | None = None,
) -> LegResult:
    """Raises OSError when the leg's records cannot be kept."""
    root = context_dir.allocation_dir(place.work_dir, spec.name)
    with lock(root) as ours:
        if not ours:
            return exit_reason.infrastructure("another process runs this allocation")
        # Of an earlier attempt, whose supervisor is gone.
        before = LegRecord.read(root)
        if before is not None:
            before.clear_up()
        with (
            place.session() as service,
            place.session() as reports,
        ):
            return Leg(spec, place, root, make, service, reports, has_agent).run(stop)


def fetch_model_def(service: Session, model_def_hash: str) -> bytes:
    """The archive, after some tries. Raises APIException."""
    path = paths.MODEL_DEFINITION.format(hash=model_def_hash)
    backoff = Backoff(*FETCH_RETRY_SECONDS)
    for _ in range(FETCH_TRIES - 1):
        try:
            return service.request("GET", path).content
        except errors.BadRequestException:
            raise
        except errors.APIException as error:
            logger.info("cannot fetch the model definition yet, trying again: %s", error)
        time.sleep(backoff.next_delay())
    return service.request("GET", path).content


def _nothing(_: errors.BadRequestException) -> None:
    return


class Leg:
    """The course of one leg, over any carrier.

    ``service``: a connection for this thread, ``reports``: for the reporter's. ``has_agent``: an agent
    signals this process, and rings it when somebody enters the task.
    """

    def __init__(
        self,
        spec: LegSpec,
        place: AgentSide,
        root: Path,
        make: MakeCarrier,
        service: Session,
        reports: Session,
        has_agent: bool,
    ) -> None:
        self.spec = spec
        self.place = place
        self.root = root
        self.has_agent = has_agent
        self.service = service
        self.stopped: LegResult | None = None
        """The result once the leg was ended from outside; None while it may run."""
        self.ports = ports.Reserved([])
        self.address = ""
        self._serving: list[ports.PortWatch | Gates] = []
        self._doors: Any = None
        self._going: GoingAway | None = None
        self.start_id = start_ids.of_leg(root)
        self.reporter = LegReporter(
            reports,
            spec,
            place.agent_id,
            root / SPOOL,
            self._refused,
            self.start_id,
            os.environ.get(start_ids.MACHINE),
        )
        self.carrier = make(spec, place, root, self.reporter)

    def run(self, stop: int | None = None) -> LegResult:
        """``stop``: a signal that came before there was this process."""
        self.carrier.record().write(self.root)
        result = exit_reason.infrastructure("the supervisor was interrupted")
        try:
            with heeding(self._heed) if self.has_agent else contextlib.nullcontext():
                if stop is not None:
                    self._heed(stop)
                result = self._run()
        except BaseException:
            # Else the next supervisor follows the training process.
            if not self.carrier.outlives:
                self._report(result)
            raise
        self._report(result)
        return result

    def stop(self, result: LegResult) -> None:
        """Kills the training process; safe in a signal handler and from another thread."""
        if self.stopped is None:
            self.stopped = result
        self.carrier.kill()

    def _heed(self, number: int) -> None:
        if number == KILL_SIGNAL:
            self.stop(LegResult(None, signal.SIGKILL, ExitKind.EXITED, "as asked for"))
        elif self._going is not None:
            self._going.notice()
        else:
            self.stop(exit_reason.infrastructure("stopped together with its agent"))

    def _refused(self, refusal: errors.BadRequestException) -> None:
        if isinstance(refusal, errors.ConflictException | errors.NotFoundException):
            words = "the allocation had ended before its process ran"
            self.stop(exit_reason.infrastructure(words))
        else:
            self.stop(exit_reason.failed_to_start(str(refusal)))

    def _run(self) -> LegResult:
        try:
            taken_over = self.carrier.found()
            if not taken_over:
                self._begin()
        except NotStarted as error:
            result = error.result
        except (EntrypointError, ModelDefinitionError, IdentityError) as error:
            result = exit_reason.failed_to_start(str(error))
        except ports.PortsError as error:
            result = exit_reason.infrastructure(str(error))
        except errors.NotFoundException as error:
            result = exit_reason.failed_to_start(f"the model definition cannot be read: {error}")
        except (OSError, errors.APIException) as error:
            result = exit_reason.infrastructure(f"the leg cannot be prepared: {error}")
        else:
            result = self._follow(taken_over)
        return self.stopped or result

    def _begin(self) -> None:
        """Prepares and starts the training process. Raises as :class:`Carrier`, and PortsError."""
        carrier, run_dir = self.carrier, self.root / context_dir.RUN_DIR
        start_ids.claim(self.service, self.spec, self.start_id)
        carrier.prepare(lambda hash_: fetch_model_def(self.service, hash_))
        with carrier.files():
            chosen = restore_point.choose(
                self.spec,
                self.service,
                self.reporter.say,
                lambda: self.stopped is not None,
                run_dir,
            )
            if isinstance(chosen, LegResult):
                raise NotStarted(chosen)
            self.spec = chosen
            task_environment.write_info_files(self.spec, carrier.inside, run_dir)
        if returning.wanted(self.spec):
            returning.remember(self.root, self.root / context_dir.WORKDIR)
        self._reserve_ports()
        if self.stopped is not None:
            raise NotStarted(self.stopped)
        carrier.start(self.spec, self.ports.environment(carrier.listen_host))

    def _follow(self, taken_over: bool) -> LegResult:
        """From the start of the training process, after which threads may begin, to its end."""
        if self.has_agent:
            bell.listen(self.root, self._rung)
        seconds = self.place.grace_seconds
        if self.has_agent and seconds is not None:
            # From now on there may be something to store.
            self._going = GoingAway(
                self.spec, self.place, self.start_id, self.carrier, self.stop, seconds
            )
        if taken_over:
            self._read_ports()
            # The supervisor before this one may have had its door open.
            bell.ring(self.root)
        self._report_start()
        self.carrier.record().write(self.root)
        result = self.carrier.wait()
        if self._going is not None:
            self._going.end()
            result = self._going.judged(result)
        if self.stopped is None and (lost := unsent.found(self.root / context_dir.RUN_DIR)):
            self.reporter.say(_reports_lost(lost), "WARNING")
        for one in self._serving:
            one.end()
        return result

    def _reserve_ports(self) -> None:
        """Those that people reach through the service. Raises PortsError."""
        self.ports = ports.reserve(ports.ports_of(self.spec))
        if not self.ports.ports:
            return
        self.address = ports.own_address(self.place.master)
        kept = {"ports": [port.to_json() for port in self.ports.ports], "address": self.address}
        supervision.write_private(self.root / PORTS, orjson.dumps(kept))

    def _read_ports(self) -> None:
        """Those that the earlier supervisor has reserved: the training process keeps its ports."""
        with contextlib.suppress(FileNotFoundError):
            kept = orjson.loads((self.root / PORTS).read_bytes())
            # Those of the release before have published theirs, and stay as they were reported.
            if isinstance(kept, dict):
                self.ports = ports.reserve([Port.from_json(one) for one in kept["ports"]])
                self.address = kept["address"]

    def _report_start(self) -> None:
        """Reports the process as running, and then when its ports can be reached."""
        found, listening = self.ports.ports, self.carrier.listening()
        shown, address = found, listening.address if found else ""
        gates = gating.gates_before(
            found, self.address, address, self.place.token, self.spec.allocation_id
        )
        if gates is not None:
            self._serving.append(gates)
            shown, address = gates.ports, self.address
        self.reporter.start(self.service, listening.pid, shown, address)
        if not found:
            return
        # Nobody waits for the thread that uses it.
        link, pids = self.place.session(), listening.pids
        watch = ports.PortWatch(
            found,
            listening.address,
            lambda state: self.reporter.port(link, state),
            self.reporter.say,
            None if pids is None else lambda: pids,
        )
        self._serving.append(watch)
        watch.start()

    def _rung(self) -> None:
        # Only now: most legs are never entered.
        from determined_tasks import doors

        if self._doors is None:
            self._doors = doors.Doors(self.spec, self.place, self.carrier.enter, self.reporter.say)
        self._doors.rung()

    def _report(self, result: LegResult) -> None:
        """Reports the end, and removes the leg."""
        self.carrier.end()
        if self.stopped is not None:
            self.reporter.say(str(result), "INFO")
        elif result.exit_code != 0:
            self.reporter.say(str(result), "ERROR")
        if self.carrier.has_run:
            # Before the exit is reported: clients that hear of it must find the files.
            workdir = self.root / context_dir.WORKDIR
            reader, say = self.carrier.reader, self.reporter.say
            returning.send(self.root, workdir, reader, self.spec, self.service, say)
        self.reporter.finish(result)
        self._clean_up()

    def _clean_up(self) -> None:
        keep = bool(self.spec.config.get("debug"))
        self.carrier.clean_up(keep)
        if not keep:
            context_dir.remove(self.root)
            return
        # The record last: without it nobody looks here again.
        for name in (PORTS, returning.RECORD, supervision.RECORD):
            (self.root / name).unlink(missing_ok=True)


def _reports_lost(pids: list[int]) -> str:
    one = f"process {pids[0]}" if len(pids) == 1 else f"processes {', '.join(map(str, pids))}"
    return (
        f"{one} ended by os._exit() or a signal before its last reports were sent, which are lost; "
        "let the block of core.init() end first, or use sys.exit()"
    )
