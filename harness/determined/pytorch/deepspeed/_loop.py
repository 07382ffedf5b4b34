"""The training loop over engines, with batches of micro-batches. Every process writes a part of each
checkpoint.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from determined import errors
from determined.pytorch import _checkpoint, _data, _rng
from determined.pytorch._data import DataLoader
from determined.pytorch._loop import TrainingLoop
from determined.pytorch._trial import by_name
from determined.pytorch.deepspeed._context import DeepSpeedTrialContext
from determined.pytorch.deepspeed._trial import DeepSpeedTrial
from determined.pytorch.deepspeed._validation import EngineValidation, of_all

logger = logging.getLogger("determined.pytorch")


def state_file(rank: int | str) -> str:
    """A process' own state in a checkpoint; the name is that of Determined's releases."""
    return f"det_state_dict_rank{rank}.pth"


class EngineLoop(TrainingLoop):
    """One call of ``Trainer.fit`` for a DeepSpeedTrial.

    The loop's "batch" is the iterator over micro-batches: training on a batch means training on the
    micro-batches of one step of the engine. Beside the files of :meth:`DeepSpeedTrial.save` a checkpoint
    has a file ``det_state_dict_rank<n>.pth`` (``callbacks``, ``rng_state``) of each process, and from the
    chief the files that other trial classes have, too.
    """

    _trial: DeepSpeedTrial  # type: ignore[assignment]
    _context: DeepSpeedTrialContext  # type: ignore[assignment]

    def _check_wrapped(self) -> None:
        if not self._context.models:
            raise errors.InvalidModelException(
                f"{type(self._trial).__name__} has wrapped no engine: give the first item that "
                "deepspeed.initialize() returns to context.wrap_model_engine(), in __init__"
            )

    @contextlib.contextmanager
    def _training_batches(self) -> Iterator[Iterator[Any]]:
        context = self._context
        mpu = context._mpu
        micro_batches = context.get_num_micro_batches_per_slot()
        length, iterator = None, None
        with contextlib.ExitStack() as exits:
            if mpu.should_build_data_loader:
                loader = self._trial.build_training_data_loader()
                if not isinstance(loader, DataLoader) and not context._repro_checks_disabled:
                    raise _data.not_reproducible(
                        loader, "context.disable_dataset_reproducibility_checks()"
                    )
                length, batches = _data.training_batches(
                    loader,
                    context.get_trial_seed(),
                    self.position.batches_trained * micro_batches,
                    mpu.data_parallel_world_size,
                    mpu.data_parallel_rank,
                )
                iterator = exits.enter_context(batches)
            shortest = min(of_all(context.distributed, length), default=None)
            self._set_scale(
                None if shortest is None else shortest // micro_batches,
                int(context.models[0].train_batch_size()),
            )
            yield itertools.repeat(iterator)

    def _validation(self) -> EngineValidation:
        context: Any = self._context
        trial: Any = self._trial
        return EngineValidation(trial, context, self._callbacks, self._plan.test_mode)

    def _prepare_batches(self) -> None:
        super()._prepare_batches()
        context = self._context
        once = context.use_pipeline_parallel or not context._accumulates
        count = 1 if once else context.get_num_micro_batches_per_slot()
        names = ("dataloader_iter", "epoch_idx", "batch_idx")
        self._train_batch = self._in_micro_batches(by_name(self._trial.train_batch, names), count)

    def _in_micro_batches(self, train: Callable[..., Any], count: int) -> Callable[..., Any]:
        reports, snapshot = self._context._mpu.should_report_metrics, self._snapshot

        def train_batch(iterator: Iterator[Any] | None, epoch_idx: int, batch_idx: int) -> Any:
            outputs = []
            for _ in range(count):
                output = train(iterator, epoch_idx, batch_idx)
                if reports:
                    outputs.append(snapshot(output))
            self._check_step()
            return mean(outputs)

        return train_batch

    def _check_step(self) -> None:
        """Raises errors.InvalidModelException in the middle of an engine's batch, because a checkpoint
        would lose the gradients, and when no engine has ever stepped.
        """
        context = self._context
        if context.use_pipeline_parallel:
            return
        wanted = context.get_num_micro_batches_per_slot()
        behind = context.models[0].micro_steps % wanted
        if behind or not any(engine.micro_steps for engine in context.models):
            raise errors.InvalidModelException(
                f"after a batch the engine has stepped {behind} of {wanted} micro-batches: train_batch() "
                "must call engine.step() once per micro-batch"
            )

    # Checkpoints.

    def _may_store_in_background(self) -> bool:
        if self._plan.async_checkpoints:
            logger.info(
                "async_checkpoints has no effect: DeepSpeed's engines write their own files"
            )
        return False

    def _save(self, may_skip: bool = False) -> None:
        self._say("checkpointing")
        position = self.position
        position.last_ckpt = position.batches_trained
        metadata = _checkpoint.metadata(position)
        with self._core.checkpoint.store_path(metadata, shard=True) as (path, uuid):
            self._write(path)
        self._callbacks.call("on_checkpoint_upload_end", uuid=uuid)

    def _write(self, path: Path) -> None:
        context = self._context
        state = {
            "callbacks": self._callbacks.state_dicts(),
            "rng_state": _rng.capture(context.device),
        }
        self._callbacks.call("on_checkpoint_save_start", state)
        torch.save(state, path / state_file(context.distributed.rank))
        self._trial.save(context, path)
        if self._is_chief:
            position = dataclasses.replace(self.position)
            _checkpoint.write_facts(path, position, type(self._trial), context, self._code)
        self._callbacks.call("on_checkpoint_end", str(path))
        self._callbacks.call("on_checkpoint_write_end", str(path))

    def _read_position(self, path: Path) -> _checkpoint.TrialPosition:
        return _checkpoint.read_position(path, state_file(0), "DeepSpeedTrial")

    def _load(self, path: Path, going_on: bool) -> None:
        context = self._context
        dist = context.distributed
        as_many = len(list(path.glob(state_file("*")))) == dist.size
        # With another number of processes there is nothing to be exact about.
        own = path / state_file(dist.rank if as_many else 0)
        state = torch.load(own, map_location="cpu", weights_only=False)
        self._callbacks.call("on_checkpoint_load_start", state)
        self._trial.load(context, path)
        _checkpoint.load_callbacks(state, self._callbacks)
        if going_on:
            if as_many:
                _rng.restore(state.get("rng_state") or {}, context.device)
            logger.info("going on after batch %d", self.position.batches_trained)


def mean(outputs: list[dict[str, Any]]) -> dict[str, Any]:
    """For each metric, the mean over the micro-batches that have it, or the last value if it has no mean."""
    if len(outputs) < 2:
        return outputs[0] if outputs else {}
    means: dict[str, Any] = {}
    for name in {name: None for output in outputs for name in output}:
        values = [output[name] for output in outputs if name in output]
        try:
            means[name] = sum(values[1:], values[0]) / len(values)
        except TypeError:
            means[name] = values[-1]
    return means


DeepSpeedTrial.trial_controller_class = EngineLoop
