"""Contexts for scripts that run anywhere: on the cluster, or outside of it with reports to it."""

from __future__ import annotations

import atexit
import sys
from typing import Any

from determined import core, storage
from determined._info import ClusterInfo, get_cluster_info
from determined.core._context import _trial_context
from determined.core._everybody import everybody
from determined.core._exit import end_script
from determined.experimental._determined import Determined
from determined.experimental.core_v2 import _config, _trial
from determined.experimental.core_v2._config import Config

_current: core.Context | None = None
_plot_url = ""
_exit_code: Any = None
_hooked = False


def init_context(
    *,
    config: Config | None = None,
    defaults: Config | None = None,
    unmanaged: Config | None = None,
    client: Determined | None = None,
    distributed: core.DistributedContext | None = None,
    checkpoint_storage: str | dict[str, Any] | None = None,
    preempt_mode: core.PreemptMode = core.PreemptMode.WorkersAskChief,
    tensorboard_mode: core.TensorboardMode = core.TensorboardMode.AUTO,
) -> core.Context:
    """A context for a ``with`` block.

    In a trial on the cluster this is :func:`determined.core.init`. Elsewhere the script's experiment and
    trial are created at the service, or found by their external ids; ``context.info`` has the
    ``latest_checkpoint`` from which to continue. The end of the block reports how the script ended.

    ``client`` is the login to use; ``defaults`` and ``unmanaged`` are earlier releases' ``config``.

    If there are several processes (``distributed``), all of them call it. Rank 0 starts the trial, and
    all processes get this trial.

    Raises ValueError if there is no configuration outside of the cluster, and the service's errors;
    processes other than rank 0 get these as errors.WorkerError.
    """
    global _plot_url
    merged = _config.merged(config, defaults, unmanaged)
    info = get_cluster_info()
    if info is not None and info.task_type == "TRIAL":
        return core.init(
            distributed=distributed,
            checkpoint_storage=checkpoint_storage,
            preempt_mode=preempt_mode,
            tensorboard_mode=tensorboard_mode,
        )
    if merged is None:
        raise ValueError("outside of the cluster core_v2 needs config=core_v2.Config(name=…)")
    dist = distributed if distributed is not None else core.DummyDistributedContext()

    def begin() -> tuple[ClusterInfo, str] | None:
        if dist.rank:
            return None
        session = (client or Determined())._session
        experiment = _config.experiment_config(merged, checkpoint_storage)
        return _trial.begin(session, merged, experiment)

    found = everybody(dist.allgather, begin)[0]
    assert found is not None
    trial, _plot_url = found
    manager = storage.build(trial.trial._config["checkpoint_storage"])
    manager.owner = f"{trial.cluster_id}.{trial.allocation_id}"
    if dist.local_rank == 0:
        manager.validate()
    return _trial_context(trial, dist, manager, preempt_mode, tensorboard_mode, unmanaged=True)


def init(
    *,
    config: Config | None = None,
    defaults: Config | None = None,
    unmanaged: Config | None = None,
    client: Determined | None = None,
    distributed: core.DistributedContext | None = None,
    checkpoint_storage: str | dict[str, Any] | None = None,
    preempt_mode: core.PreemptMode = core.PreemptMode.WorkersAskChief,
    tensorboard_mode: core.TensorboardMode = core.TensorboardMode.AUTO,
) -> None:
    """Like :func:`init_context`, but for the rest of the script: sets ``core_v2.train`` and the others.

    The context ends with :func:`close`, the next ``init()``, or the end of the script.
    """
    global _current
    close()
    context = init_context(
        config=config,
        defaults=defaults,
        unmanaged=unmanaged,
        client=client,
        distributed=distributed,
        checkpoint_storage=checkpoint_storage,
        preempt_mode=preempt_mode,
        tensorboard_mode=tensorboard_mode,
    )
    if context._reporter is not None:
        context._reporter.closed_at_exit = False
    context.start()
    _current = context
    _hook_exit()


def close() -> None:
    """Close the context of :func:`init`, if there is one."""
    _close()


def _close(error: BaseException | None = None) -> None:
    global _current
    context, _current = _current, None
    if context is not None:
        context.close(None if error is None else type(error), error, None)


def url_reverse_webui_exp_view() -> str:
    """The URL of a page about the unmanaged experiment. Raises RuntimeError if there is none."""
    if not _plot_url:
        raise RuntimeError("there is no unmanaged experiment: call core_v2.init() first")
    return _plot_url


def current() -> core.Context | None:
    """The context of :func:`init`, until it is closed."""
    return _current


def _hook_exit() -> None:
    """Close the context at the end of the script, and report whether the script failed."""
    global _hooked
    if _hooked:
        return
    _hooked = True
    atexit.register(_at_exit)
    original = sys.exit

    def exit_with(status: Any = None, /) -> Any:
        # Exit handlers do not get the exit code.
        global _exit_code
        _exit_code = status
        original(status)

    sys.exit = exit_with


def _at_exit() -> None:
    error: BaseException | None = getattr(sys, "last_value", None)
    if error is None and _exit_code:
        error = SystemExit(_exit_code)
    try:
        _close(error)
    except BaseException as failure:
        end_script(failure)
