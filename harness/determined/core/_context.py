"""``core.init()`` and the context it gives."""

from __future__ import annotations

import contextlib
import faulthandler
import io
import logging
import os
import signal
import sys
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, NoReturn

from determined import errors
from determined._info import ClusterInfo, get_cluster_info
from determined.common import stacks
from determined.core._checkpoint import CheckpointContext, DummyCheckpointContext
from determined.core._connection import Connection
from determined.core._distributed import DistributedContext, DummyDistributedContext
from determined.core._experimental import (
    DummyExperimentalCoreContext,
    ExperimentalCoreContext,
    post_if_offered,
)
from determined.core._preempt import DummyPreemptContext, PreemptContext, PreemptMode
from determined.core._profiler import DummyProfilerContext, ProfilerContext
from determined.core._reporter import Reporter
from determined.core._searcher import (
    DummySearcherContext,
    SearcherContext,
    SearcherContextMissing,
    configured_length,
    configured_target,
    has_operations,
)
from determined.core._tensorboard import (
    TensorboardFiles,
    TensorboardMode,
    local_directory,
    tensorboard_prefix,
)
from determined.core._train import DummyTrainContext, EarlyExitReason, TrainContext
from determined.core._unmanaged import UnmanagedScript
from determined.storage import StorageManager, build, copies, from_string

if TYPE_CHECKING:
    from determined.common.api.transport import AnyTransport

logger = logging.getLogger("determined.core")

OWN_STORAGE = "own"
"""``checkpoint_storage.type`` that the service is told for a storage manager of the script's own."""


class Context:
    """A training script's access to the cluster: one attribute per subject.

    ``checkpoint``, ``distributed``, ``preempt``, ``train``, ``searcher``, ``profiler``, ``experimental``,
    and ``info`` (None off-cluster). Use it as a context manager: at the end of the block the waiting
    reports are sent, and refused reports raise an error. When ``det.InvalidHP`` leaves the block, the trial
    ends early.
    """

    def __init__(
        self,
        checkpoint: CheckpointContext,
        distributed: DistributedContext,
        preempt: PreemptContext,
        train: TrainContext,
        searcher: SearcherContext,
        profiler: ProfilerContext,
        experimental: ExperimentalCoreContext,
        info: ClusterInfo | None = None,
        _connection: Connection | None = None,
        _reporter: Reporter | None = None,
        _script: UnmanagedScript | None = None,
    ) -> None:
        self.checkpoint = checkpoint
        self.distributed = distributed
        self.preempt = preempt
        self.train = train
        self.searcher = searcher
        self.profiler = profiler
        self.experimental = experimental
        self.info = info
        self._connection = _connection
        self._reporter = _reporter
        self._script = _script
        self._on_close = contextlib.ExitStack()

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "the core context cannot be sent to another process (multiprocessing's spawn, torch's mp.spawn): "
            "start the processes of a training by determined.launch.torch_distributed, and call "
            "core.init(distributed=…) in each"
        )

    def start(self) -> None:
        """Connections and threads begin with their first use. Only the profiler begins here, if the
        configuration enables it (``profiling.enabled``). ``preempt.should_preempt()`` may be called from
        here on.
        """
        self.preempt.start()
        if self.info is not None and self.info.task_type == "TRIAL":
            profiling = self.info.trial._config.get("profiling") or {}
            if profiling.get("enabled"):
                self.profiler.on()
        if self._script is not None:
            self._script.start()

    def __enter__(self) -> Context:
        self.start()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_val: BaseException | None,
        exc_tb: TracebackType | None,
    ) -> None:
        if self._script is not None and exc_val is not None:
            # It will be printed only when the output is not sent any more.
            self._script.note(exc_val)
        self.close(exc_type, exc_val, exc_tb)

    def close(
        self,
        exc_type: type[BaseException] | None = None,
        exc_val: BaseException | None = None,
        exc_tb: TracebackType | None = None,
    ) -> None:
        """Send the waiting reports, finish storing the checkpoint, end the threads; may be called twice.

        ``exc_type``: the exception that ends the script, if any. Raises errors.ReportRefused,
        errors.ReportsLost, errors.AllocationEnded, errors.StorageError; if the script ends in an exception
        already, these errors are logged instead.
        """
        # sys.exit(0) says that all is well: then lost reports have to say that it is not.
        clean_exit = isinstance(exc_val, SystemExit) and not exc_val.code
        failed = exc_type is not None and not clean_exit
        try:
            if exc_type is not None and issubclass(exc_type, errors.InvalidHP):
                failed = False
                self.train.report_early_exit(EarlyExitReason.INVALID_HP)
            try:
                self.checkpoint.wait()
                self.checkpoint._close()
            finally:
                self.profiler.off()
                self._on_close.close()
                if self._reporter is not None:
                    self._reporter.close()
        except (Exception, errors.AllocationEnded) as error:
            failed = True
            if exc_type is None or clean_exit:
                if self._script is not None:
                    self._script.note(error)
                raise
            logger.error("%s", error)
        finally:
            # Close in reverse order, each one even if another raises.
            with contextlib.ExitStack() as last:
                if self._connection is not None:
                    last.callback(self._connection.close)
                # The others notice it and end, then the launcher ends this process: last words come before.
                last.callback(self.distributed.close)
                if self._script is not None:
                    last.callback(self._script.close, failed)
                last.callback(self.preempt.close)

    def alert(
        self,
        title: str | None = None,
        description: str | None = None,
        level: Literal["debug", "info", "warn", "error"] | None = "info",
    ) -> None:
        """Trigger the webhooks of the experiment that listen for custom events.

        Raises NotImplementedError when the service has no webhooks.
        """
        if level not in ("debug", "info", "warn", "error", None):
            raise ValueError(f"level must be debug, info, warn or error, found {level!r}")
        if self._connection is None or self.info is None:
            logger.info("alert (%s): %s: %s", level, title, description)
            return
        names = {"warn": "WARNING"}
        data = {
            "title": title or "",
            "description": description or "",
            "level": f"LOG_LEVEL_{names.get(level or '', level or 'UNSPECIFIED').upper()}",
        }
        trial = self.info.trial
        body = {"data": data, "experimentId": trial.experiment_id, "trialId": trial.trial_id}
        post_if_offered(self._connection, "/api/v1/webhooks/custom", body, "alerts")


