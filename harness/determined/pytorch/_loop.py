"""The training loop: batches, and between them reports, validations and checkpoints.

The loop knows in advance at which batch the next of these is due, so a batch costs little more than
``train_batch`` itself: fetching, moving to the device, keeping its metrics.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from determined import errors
from determined.pytorch import _checkpoint, _code, _data, _lr_scheduler, _metrics, _rng
from determined.pytorch._callback import Callbacks, PyTorchCallback
from determined.pytorch._context import PyTorchTrialContext
from determined.pytorch._data import DataLoader
from determined.pytorch._plan import FitPlan, Goal
from determined.pytorch._trial import PyTorchTrial, by_name
from determined.pytorch._units import Scale
from determined.pytorch._validation import Validation

logger = logging.getLogger("determined.pytorch")

# Seconds of one stretch of batches after which preemption is asked for before its end.
PATIENCE = 5.0


class TrainingLoop:
    """One call of ``Trainer.fit``.

    ``position`` tells how far the trial is. The loop trains a stretch of batches (up to the next report,
    validation or checkpoint), reports its metrics, then validates and writes a checkpoint if these are due.
    Then, and at the end of the training, the trial may stop: preempted, or at its own request. It never
    stops without a checkpoint of its position.
    """

    def __init__(self, trial: PyTorchTrial, context: PyTorchTrialContext, plan: FitPlan) -> None:
        self._trial = trial
        self._context = context
        self._check_wrapped()
        self._core = context._core
        self._plan = plan
        self._callbacks = Callbacks(_checked(trial.build_callbacks()))
        self.position = _checkpoint.TrialPosition(trial_id=self._trial_id())
        self._is_chief = context.distributed.rank == 0
        self._status = ""
        self._average = _metrics.Averager()
        self._snapshot = _metrics.snapshotter(context.device)
        # The metrics of the last validation here, and the batch it came after.
        self._validated: tuple[int, dict[str, Any]] | None = None
        self._stopping = False
        # The uuid of the last checkpoint, until its callbacks have been told that it is stored.
        self._untold: str | None = None
        self._stores_in_background = self._may_store_in_background()

    def _may_store_in_background(self) -> bool:
        wanted = self._plan.async_checkpoints
        if wanted is None:
            wanted = self._context.device.type == "cuda"
        if not wanted:
            return False
        hooks = "on_checkpoint_end", "on_checkpoint_write_end"
        if any(self._callbacks.overriding(hook) for hook in hooks):
            logger.info(
                "the training waits until checkpoints are stored (async_checkpoints has no effect), because "
                "a callback overrides %s, which expects files of the training as it is",
                " or ".join(hooks),
            )
            return False
        return True

    def _check_wrapped(self) -> None:
        """Raises errors.InvalidModelException when checkpoints would have no state to go on from."""
        context = self._context
        for what, wrapped in (("model", context.models), ("optimizer", context.optimizers)):
            if not wrapped:
                raise errors.InvalidModelException(
                    f"{type(self._trial).__name__} has wrapped no {what}: give it to "
                    f"context.wrap_{what}() in __init__, so that it is kept in checkpoints"
                )

    def _trial_id(self) -> int:
        return self._core.info.trial.trial_id if self._context._managed and self._core.info else 0

    # The whole.

    def run(self) -> None:
        context, plan = self._context, self._plan
        submitted = Path.cwd() if context._managed else None
        self._code = _code.files(type(self._trial), submitted) if self._is_chief else []
        with contextlib.ExitStack() as exits:
            with self._checkpoint_to_load() as path:
                going_on = path is not None and self._take_position(path)
                first, uuid = self.position.batches_trained, plan.latest_checkpoint
                for callback in self._callbacks.named.values():
                    callback.on_trial_startup(first, uuid)
                    exits.callback(callback.on_trial_shutdown)
                # Making an iterator draws a random number, so the saved random state is loaded after it.
                self._iterator = exits.enter_context(self._training_batches())
                exits.callback(self._forget_iterator)
                self._validate_trial = self._validation()
                if path is not None:
                    self._load(path, going_on)
            self._prepare_batches()
            if context._profiler is not None:
                exits.enter_context(context._profiler)
            if plan.profiling_enabled:
                self._core.profiler.on()
                exits.callback(self._core.profiler.off)
            self._callbacks.call("on_training_start")
            self._train()

    @contextlib.contextmanager
    def _checkpoint_to_load(self) -> Iterator[Path | None]:
        uuid = self._plan.latest_checkpoint
        if uuid is None:
            yield None
            return
        with self._core.checkpoint.restore_path(uuid) as path:
            yield Path(path)

    def _validation(self) -> Validation:
        return Validation(self._trial, self._context, self._callbacks, self._plan.test_mode)

    def _take_position(self, path: Path) -> bool:
        """Read the position from the checkpoint. Returns True if the checkpoint is this trial's own. Of
        another trial's checkpoint only the weights are used."""
        saved = self._read_position(path)
        if saved.trial_id != self.position.trial_id:
            logger.info(
                "the checkpoint %s is another trial's: training begins with its state, at batch 0",
                self._plan.latest_checkpoint,
            )
            return False
        self.position = saved
        return True

    def _read_position(self, path: Path) -> _checkpoint.TrialPosition:
        return _checkpoint.read_position(path)

    def _load(self, path: Path, going_on: bool) -> None:
        state = _checkpoint.read_state(path)
        self._callbacks.call("on_checkpoint_load_start", state)
        _checkpoint.load(state, self._context, self._callbacks, going_on)
        if going_on:
            logger.info("going on after batch %d", self.position.batches_trained)

    @contextlib.contextmanager
    def _training_batches(self) -> Iterator[Iterator[Any]]:
        """Endless batches from the position on; sets ``self._scale``."""
        context = self._context
        dist = context.distributed
        loader = self._trial.build_training_data_loader()
        if not isinstance(loader, DataLoader) and not context._repro_checks_disabled:
            raise _data.not_reproducible(
                loader, "context.experimental.disable_dataset_reproducibility_checks()"
            )
        length, batches = _data.training_batches(
            loader, context.get_trial_seed(), self.position.batches_trained, dist.size, dist.rank
        )
        records = None
        if "global_batch_size" in context.get_hparams():
            records = context.get_global_batch_size()
        self._set_scale(length, records)
        with batches as iterator:
            yield iterator

    def _set_scale(self, length: int | None, records: int | None) -> None:
        """``length``: the length of an epoch in batches."""
        context = self._context
        per_epoch = context._exp_conf.get_records_per_epoch()
        if length is None and records and per_epoch:
            length = max(per_epoch // records, 1)
        if length == 0:
            raise errors.InvalidModelException(
                "the training data loader gives no batch: check that the dataset is not empty, "
                "and with drop_last not smaller than a batch"
            )
        self._scale = Scale(length, records)
        context._epoch_length = length

    def _forget_iterator(self) -> None:
        del self._iterator

    def _prepare_batches(self) -> None:
        """The work on each batch beside ``train_batch``, decided once."""
        context = self._context
        self._after_batch: list[Callable[[int], None]] = []
        train = by_name(self._trial.train_batch, ("batch", "epoch_idx", "batch_idx"))
        self._train_batch = train
        if context._auto_amp:
            self._after_batch.append(lambda _: context._update_scaler())
        for scheduler in context.lr_schedulers:
            step = _lr_scheduler.after_batches(scheduler, context._aggregation_frequency)
            if step is not None:
                self._after_batch.append(step)
        if context._profiler is not None:
            profiler = context._profiler
            self._after_batch.append(lambda _: profiler.step())

    def _train(self) -> None:
        plan, position = self._plan, self.position
        if plan.step_zero_validation and position.batches_trained == 0:
            self._validate()
        for target in plan.lengths():
            self._train_to(target)
            if self._stopping:
                return

    def _train_to(self, target: Goal) -> None:
        plan, position, scale = self._plan, self.position, self._scale
        last = scale.batches(target.length)
        while position.batches_trained < last:
            done = position.batches_trained
            periods = (plan.reporting_period, plan.validation_period, plan.checkpoint_period)
            self._train_stretch(scale.first_end(periods, done, last))
            self._tell_stored(wait=False)
            done = position.batches_trained
            if self._is_chief:
                target.progress(scale, done, self._core.train)
            if scale.ends(plan.validation_period, done) and not self._validation_is_current():
                self._validate()
            if scale.ends(plan.checkpoint_period, done) and not self._checkpoint_is_current():
                self._save(may_skip=plan.async_checkpoints == "skip")
            if self._must_stop():
                self._stopping = True
                if not self._checkpoint_is_current():
                    self._save()
                self._tell_stored(wait=True)
                return
        # After a resume at this very batch the metrics are gone, and the searcher waits for them.
        if not self._validation_is_current() or (target.wants_metric and self._validated is None):
            self._validate()
        # Save the checkpoint first: the searcher's decision may end this process.
        if not self._checkpoint_is_current():
            self._save()
        self._tell_stored(wait=True)
        if self._is_chief and target.wants_metric and self._validated is not None:
            target.completed(self._validated[1][self._plan.searcher_metric or ""])

    def _must_stop(self) -> bool:
        if self._context.get_stop_requested():
            logger.info("the training ends, because the training code asked for it")
            return True
        if self._core.preempt.should_preempt():
            logger.info("preempted after batch %d", self.position.batches_trained)
            return True
        return False

    # A stretch of batches.

    def _train_stretch(self, end: int) -> None:
        context = self._context
        self._say("training")
        context.reset_reducers()
        for model in context.models:
            model.train()
        outputs = self._train_batches(end)
        batches = _metrics.settled(outputs)
        if context.distributed.size > 1:
            batches = [
                {**one}
                for part in zip(*context.distributed.allgather(batches), strict=True)
                for one in [self._average(list(part))]
            ]
        metrics = self._average(batches)
        metrics.update(context._reducers.reduce(for_training=True))
        metrics = {**metrics, **self._counts(metrics)}
        done = self.position.batches_trained
        if self._is_chief:
            self._core.train.report_training_metrics(done, metrics, batches)
        context._flush_writer()
        self._callbacks.call("on_training_workload_end", avg_metrics=metrics, batch_metrics=batches)

    def _train_batches(self, end: int) -> list[dict[str, Any]]:
        """Train until ``end`` batches are trained in all, or stop earlier if a long stretch is preempted."""
        context, position = self._context, self.position
        iterator, train_batch, snapshot = self._iterator, self._train_batch, self._snapshot
        after_batch = self._after_batch
        to_device = context.to_device if context._auto_to_device else None
        epoch_length = self._scale.batches_per_epoch or sys.maxsize
        epoch, within = divmod(position.batches_trained, epoch_length)
        outputs: list[dict[str, Any]] = []
        keep = outputs.append
        monotonic = time.monotonic
        # Workers of one trial would not see the time pass alike.
        ask_at = monotonic() + PATIENCE if context.distributed.size == 1 else float("inf")
        for idx in range(position.batches_trained, end):
            context._batch = idx
            if within == 0:
                self._callbacks.start_epoch(epoch)
            batch = next(iterator)
            if to_device is not None:
                batch = to_device(batch)
            keep(snapshot(train_batch(batch, epoch, idx)))
            for step in after_batch:
                step(idx)
            within += 1
            position.batches_trained = idx + 1
            if within == epoch_length:
                self._end_epoch(epoch)
                epoch, within = epoch + 1, 0
            if monotonic() > ask_at:
                ask_at = monotonic() + PATIENCE
                if self._core.preempt.should_preempt():
                    break
        return outputs

    def _end_epoch(self, epoch: int) -> None:
        self.position.epochs_trained = epoch + 1
        _lr_scheduler.end_epoch(self._context.lr_schedulers, epoch)
        self._callbacks.call("on_training_epoch_end", epoch)

    def _counts(self, metrics: dict[str, Any]) -> dict[str, int]:
        """The metrics by which searchers count time, without those that the trial itself reports."""
        done = self.position.batches_trained
        counts = {"batches": done, "epochs": self.position.epochs_trained}
        searcher = self._context._exp_conf.get("searcher") or {}
        if searcher.get("time_metric") == "records" and self._scale.records_per_batch:
            counts["records"] = done * self._scale.records_per_batch
        return {name: count for name, count in counts.items() if name not in metrics}

    # Validations and checkpoints.

    def _validation_is_current(self) -> bool:
        return self.position.last_val == self.position.batches_trained

    def _checkpoint_is_current(self) -> bool:
        return self.position.last_ckpt == self.position.batches_trained

    def _validate(self) -> None:
        self._say("validating")
        # Validations must not change the training's random numbers, however many there are.
        with _rng.kept(self._context.device):
            metrics = self._validate_trial()
        done = self.position.batches_trained
        best = self._is_chief and self._is_best(self._searchers(metrics))
        self.position.last_val = done
        self._validated = (done, metrics)
        if self._is_chief:
            self._core.train.report_validation_metrics(done, {**metrics, **self._counts(metrics)})
        self._context._flush_writer()
        policy = self._plan.checkpoint_policy
        wanted = policy == "all" or (policy == "best" and best)
        wanted = self._context.distributed.broadcast(wanted and done > 0)
        if wanted and not self._checkpoint_is_current():
            self._save()

    def _searchers(self, metrics: dict[str, Any]) -> float | None:
        """The searcher's metric, None off-cluster. It becomes a number in ``metrics``."""
        name = self._plan.searcher_metric
        if name is None:
            return None
        if name not in metrics:
            raise errors.InvalidModelException(
                f"searcher.metric is {name!r}, but the validation has no such metric; it has "
                f"{', '.join(map(str, metrics)) or 'none'}"
            )
        metrics[name] = number = _metrics.one_number(metrics[name], name)
        return number

    def _is_best(self, value: float | None) -> bool:
        """True if no validation of the experiment was better so far.

        If another validation was equally good, this one still counts as the best: it may be a repetition
        after a crash.
        """
        plan = self._plan
        if value is None or plan.checkpoint_policy != "best":
            return False
        best = self._core.train.get_experiment_best_validation()
        if best is None or best != best:
            return True
        return value <= best if plan.smaller_is_better else value >= best

    def _save(self, may_skip: bool = False) -> None:
        context, position = self._context, self.position
        if may_skip and context.distributed.broadcast(self._core.checkpoint.is_busy()):
            logger.info(
                "no checkpoint after batch %d: the last one is still being stored",
                position.batches_trained,
            )
            return
        self._tell_stored(wait=True)
        self._say("checkpointing")
        position.last_ckpt = position.batches_trained
        uuid = None
        rng_states = context.distributed.gather(_rng.capture(context.device))
        if rng_states is not None:
            state = _checkpoint.collect(context, self._callbacks, rng_states)
            self._callbacks.call("on_checkpoint_save_start", state)
            metadata = _checkpoint.metadata(position)
            now = dataclasses.replace(position)

            def write(path: Path, state: dict[str, Any]) -> None:
                _checkpoint.write(path, state, now, type(self._trial), context, self._code)

            if self._stores_in_background:
                uuid = self._core.checkpoint._save_state(state, metadata, write)
            else:
                with self._core.checkpoint.store_path(metadata) as (path, uuid):
                    write(path, state)
                    self._callbacks.call("on_checkpoint_end", str(path))
                    self._callbacks.call("on_checkpoint_write_end", str(path))
        self._untold = context.distributed.broadcast(uuid)
        self._tell_stored(wait=not self._stores_in_background)

    def _tell_stored(self, wait: bool) -> None:
        """Tell the callbacks of the last checkpoint if it is stored, or when it is. Raises its errors."""
        if self._untold is None:
            return
        checkpoint = self._core.checkpoint
        is_over = wait or not checkpoint.is_busy()
        if self._is_chief and is_over:
            checkpoint.wait()
        if self._context.distributed.broadcast(is_over):
            uuid, self._untold = self._untold, None
            self._callbacks.call("on_checkpoint_upload_end", uuid=uuid)

    def _say(self, status: str) -> None:
        if status != self._status and self._is_chief:
            self._status = status
            self._core.train.set_status(status)


def _checked(callbacks: Any) -> dict[str, PyTorchCallback]:
    fine = isinstance(callbacks, dict) and all(
        isinstance(name, str) and isinstance(callback, PyTorchCallback)
        for name, callback in callbacks.items()
    )
    if not fine:
        raise errors.InvalidModelException(
            "build_callbacks() must return a dict of pytorch.PyTorchCallback objects by name, "
            f"found {callbacks!r}"
        )
    return dict(callbacks)


PyTorchTrial.trial_controller_class = TrainingLoop
