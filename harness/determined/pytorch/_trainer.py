"""``pytorch.init()`` and the Trainer."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Iterator
from typing import Any, Literal

import torch

from determined import core
from determined._info import get_cluster_info
from determined.pytorch import _parallel, _plan, _rng
from determined.pytorch._context import PyTorchTrialContext
from determined.pytorch._loop import TrainingLoop
from determined.pytorch._trial import PyTorchTrial
from determined.pytorch._units import Batch, TrainUnit

logger = logging.getLogger("determined.pytorch")


@contextlib.contextmanager
def init(
    *,
    hparams: dict[str, Any] | None = None,
    exp_conf: dict[str, Any] | None = None,
    distributed: core.DistributedContext | None = None,
    aggregation_frequency: int = 1,
    enable_tensorboard_logging: bool = True,
) -> Iterator[PyTorchTrialContext]:
    """``with pytorch.init(hparams={…}) as context:`` the context for a trial and its Trainer.

    On the cluster the trial's hyperparameters, configuration and seed replace those given here; only
    ``hparams`` that the configuration does not name are kept. Off-cluster the given values are used.
    ``exp_conf["reproducibility"]["experiment_seed"]`` seeds python, numpy and torch; without it their
    generators stay as they are and the data's order has seed 0.

    ``aggregation_frequency``: batches whose gradients add up to one step of the optimizers.
    """
    with session(hparams, exp_conf, distributed, _parallel.process_group) as given:
        debug = bool((given["exp_conf"] or {}).get("debug"))
        yield PyTorchTrialContext(
            **given,
            num_gpus=torch.cuda.device_count(),
            aggregation_frequency=aggregation_frequency,
            debug_enabled=debug,
            enable_tensorboard_logging=enable_tensorboard_logging,
        )


@contextlib.contextmanager
def session(
    hparams: dict[str, Any] | None,
    exp_conf: dict[str, Any] | None,
    distributed: core.DistributedContext | None,
    process_group: Callable[[core.DistributedContext], contextlib.AbstractContextManager[None]],
) -> Iterator[dict[str, Any]]:
    """Arguments for the contexts of trial classes, by name.

    During the block there are a Core context and the result of ``process_group``, and the generators are
    seeded.
    """
    info = get_cluster_info()
    managed = info is not None and info.task_type == "TRIAL"
    if distributed is None and int(os.environ.get("WORLD_SIZE") or 1) > 1:
        distributed = core.DistributedContext.from_torch_distributed()
    with (
        core.init(distributed=distributed) as core_context,
        process_group(core_context.distributed),
    ):
        seed: int | None = None
        steps = 0
        if managed and info is not None:
            hparams, exp_conf = {**(hparams or {}), **info.trial.hparams}, info.trial._config
            seed, steps = info.trial.trial_seed, info.trial._steps_completed
        elif exp_conf is not None:
            seed = (exp_conf.get("reproducibility") or {}).get("experiment_seed")
        if seed is not None:
            _rng.seed_all(seed)
        yield {
            "core_context": core_context,
            "trial_seed": seed,
            "hparams": hparams,
            "slots_per_trial": core_context.distributed.size,
            "exp_conf": exp_conf,
            "steps_completed": steps,
            "managed_training": managed,
        }


class Trainer:
    """Trains a :class:`PyTorchTrial`."""

    _loop_class: type[TrainingLoop] = TrainingLoop

    def __init__(self, trial: PyTorchTrial, context: PyTorchTrialContext) -> None:
        self._take(trial, context, PyTorchTrial)

    def _take(self, trial: Any, context: Any, trial_class: type[Any]) -> None:
        if not isinstance(trial, trial_class):
            raise TypeError(
                f"Trainer takes an object of a {trial_class.__name__} class, Trial(context); "
                f"found {trial!r}"
            )
        self._trial = trial
        self._context = context
        self._profiling = False

    def configure_profiler(
        self,
        sync_timings: bool = True,
        enabled: bool = False,
        begin_on_batch: int = 0,
        end_after_batch: int | None = None,
    ) -> None:
        """``enabled``: as ``fit(profiling_enabled=True)``. The other arguments come from early releases and
        have no effect.
        """
        self._profiling = enabled

    def fit(
        self,
        checkpoint_period: TrainUnit | None = None,
        validation_period: TrainUnit | None = None,
        max_length: TrainUnit | None = None,
        reporting_period: TrainUnit = Batch(100),  # noqa: B008 - never changed
        checkpoint_policy: str = "best",
        latest_checkpoint: str | None = None,
        step_zero_validation: bool = False,
        test_mode: bool = False,
        profiling_enabled: bool = False,
        async_checkpoints: bool | Literal["skip"] | None = None,
    ) -> None:
        """Train, with a validation and a checkpoint at the end in any case.

        Args:
            checkpoint_period: write a checkpoint at the end of each. validation_period: validate at the end
            of each. max_length: how long to train in all, including the batches that a checkpoint has
            trained. Needed off-cluster. On the cluster the searcher's lengths count if the configuration
            has ``searcher.max_length``. reporting_period: training metrics are averaged over it and
            reported; stretches end at
                validations and checkpoints, too.
            checkpoint_policy: after which validations to write a checkpoint: "best" (no other validation of
            the experiment was better so far), "all" or "none". Off-cluster "best" means "all".
            latest_checkpoint: uuid of the checkpoint to go on from,
                ``det.get_cluster_info().latest_checkpoint`` on the cluster.
            step_zero_validation: validate before the first batch.
            test_mode: train one batch, validate one, write a checkpoint. Off-cluster only.
            profiling_enabled: sample the machine's load meanwhile.
            async_checkpoints: go on with the training as soon as its state is copied, and store the
            checkpoint in the background. With True the next checkpoint waits for the last one; with "skip"
            one of ``checkpoint_period`` is left out when the last one is not stored yet. None: as the
            configuration's ``async_checkpoints`` says, or else True on GPUs and False on CPUs.

        Raises:
            TypeError, ValueError: an argument is invalid. errors.InvalidExperimentException: the
            configuration or the trial class is invalid.
        """
        context = self._context
        _plan.check_period("checkpoint_period", checkpoint_period)
        _plan.check_period("validation_period", validation_period)
        if reporting_period is None:
            raise TypeError("reporting_period must be a unit, e.g. pytorch.Batch(100)")
        _plan.check_period("reporting_period", reporting_period)
        _plan.check_policy(checkpoint_policy)
        _plan.check_async(async_checkpoints)
        if async_checkpoints is None:
            async_checkpoints = context._exp_conf.get("async_checkpoints")
        if test_mode and context._managed:
            raise ValueError(
                "test_mode is for training off-cluster; submit with --test-mode instead"
            )
        searcher = (context._exp_conf.get("searcher") or {}) if context._managed else None
        lengths = _plan.lengths(context._core, searcher, max_length, test_mode)
        if searcher is None and checkpoint_policy == "best":
            logger.info(
                "off-cluster there is no experiment to compare with, so checkpoint_policy best means all"
            )
            checkpoint_policy = "all"
        if max_length is not None and searcher and searcher.get("max_length") is not None:
            logger.info(
                "fit(max_length=%r) has no effect, because the searcher gives the lengths",
                max_length,
            )
        if context._managed and latest_checkpoint is None:
            self._warn_of_start_from_scratch()
        plan = _plan.FitPlan(
            lengths=lengths,
            checkpoint_period=checkpoint_period,
            validation_period=validation_period,
            reporting_period=reporting_period,
            checkpoint_policy=checkpoint_policy,
            latest_checkpoint=latest_checkpoint,
            step_zero_validation=step_zero_validation,
            test_mode=test_mode,
            profiling_enabled=profiling_enabled or self._profiling,
            searcher_metric=(searcher or {}).get("metric"),
            smaller_is_better=bool((searcher or {}).get("smaller_is_better", True)),
            async_checkpoints=async_checkpoints,
        )
        self._loop_class(self._trial, context, plan).run()

    def _warn_of_start_from_scratch(self) -> None:
        info = self._context._core.info
        if info is not None and info.latest_checkpoint is not None:
            logger.warning(
                "this trial has the checkpoint %s, but fit() was called without it, so training "
                "begins from scratch. To go on from it, give "
                "fit(latest_checkpoint=det.get_cluster_info().latest_checkpoint)",
                info.latest_checkpoint,
            )