def init(
    *,
    distributed: DistributedContext | None = None,
    checkpoint_storage: str | dict[str, Any] | None = None,
    preempt_mode: PreemptMode = PreemptMode.WorkersAskChief,
    tensorboard_mode: TensorboardMode = TensorboardMode.AUTO,
    storage_manager: StorageManager | None = None,
) -> Context:
    """The context of this process: the trial's on the cluster, a working substitute elsewhere.

    ``distributed`` is needed by trials of several processes. ``checkpoint_storage`` replaces the
    experiment's: a path, a URL, or a section as in the configuration (``storage_manager``: an object, as in
    early releases). No request is made here. A file is written to a local checkpoint storage, so that a
    read-only storage fails now and not after the first epoch.

    SIGUSR1 prints the stacks of all threads. Raises errors.StorageError. A task that is not a trial (a
    notebook, a command) gets the substitutes too.
    """
    _dump_stacks_on_sigusr1()
    stacks.listen()
    info = get_cluster_info()
    if distributed is None:
        _warn_a_worker()
    dist = distributed if distributed is not None else DummyDistributedContext()
    storage = storage_manager
    section = None if storage is None else {"type": OWN_STORAGE}
    if storage is None and checkpoint_storage is not None:
        section = _section(checkpoint_storage, on_cluster=info is not None)
        storage = build(section)
    if info is None or info.task_type != "TRIAL":
        return _dummy_context(dist, storage, preempt_mode)
    if storage is None:
        storage = build(info.trial._config.get("checkpoint_storage") or {})
    # What this process leaves behind if it is killed is found by that name.
    storage.owner = f"{info.cluster_id}.{info.allocation_id}"
    # The supervisor has read the checkpoint to start from, if any, and kept it there.
    storage.copies = copies.of_this_task()
    if dist.local_rank == 0:
        storage.validate()
    return _trial_context(
        info, dist, storage, preempt_mode, tensorboard_mode, storage_section=section
    )


def _warn_a_worker() -> None:
    # Not refused: it is a mistake that passed unnoticed in Determined, and scripts got by with it.
    rank = os.environ.get("RANK", "")
    if rank.isdecimal() and int(rank) > 0:
        logger.warning(
            "core.init() was called without distributed= in the process of rank %s, which now acts "
            "as a second chief beside rank 0 and reports and stores checkpoints too; give "
            "distributed=DistributedContext.from_torch_distributed(), or call core.init() in rank "
            "0 only",
            rank,
        )


