"""The context of a DeepSpeedTrial."""

from __future__ import annotations

import logging
from typing import Any

from determined import core, errors
from determined.pytorch._training_context import TrainingContext
from determined.pytorch.deepspeed._mpu import (
    ModelParallelUnit,
    make_data_parallel_mpu,
    make_deepspeed_mpu,
)

logger = logging.getLogger("determined.pytorch")


class DeepSpeedTrialContext(TrainingContext):
    """Wraps DeepSpeed's engines, and answers questions about the training.

    Made by :func:`determined.pytorch.deepspeed.init`. ``models`` lists the engines. The first engine
    decides the batch sizes and each process' share of the data.
    """

    _kind = "DeepSpeedTrial"

    def __init__(
        self,
        core_context: core.Context,
        trial_seed: int | None,
        hparams: dict[str, Any] | None,
        slots_per_trial: int,
        num_gpus: int,
        exp_conf: dict[str, Any] | None,
        steps_completed: int = 0,
        managed_training: bool = False,
        enable_tensorboard_logging: bool = True,
    ) -> None:
        super().__init__(
            core_context,
            trial_seed,
            hparams,
            slots_per_trial,
            num_gpus,
            exp_conf,
            steps_completed,
            managed_training,
            enable_tensorboard_logging,
        )
        # The trial reads the data itself, from an iterator.
        self._auto_to_device = False
        self._mpu = make_data_parallel_mpu(core_context.distributed)
        self._mpu_is_set = False
        self._pipeline = False
        self._accumulates = True

    def wrap_model_engine(self, model: Any) -> Any:
        """Wrap ``model``, an engine: the first item that ``deepspeed.initialize()`` returns.

        For a pipeline engine, this process' place in the pipeline is known from now on. Raises TypeError if
        ``model`` is not an engine.
        """
        from deepspeed.runtime.engine import DeepSpeedEngine
        from deepspeed.runtime.pipe.engine import PipelineEngine

        if not isinstance(model, DeepSpeedEngine):
            raise TypeError(
                "wrap_model_engine() takes an engine, the first of what deepspeed.initialize() "
                f"returns; found {type(model).__name__}"
            )
        if isinstance(model, PipelineEngine):
            self._pipeline = True
            if not self.models:
                self._mpu = make_deepspeed_mpu(model.mpu)
        if self.models and model.train_batch_size() != self.models[0].train_batch_size():
            logger.warning(
                "engine %d has train_batch_size %d, but the first engine has %d, which is used "
                "to count records",
                len(self.models),
                model.train_batch_size(),
                self.models[0].train_batch_size(),
            )
        self.models.append(model)
        return model

    def set_mpu(self, mpu: ModelParallelUnit) -> None:
        """Tell how the model is spread over processes, if it is neither data parallelism nor a pipeline
        engine.

        Raises errors.InvalidExperimentException before the first ``wrap_model_engine()``, and at a second
        call.
        """
        self._first_engine("set_mpu()")
        if self._mpu_is_set:
            raise errors.InvalidExperimentException(
                "set_mpu() was called already: call it once, since a trial has one model parallel unit"
            )
        self._mpu_is_set = True
        self._mpu = mpu

    def disable_auto_grad_accumulation(self) -> None:
        """Call ``train_batch`` once per batch; it trains on all of the batch's micro-batches itself."""
        self._accumulates = False

    def disable_dataset_reproducibility_checks(self) -> None:
        """Allow data loaders other than ``pytorch.DataLoader``.

        Training loaders are read pass after pass, from their beginning after a resume, and by every
        process that reads data.
        """
        self._repro_checks_disabled = True

    @property
    def use_pipeline_parallel(self) -> bool:
        """True if an engine is a pipeline engine."""
        return self._pipeline

    def get_train_micro_batch_size_per_gpu(self) -> int:
        """Records in a micro-batch of the first engine.

        Raises errors.InvalidExperimentException before ``wrap_model_engine()``.
        """
        engine = self._first_engine("get_train_micro_batch_size_per_gpu()")
        return int(engine.train_micro_batch_size_per_gpu())

    def get_num_micro_batches_per_slot(self) -> int:
        """Micro-batches of a batch in one process: the first engine's gradient_accumulation_steps.

        Raises errors.InvalidExperimentException before ``wrap_model_engine()``.
        """
        engine = self._first_engine("get_num_micro_batches_per_slot()")
        return int(engine.gradient_accumulation_steps())

    @property
    def train_micro_batch_size_per_gpu(self) -> int:
        """The old name of :meth:`get_train_micro_batch_size_per_gpu`."""
        return self.get_train_micro_batch_size_per_gpu()

    @property
    def num_micro_batches_per_slot(self) -> int:
        """The old name of :meth:`get_num_micro_batches_per_slot`."""
        return self.get_num_micro_batches_per_slot()

    def _first_engine(self, asker: str) -> Any:
        if not self.models:
            raise errors.InvalidExperimentException(
                f"{asker} needs an engine: call wrap_model_engine() first"
            )
        return self.models[0]
