"""One leg of a task: from the launch order to the reported exit.

The supervisor is a process of its own, next to the training process and independent of the agent: when
the agent dies it goes on, ships the logs and reports the exit by itself. Two signals end the training
process at once: KILL_SIGNAL is the service's order, SIGTERM means that this machine or its agent
is stopped, which is not the training code's fault.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from determined.common.api import errors
from determined.common.backoff import Backoff
from determined.common.forking import process as forked
from determined.common.wire import paths
from determined.common.wire.legs import AgentUser, ExitKind, LegSpec
from determined_tasks import (
    bell,
    compiled_code,
    context_dir,
    entrypoint,
    exit_reason,
    experiment_dir,
    identity,
    mounts,
    ports,
    process,
    restore_point,
    returning,
    task_environment,
)
from determined_tasks.context_dir import ContextDir, ModelDefinitionError
from determined_tasks.entrypoint import EntrypointError, Start
from determined_tasks.exit_reason import LegResult
from determined_tasks.identity import Identity, IdentityError
from determined_tasks.leg_groups import LegGroup
from determined_tasks.leg_reporter import LegReporter
from determined_tasks.limits import Limits, MemoryWatch, has_all_processes
from determined_tasks.mounts import Mounts, MountsError
from determined_tasks.service_link import ServiceLink
from determined_tasks.streams import Streams
from determined_tasks.supervision import KILL_SIGNAL, LegRecord, ProcessName, heeding, lock
from determined_tasks.task_environment import Place

if TYPE_CHECKING:
    from determined_tasks.gates import Gates

logger = logging.getLogger(__name__)

# After a SIGTERM from outside to all processes, the training process may be gone before this one has
# seen its own.
SIGTERM_GRACE_SECONDS = 0.3

SPOOL = "logs.spool"

# About a minute; then the leg is given back to be started again.
FETCH_TRIES = 10
FETCH_RETRY_SECONDS = (0.2, 20.0)
# Orphans of the training process are reaped this often.
REAP_SECONDS = 5.0
# What has been killed closes its pipes at once; nobody else is waited for.
DRAIN_SECONDS = 2.0


@dataclass(frozen=True)
class ForkOptions:
    """Set when this process is a fresh single-threaded fork that may become the training process.

    ``base_path``: ``sys.path`` for the program, without the script's directory. ``learn_into``: where
    to write which installed modules it imported.
    """

    base_path: list[str]
    learn_into: Path | None = None


def run_leg(
    leg: LegSpec,
    *,
    work_dir: Path,
    place: Place | None = None,
    fork: ForkOptions | None = None,
) -> LegResult:
    """Runs the leg to its end.

    Reports to the service that it runs, its logs and its exit. Without ``place`` the service is the
    one named by ``DET_MASTER`` and ``DET_AGENT_TOKEN``. Without ``fork`` the training process is
    always a program of its own; then this may be called in a process with other threads.

    A failure of the leg is in the result, not raised. An exception that interrupts it
    (Ctrl-C, a cancelled flow) kills the training process, is reported as ``infrastructure`` and
    raised again.
    """
    where = place or Place(
        work_dir=work_dir,
        master=os.environ["DET_MASTER"],
        agent_token=os.environ["DET_AGENT_TOKEN"],
        agent_id=f"prefect-worker@{socket.gethostname()}",
        shares_packages=False,
    )
    root = context_dir.allocation_dir(work_dir, leg.allocation_id)
    with ServiceLink(where.master, where.agent_token) as service:
        try:
            with lock(root) as ours:
                if ours:
                    # Of an earlier attempt, whose supervisor is gone.
                    before = LegRecord.read(root)
                    if before is not None:
                        before.clear_up()
                    with _experiment(leg, where) as experiment:
                        return _Leg(leg, where, root, fork, service, experiment).run()
                return exit_reason.infrastructure("another process runs this allocation")
        except OSError as error:
            # A full or read-only disk: not even the records of the leg can be kept.
            result = exit_reason.infrastructure(f"{where.agent_id} cannot run the leg: {error}")
            LegReporter(service, leg, where.agent_id, root / SPOOL, _nothing).finish(result)
            return result


def fetch_model_def(service: ServiceLink, model_def_hash: str) -> bytes:
    """The archive, after some tries. Raises APIException."""
    path = paths.MODEL_DEFINITION.format(hash=model_def_hash)
    backoff = Backoff(*FETCH_RETRY_SECONDS)
    for _ in range(FETCH_TRIES - 1):
        try:
            return service.get(path)
        except errors.BadRequestException:
            raise
        except errors.APIException as error:
            logger.info("cannot fetch the model definition yet, trying again: %s", error)
        time.sleep(backoff.next_delay())
    return service.get(path)


def _nothing() -> None:
    return


@contextlib.contextmanager
def _experiment(leg: LegSpec, place: Place) -> Iterator[Path | None]:
    """The directory that the trial shares with the others of its experiment, until the leg has ended."""
    if leg.experiment_id is None or leg.trial_id is None or not place.shares_packages:
        yield None
        return
    with experiment_dir.used(place.work_dir, leg.experiment_id, leg.cluster_id) as root:
        yield root


class _Leg:
    def __init__(
        self,
        spec: LegSpec,
        place: Place,
        root: Path,
        fork: ForkOptions | None,
        service: ServiceLink,
        experiment: Path | None,
    ) -> None:
        self.spec = spec
        self.place = place
        self.root = root
        self.fork = fork
        self.service = service
        self.experiment = experiment
        self._stopped: LegResult | None = None
        self.user: process.UserProcess | None = None
        # Only a process of its own has nothing but the leg below it.
        self.limits = place.limits if fork is not None else None
        self.group = LegGroup.of(self.limits or Limits(), spec.allocation_id)
        self.ports = ports.Reserved([])
        self.address = ""
        self.gates: Gates | None = None
        self._doors: Any = None
        self._returns: tuple[Path, Identity | None] | None = None
        self._held = contextlib.ExitStack()
        self._mounts: Mounts | None = None
        self.tmp = context_dir.choose_tmp()
        self.reporter = LegReporter(
            service, spec, place.agent_id, root / SPOOL, self._allocation_ended
        )

    @property
    def stopped(self) -> LegResult | None:
        """The result when somebody ends the leg; None while it may run."""
        return self._stopped

    def run(self) -> LegResult:
        record = self._write_record()
        result = exit_reason.infrastructure("the supervisor was interrupted")
        try:
            with self._stop_on_signals():
                result = self._run(record)
        finally:
            if self.user is not None:
                self.user.kill_rest()
            self._say_why(result)
            if self._returns is not None and self.user is not None:
                # Before the exit is reported: whoever hears of it finds the files.
                with ServiceLink(self.place.master, self.place.agent_token) as link:
                    returning.send(self.root, *self._returns, self.spec, link, self.reporter.say)
            self.reporter.finish(result)
            self._clean_up()
        return result

    def stop(self, result: LegResult) -> None:
        """Kills the training process; safe in a signal handler and from another thread."""
        if self._stopped is None:
            self._stopped = result
        if self.user is not None and self.user.status is None:
            self.user.kill()

    def _allocation_ended(self) -> None:
        self.stop(exit_reason.infrastructure("the allocation had ended before its process ran"))

    @contextlib.contextmanager
    def _stop_on_signals(self) -> Iterator[None]:
        # Elsewhere the process belongs to others (Prefect's engine), who raise in here.
        if self.fork is None:
            yield
            return

        def stop(number: int) -> None:
            if number == KILL_SIGNAL:
                self.stop(LegResult(None, signal.SIGKILL, ExitKind.EXITED, "as asked for"))
            else:
                self.stop(exit_reason.infrastructure("stopped together with its agent"))

        with heeding(stop):
            yield

    def _write_record(self) -> LegRecord:
        this = ProcessName.of(os.getpid())
        assert this is not None
        record = LegRecord(
            self.spec.allocation_id,
            self.spec.experiment_id,
            this,
            tmp=str(self.tmp),
            groups=[str(folder) for folder in self.group.folders],
        )
        record.write(self.root)
        return record

    def _account(self) -> Identity | None:
        """The account of the training process; None: this process's own. Raises IdentityError."""
        place = self.place
        account = identity.resolve(
            self.spec.agent_user,
            place.default_task,
            allow_root=place.allow_root,
            agent_id=place.agent_id,
        )
        if account is not None and self.fork is None:
            # The ids of a process belong to all its threads.
            raise IdentityError(
                f"the task is to run as {account}, which a worker of Prefect's own cannot do: run it on an"
                " agent (python -m determined_deployments.agent)"
            )
        return account

    def _run(self, record: LegRecord) -> LegResult:
        try:
            account = self._account()
            context = context_dir.prepare(
                self.place.work_dir,
                self.spec.allocation_id,
                self.spec.model_def_hash,
                lambda hash_: fetch_model_def(self.service, hash_),
                self.tmp,
                experiment_dir.shared_packages(self.experiment, account)
                if self.experiment is not None
                else None,
            )
            if account is not None:
                # Also for what is spooled beside the account's directories.
                os.umask(identity.UMASK)
                context_dir.hand_over(context, self.place.work_dir, account)
                self._open_storage()
            compiled = self._held.enter_context(
                compiled_code.used(
                    self.place.work_dir, self.spec, account, self.place.compiled_bytes
                )
            )
            with identity.files_of(account):
                chosen = restore_point.choose(
                    self.spec,
                    self.service,
                    self.reporter.say,
                    lambda: self.stopped is not None,
                    context.run_dir,
                )
                if isinstance(chosen, LegResult):
                    return self.stopped or chosen
                self.spec = chosen
                task_environment.write_info_files(self.spec, self.place, context.run_dir)
            if returning.wanted(self.spec):
                returning.remember(self.root, context.workdir)
                self._returns = (context.workdir, account)
            env = task_environment.build(self.spec, self.place, context, account)
            if compiled is not None:
                # What the user or the agent's own environment says comes first.
                env = compiled_code.variables(compiled) | env
            self._mounts = self._find_mounts(context, account)
            workdir = self._work_dir(context, account)
            if workdir != context.workdir:
                env |= {"PWD": str(workdir), "DET_WORKDIR": str(workdir)}
            env.update(self._reserve_ports())
            plan = entrypoint.plan(
                self.spec.entrypoint,
                workdir=workdir,
                env=env,
                user_env=self.spec.user_environment(),
                # A fork of this process has the agents' token somewhere in its memory.
                may_fork=self.fork is not None and account is None and self.spec.nodes == 1,
                packages=context.packages,
                locate=self._mounts.on_machine if self._mounts else None,
            )
            if self.spec.nodes > 1:
                plan = replace(plan, argv=entrypoint.after_meeting(plan.argv))
            if plan.note is not None:
                self.reporter.say(plan.note, "INFO")
            stopped = self.stopped
            if stopped is not None:
                return stopped
            oom_before = exit_reason.oom_kills()
            self._start(plan, env, workdir, context, account)
        except (EntrypointError, ModelDefinitionError, IdentityError, MountsError) as error:
            return exit_reason.failed_to_start(str(error))
        except ports.PortsError as error:
            return exit_reason.infrastructure(str(error))
        except errors.NotFoundException as error:
            return exit_reason.failed_to_start(f"the model definition cannot be read: {error}")
        except (OSError, errors.APIException) as error:
            return exit_reason.infrastructure(f"the leg cannot be prepared: {error}")
        assert self.user is not None
        self._listen_for_bell(env, workdir, context, account)
        if account is None and self.group.folders:
            threading.Thread(target=self.group.take, name="group", daemon=True).start()
        watch = self._report_start(self.user.pid)
        replace(record, user=ProcessName.of(self.user.pid)).write(self.root)
        uid = account.uid if account else os.getuid()
        told, limit = self._read_until_end(self.user, workdir, uid)
        if watch is not None:
            watch.end()
        if self.gates is not None:
            self.gates.end()
        assert self.user.status is not None
        if self.user.status == signal.SIGTERM and self.fork is not None:
            time.sleep(SIGTERM_GRACE_SECONDS)
        stopped = self.stopped
        if stopped is not None:
            return stopped
        pending = None
        if task_environment.has_met(context.run_dir, self.spec.nodes):
            pending = entrypoint.pending_hook(workdir, context.run_dir)
        return exit_reason.describe(
            self.user.status,
            plan,
            hook_pending=pending,
            oom_before=oom_before,
            told=told,
            limit=limit,
        )

    def _reserve_ports(self) -> dict[str, str]:
        """The variables of the ports that people reach through the service. Raises PortsError."""
        self.ports = ports.reserve(ports.ports_of(self.spec))
        if not self.ports.ports:
            return {}
        self.address = ports.own_address(self.place.master)
        return self.ports.environment()

    def _report_start(self, pid: int) -> ports.Watch | None:
        """Threads begin here, after the fork."""
        found = self.ports.ports
        self.gates = ports.gates_before(
            found, self.address, ports.LOOPBACK, self.place.agent_token, self.spec.allocation_id
        )
        self.reporter.start(pid, self.gates.ports if self.gates else found, self.address)
        if not found:
            return None
        # Everything that this process has started and not only the process group: whoever listens may be a
        # session of its own. A worker of Prefect's has other children.
        root = os.getpid() if self.fork is not None else pid
        service = ServiceLink(self.place.master, self.place.agent_token)
        watch = ports.Watch(
            found,
            ports.LOOPBACK,
            lambda state: self.reporter.port(service, state),
            self.reporter.say,
            lambda: [root],
        )
        watch.start()
        return watch

    def _listen_for_bell(
        self, env: dict[str, str], workdir: Path, context: ContextDir, account: Identity | None
    ) -> None:
        """Opens the door of the leg when the agent rings. Without an agent nobody does."""
        if self.fork is None:
            return
        user = self.user
        assert user is not None

        def rung() -> None:
            # Only now: most legs are never entered.
            from determined_tasks import beside, doors

            if self._doors is None:
                entry = beside.Entry(
                    {**env, **doors.main_variable(user.pid, self.spec.entrypoint)},
                    workdir,
                    context,
                    account,
                    self.limits or Limits(),
                    self.group,
                    user.pid if self._mounts else None,
                )
                self._doors = doors.Doors(self.spec, self.place, entry, self.reporter.say)
            self._doors.rung()

        bell.listen(self.root, rung)

    def _find_mounts(self, context: ContextDir, account: Identity | None) -> Mounts | None:
        """What the process is to see under other paths. Raises MountsError."""
        spec = self.spec
        found = mounts.of(spec.config, spec.entrypoint, context.workdir, self.root / "mounts")
        if found is None:
            return None
        if self.fork is None:
            self.reporter.say(
                "bind_mounts and resources.shm_size are not heeded by a worker of Prefect's own: run the task"
                " on an agent (python -m determined_deployments.agent)",
                "WARNING",
            )
            return None
        found.require(account, self.place.agent_id)
        return found

    def _open_storage(self) -> None:
        """The cluster's own directory of checkpoints, and no other that a configuration may name."""
        if self.place.checkpoint_dir is not None:
            identity.let_store(self.place.checkpoint_dir, self.spec.cluster_id)

    def _work_dir(self, context: ContextDir, account: Identity | None) -> Path:
        """Where the process starts. Raises EntrypointError for a directory that is not there."""
        found = task_environment.work_dir(self.spec, account, context.workdir)
        there = self._mounts.on_machine(str(found)) if self._mounts else found
        with identity.files_of(account):
            if not there.is_dir() or not os.access(there, os.X_OK, effective_ids=True):
                raise EntrypointError(
                    f"work_dir {str(found)!r}: there is no such directory on agent {self.place.agent_id} that"
                    " the task may enter: make it there, or leave work_dir out"
                )
        return found

    def _start(
        self,
        plan: Start,
        env: dict[str, str],
        workdir: Path,
        context: ContextDir,
        account: Identity | None,
    ) -> None:
        if self.limits is not None:
            self.group.make(self.limits)
        self.user = process.start(
            plan,
            env=env,
            workdir=workdir,
            single_threaded=self.fork is not None,
            base_path=self.fork.base_path if self.fork else None,
            packages=context.packages,
            learn_into=self.fork.learn_into if self.fork else None,
            account=account,
            limits=self.limits,
            group=self.group,
            mounts=self._mounts,
        )
        if self._stopped is not None:  # the signal came while there was nothing to kill
            self.user.kill()

    def _read_until_end(
        self, user: process.UserProcess, workdir: Path, uid: int
    ) -> tuple[str | None, str | None]:
        """What it printed that tells why it ended, if anything does; and the limit that the leg has met, if
        it has met one."""
        streams = Streams(user, self.reporter, workdir)
        with self._watched_memory(self.limits):
            while not user.reap():
                streams.read(REAP_SECONDS)
                # A program that forks without end would go on trying, one that lost a process wait for it.
                if (limit := self._limit_of_group()) is not None:
                    self.stop(_beyond(limit))
        limit = self._limit_of_group() or self._limit_of_account(uid) if user.status else None
        # Whoever holds the pipes open now was left behind by the training process.
        user.kill_rest()
        deadline = time.monotonic() + DRAIN_SECONDS
        while streams.open and (left := deadline - time.monotonic()) > 0:
            streams.read(left)
        streams.close()
        return streams.why.text, limit

    def _limit_of_group(self) -> str | None:
        """The limit that the leg's control group has met, in words."""
        if self.limits is not None and self.group.was_out_of_memory:
            return self.limits.memory_in_words
        if self.limits is not None and self.group.had_all_processes:
            return self.limits.processes_in_words
        return None

    def _limit_of_account(self, uid: int) -> str | None:
        if self.limits is not None and has_all_processes(self.limits, uid):
            return self.limits.processes_in_words
        return None

    @contextlib.contextmanager
    def _watched_memory(self, limits: Limits | None) -> Iterator[None]:
        if limits is None or limits.memory is None or limits.homes:
            yield
            return
        words = limits.memory_in_words
        watch = MemoryWatch(limits.memory, lambda: self.stop(_beyond(words)))
        watch.start()
        yield
        watch.stop()

    def _say_why(self, result: LegResult) -> None:
        if self.stopped is not None and not self.stopped.is_limit:
            self.reporter.say(str(result), "INFO")
        elif result.exit_code != 0:
            self.reporter.say(str(result), "ERROR")

    def _clean_up(self) -> None:
        if not self.group.end():
            logger.warning("control group %s is left", self.group.folders)
        self._held.close()
        keep = bool(self.spec.config.get("debug"))
        if not keep:
            # Also what `prepare` had made when it failed.
            ContextDir(self.root, self.tmp).remove()
        else:
            (self.root / "leg.json").unlink(missing_ok=True)


