"""The carrier of training processes on this machine: forks of a warm interpreter, or programs."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import signal
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path

from determined.common.wire.legs import ExitKind, LegSpec
from determined_tasks import (
    compiled_code,
    context_dir,
    entrypoint,
    exit_reason,
    experiment_dir,
    identity,
    mounts,
    ports,
    process,
    task_environment,
)
from determined_tasks.carrier import Carrier, Fetch, Listening, NotStarted
from determined_tasks.context_dir import ContextDir
from determined_tasks.entrypoint import EntrypointError, StartMethod
from determined_tasks.exit_reason import LegResult
from determined_tasks.identity import Identity, IdentityError
from determined_tasks.leg_groups import LegGroup
from determined_tasks.leg_reporter import LegReporter
from determined_tasks.limits import Limits, MemoryWatch, has_all_processes
from determined_tasks.mounts import Mounts, MountsError
from determined_tasks.packages import Packages
from determined_tasks.streams import Streams
from determined_tasks.supervision import LegRecord, ProcessName
from determined_tasks.task_environment import AgentSide

logger = logging.getLogger(__name__)

# After a SIGTERM from outside to all processes, the training process may be gone before this one has
# seen its own.
SIGTERM_GRACE_SECONDS = 0.3
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


class ProcessCarrier(Carrier):
    """The training process is a child of this one, and ends with it.

    Without ``fork`` it is always a program, and this process may have other threads and children.
    """

    outlives = False

    def __init__(
        self,
        spec: LegSpec,
        place: AgentSide,
        root: Path,
        reporter: LegReporter,
        fork: ForkOptions | None,
    ) -> None:
        super().__init__(spec, place, root, reporter)
        self._fork = fork
        # Only under a supervisor are all child processes the leg's.
        self._limits = place.limits if fork is not None else None
        self._group = LegGroup.of(self._limits or Limits(), spec.name)
        self._tmp = context_dir.choose_tmp()
        self._context = ContextDir(root, self._tmp)
        self._workdir = self._context.workdir
        self._env: dict[str, str] = {}
        self._mounts: Mounts | None = None
        self._start: StartMethod | None = None
        self._user: process.UserProcess | None = None
        self._oom_before = exit_reason.OomKills(None, None)
        self._is_killed = False
        self._beyond: str | None = None
        """The limit for which the leg was ended, in words."""

    def record(self) -> LegRecord:
        return replace(
            super().record(),
            user=ProcessName.of(self._user.pid) if self._user is not None else None,
            tmp=str(self._tmp),
            groups=[str(folder) for folder in self._group.folders],
        )

    def prepare(self, fetch: Fetch) -> None:
        account = self.reader = self._resolved(identity.resolve)
        if account is not None and self._fork is None:
            # The ids of a process belong to all its threads.
            raise IdentityError(
                f"the task must run as {account}, which a stock Prefect worker cannot do: run it on an"
                " agent (python -m determined_deployments.agent)"
            )
        self._context = context_dir.prepare(
            self.place.work_dir,
            self.spec.name,
            self.spec.model_def_hash,
            fetch,
            self._tmp,
            self._shared_packages(account),
        )
        if account is not None:
            # Also for files spooled beside the account's directories.
            os.umask(identity.UMASK)
            context_dir.hand_over(self._context, self.place.work_dir, account)
            # The cluster's own directory of checkpoints, and no other that a configuration may name.
            if self.place.checkpoint_dir is not None:
                identity.let_store(self.place.checkpoint_dir, self.spec.cluster_id)

    def _shared_packages(self, account: Identity | None) -> Packages | None:
        """Those of the experiment, which stay until clean_up(); None: the leg gets its own."""
        spec, place = self.spec, self.place
        if spec.experiment_id is None or spec.trial_id is None or not place.shares_packages:
            return None
        root = self._held.enter_context(
            experiment_dir.used(place.work_dir, spec.experiment_id, spec.cluster_id)
        )
        return experiment_dir.shared_packages(root, account)

    def files(self) -> AbstractContextManager[None]:
        return identity.files_of(self.reader)

    def start(self, spec: LegSpec, variables: Mapping[str, str]) -> None:
        self.spec = spec
        context, account = self._context, self.reader
        compiled = self._hold_compiled(account)
        env = task_environment.build(spec, self.place, context, account)
        if compiled is not None:
            # What the user or the agent's own environment says comes first.
            env = compiled_code.variables(compiled) | env
        self._mounts = self._find_mounts(account)
        self._workdir = workdir = self._chosen_workdir(account)
        if workdir != context.workdir:
            env |= {"PWD": str(workdir), "DET_WORKDIR": str(workdir)}
        self._env = env = env | dict(variables)
        plan = entrypoint.plan(
            spec.entrypoint,
            workdir=workdir,
            env=env,
            user_env=spec.user_environment(),
            # A fork of this process has Prefect's password somewhere in its memory.
            may_fork=self._fork is not None and account is None and spec.nodes == 1,
            packages=context.packages,
            locate=self._mounts.on_machine if self._mounts else None,
        )
        if spec.nodes > 1:
            plan = replace(plan, argv=entrypoint.after_meeting(plan.argv))
        if plan.note is not None:
            self.reporter.say(plan.note, "INFO")
        is_killed = self._is_killed
        if is_killed:
            raise NotStarted(exit_reason.infrastructure("ended before its process ran"))
        self._start = plan
        self._oom_before = exit_reason.oom_kills()
        if self._limits is not None:
            self._group.make(self._limits, len(spec.slot_ids))
        self._user = process.start(
            plan,
            env=env,
            workdir=workdir,
            single_threaded=self._fork is not None,
            base_path=self._fork.base_path if self._fork else None,
            packages=context.packages,
            learn_into=self._fork.learn_into if self._fork else None,
            account=account,
            limits=self._limits,
            group=self._group,
            mounts=self._mounts,
        )
        self.has_run = True
        if self._is_killed:  # when there was nothing to kill
            self._user.kill()
        if account is None and self._group.folders:
            threading.Thread(target=self._group.take, name="group", daemon=True).start()

    def _find_mounts(self, account: Identity | None) -> Mounts | None:
        """The mounts that the process needs. Raises NotStarted."""
        spec = self.spec
        if self.place.in_pod:  # the pod has them
            return None
        try:
            found = mounts.of(
                spec.config, spec.entrypoint, self._context.workdir, self.root / "mounts"
            )
            if found is not None and self._fork is not None:
                found.require(account, self.place.agent_id)
                return found
        except MountsError as error:
            raise NotStarted(exit_reason.failed_to_start(str(error))) from error
        if found is not None:
            self.reporter.say(
                "bind_mounts and resources.shm_size are ignored by a stock Prefect worker: run the task"
                " on an agent (python -m determined_deployments.agent)",
                "WARNING",
            )
        return None

    def _chosen_workdir(self, account: Identity | None) -> Path:
        """The directory in which the process starts. Raises EntrypointError if it does not exist."""
        found = task_environment.work_dir(self.spec, account, self._context.workdir)
        there = self._mounts.on_machine(str(found)) if self._mounts else found
        with identity.files_of(account):
            if not there.is_dir() or not os.access(there, os.X_OK, effective_ids=True):
                raise EntrypointError(
                    f"work_dir {str(found)!r}: there is no such directory on agent {self.place.agent_id} that"
                    " the task may enter: make it there, or leave work_dir out"
                )
        return found

    def listening(self) -> Listening:
        user = self._started()
        # All child processes of the supervisor, not only the process group: the one that listens may be in
        # another session. A stock Prefect worker has other children too.
        root = os.getpid() if self._fork is not None else user.pid
        return Listening(user.pid, ports.LOOPBACK, [root])

    def _started(self) -> process.UserProcess:
        assert self._user is not None
        return self._user

    def wait(self) -> LegResult:
        user = self._started()
        streams = Streams(user, self.reporter, self._workdir)
        with self._watched_memory():
            while not user.reap():
                streams.read(REAP_SECONDS)
                # A program that forks without end would go on trying, one that lost a process wait for it.
                if (limit := self._limit_of_group()) is not None:
                    self._exceeds(limit)
        limit = self._limit_of_group() or self._limit_of_account() if user.status else None
        # Whoever holds the pipes open now was left behind by the training process.
        user.kill_rest()
        deadline = time.monotonic() + DRAIN_SECONDS
        while streams.open and (left := deadline - time.monotonic()) > 0:
            streams.read(left)
        streams.close()
        assert user.status is not None
        if user.status == signal.SIGTERM and self._fork is not None:
            time.sleep(SIGTERM_GRACE_SECONDS)
        if self._mounts is not None and (why := self._mounts.failure()) is not None:
            # It would fail again.
            return exit_reason.failed_to_start(why)
        if self._beyond is not None:
            return LegResult(None, signal.SIGKILL, ExitKind.EXITED, self._beyond)
        assert self._start is not None
        return exit_reason.describe(
            user.status,
            self._start,
            hook_pending=self._pending_hook(self._workdir),
            oom_before=self._oom_before,
            told=streams.why.text,
            limit=limit,
        )

    def _limit_of_group(self) -> str | None:
        """The limit that the leg's control group has met, in words."""
        if self._limits is not None and self._group.was_out_of_memory:
            return self._limits.memory_in_words
        if self._limits is not None and self._group.had_all_processes:
            return self._limits.processes_in_words
        return None

    def _limit_of_account(self) -> str | None:
        uid = self.reader.uid if self.reader is not None else os.getuid()
        if self._limits is not None and has_all_processes(self._limits, uid):
            return self._limits.processes_in_words
        return None

    def _exceeds(self, limit: str) -> None:
        self._beyond = self._beyond or limit
        self.kill()

    @contextlib.contextmanager
    def _watched_memory(self) -> Iterator[None]:
        limits = self._limits
        if limits is None or limits.memory is None or limits.homes:
            yield
            return
        words = limits.memory_in_words
        watch = MemoryWatch(limits.memory, lambda: self._exceeds(words))
        watch.start()
        yield
        watch.stop()

    def kill(self) -> None:
        self._is_killed = True
        if self._user is not None and self._user.status is None:
            self._user.kill()

    def ask_to_end(self) -> None:
        user = self._started()
        if user.status is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(user.pid, signal.SIGTERM)

    def enter(self, connection: socket.socket, variables: Mapping[str, str]) -> None:
        # Only now: most legs are never entered.
        from determined_tasks import beside, doors

        main = doors.main_variable(self._started().pid, self.spec.entrypoint)
        entry = beside.ProcessEntry(
            {**self._env, **main},
            self._workdir,
            self._context,
            self.reader,
            self._limits or Limits(),
            self._group,
            self._started().pid if self._mounts else None,
        )
        entry(connection, variables)

    def end(self) -> None:
        if self._user is not None:
            self._user.kill_rest()

    def clean_up(self, keep: bool) -> None:
        if not self._group.end():
            logger.warning("control group %s is left", self._group.folders)
        self._held.close()
        if not keep:
            shutil.rmtree(self._tmp, ignore_errors=True)