def _section(checkpoint_storage: str | dict[str, Any], on_cluster: bool) -> dict[str, Any]:
    if isinstance(checkpoint_storage, str):
        return from_string(checkpoint_storage, on_cluster)
    if not isinstance(checkpoint_storage, dict):
        raise TypeError(
            "checkpoint_storage must be a path or a URL as text, or a dict as in the "
            f"configuration; found {type(checkpoint_storage).__name__}"
        )
    return checkpoint_storage


def _trial_context(
    info: ClusterInfo,
    dist: DistributedContext,
    storage: StorageManager,
    preempt_mode: PreemptMode,
    tensorboard_mode: TensorboardMode,
    transport: AnyTransport | None = None,
    storage_section: dict[str, Any] | None = None,
    unmanaged: bool = False,
) -> Context:
    """``unmanaged``: the trial of a script outside of the cluster. It is never preempted, and no search
    decides its length.
    """
    trial = info.trial
    searcher = trial._config.get("searcher") or {}
    connection = Connection(info, transport, unmanaged=unmanaged)
    # Without a time metric the searcher hears of validations by completed operations, if at all.
    urgent = "validation" if searcher.get("time_metric") else None
    reporter = Reporter(connection, trial.trial_id, trial._trial_run_id, urgent=urgent)
    tensorboard = TensorboardFiles(
        local_directory(info.allocation_id, dist.rank),
        storage,
        tensorboard_prefix(info.cluster_id, trial.experiment_id, trial.trial_id),
        automatic=TensorboardMode(tensorboard_mode) == TensorboardMode.AUTO,
        rank=dist.rank,
        begin_after=trial._steps_completed if trial._trial_run_id > 1 else None,
        temporary="DET_RUN_DIR" not in os.environ,
        check=connection.check,
    )
    searching: SearcherContext = SearcherContextMissing()
    if has_operations(searcher) and unmanaged:
        searching = DummySearcherContext(dist, configured_target(searcher))
    elif has_operations(searcher):
        max_time, units = configured_length(searcher)
        searching = SearcherContext(
            connection, reporter, dist, trial.trial_id, info.allocation_id, max_time, units
        )
    context = Context(
        checkpoint=CheckpointContext(
            dist, storage, connection, reporter, info, tensorboard.upload, storage_section
        ),
        distributed=dist,
        preempt=DummyPreemptContext(dist, preempt_mode)
        if unmanaged
        else PreemptContext(connection, info.allocation_id, dist, preempt_mode),
        train=TrainContext(
            connection,
            reporter,
            dist,
            trial.trial_id,
            trial.experiment_id,
            searcher,
            tensorboard_mode,
            tensorboard,
            searching if has_operations(searcher) and not unmanaged else None,
        ),
        searcher=searching,
        profiler=ProfilerContext(info.agent_id, reporter, dist),
        experimental=ExperimentalCoreContext(connection, trial.trial_id),
        info=info,
        _connection=connection,
        _reporter=reporter,
        _script=UnmanagedScript(connection, info, dist.rank) if unmanaged else None,
    )
    context._on_close.callback(tensorboard.close)
    return context


def _dummy_context(
    dist: DistributedContext, storage: StorageManager | None, preempt_mode: PreemptMode
) -> Context:
    if storage is None:
        from platformdirs import user_data_path

        root = user_data_path("determined") / "checkpoints"
        storage = build({"type": "directory", "container_path": str(root)})
    return Context(
        checkpoint=DummyCheckpointContext(dist, storage),
        distributed=dist,
        preempt=DummyPreemptContext(dist, preempt_mode),
        train=DummyTrainContext(),
        searcher=DummySearcherContext(dist),
        profiler=DummyProfilerContext(),
        experimental=DummyExperimentalCoreContext(),
    )


def _dump_stacks_on_sigusr1() -> None:
    # A notebook, a test or the script itself may have replaced stderr by None or by an object without a file.
    for stream in (sys.stderr, sys.__stderr__):
        with contextlib.suppress(AttributeError, ValueError, OSError, io.UnsupportedOperation):
            if stream is not None:
                faulthandler.register(signal.SIGUSR1, file=stream, all_threads=True, chain=False)
                return