def _beyond(words: str) -> LegResult:
    return LegResult(None, signal.SIGKILL, ExitKind.EXITED, words, is_limit=True)


def read_place(given: Mapping[str, Any]) -> Place:
    """From the arguments of :class:`Place` in JSON."""
    place = dict(given)
    place["work_dir"] = Path(place["work_dir"])
    uuids = place.get("device_uuids") or {}
    place["device_uuids"] = {int(slot): uuid for slot, uuid in uuids.items()}
    if place.get("default_task") is not None:
        place["default_task"] = AgentUser.from_json(place["default_task"])
    if place.get("limits") is not None:
        place["limits"] = Limits.from_json(place["limits"])
    if place.get("checkpoint_dir") is not None:
        place["checkpoint_dir"] = Path(place["checkpoint_dir"])
    return Place(**place)


def supervise(order: Mapping[str, Any]) -> int:
    """Entry point for the fork server: a fresh fork becomes a leg's supervisor.

    ``order``: ``spec`` (JSON of a LegSpec), ``place`` (arguments of :class:`Place`), ``base_path``,
    ``learn_into`` (a path or None). Returns the exit code: 0 when the leg's exit is reported.
    """
    assert threading.active_count() == 1, "a fork server must not start threads"
    forked.become_subreaper()
    forked.set_title("leg")
    place = read_place(order["place"])
    learn_into = order.get("learn_into")
    run_leg(
        LegSpec.from_json(order["spec"]),
        work_dir=place.work_dir,
        place=place,
        fork=ForkOptions(order["base_path"], Path(learn_into) if learn_into else None),
    )
    return 0
