"""The callback for ``lightning.Trainer``."""

from __future__ import annotations

import logging
import math
import tempfile
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint

from determined import _own_checkpoint, _processes, core, errors
from determined._lengths import Lengths

logger = logging.getLogger("determined.lightning")

FILE = "lightning.ckpt"


class DeterminedCallback(Checkpoint):
    """Connects a Trainer to the trial: pass it in ``callbacks``, and its ``ckpt_path`` to ``fit``.

    The callback reports the metrics that the module logs: training metrics every ``log_every_n_steps``
    batches and at the end of an epoch, validation metrics after a validation. Checkpoints
    (``lightning.ckpt``) are stored at the end of every ``checkpoint_epochs``-th epoch (0: of no epoch), at
    the end of each length that the searcher gives, before a preemption, and at the end of the training. It
    replaces Lightning's ModelCheckpoint, which Lightning then does not add by itself.

    On the cluster ``searcher.max_length`` (or ``max_time``) of the configuration replaces the Trainer's
    ``max_epochs`` and ``max_steps``. Off the cluster metrics are logged and checkpoints stored locally. In
    several processes (``determined.launch.torch_distributed``, ``core.init(distributed=…)``,
    ``Trainer(strategy="ddp", devices=…)``) each process makes the callback. The chief reports its own
    metrics; with ``self.log(…, sync_dist=True)`` these cover all processes.

    A trial that is preempted within an epoch goes on with the number of batches that were left. As always
    with Lightning, these are other batches unless the training data loader has a state.

    Raises errors.InvalidConfigurationException when the searcher counts in anything but epochs and
    batches, errors.InvalidCheckpointException when the latest checkpoint is not one of this callback,
    ValueError when the Trainer and ``core_context`` do not agree on the number of processes.
    """

    def __init__(self, core_context: core.Context, checkpoint_epochs: int = 1) -> None:
        super().__init__()
        if checkpoint_epochs < 0:
            raise ValueError(f"checkpoint_epochs must be 0 or more, found {checkpoint_epochs}")
        self._core = core_context
        self._checkpoint_epochs = checkpoint_epochs
        self._is_chief = core_context.distributed.rank == 0
        self._lengths = Lengths(core_context, "lightning.Trainer")
        # Metrics by name as they were when last looked at: what changed since is new.
        self._seen: dict[str, Any] = {}
        self._before_validation: dict[str, Any] = {}
        self._validated: dict[str, Any] = {}
        self._saved_at = -1
        self._preempted = False
        # The Trainer's should_stop and check_val_every_n_epoch, while a validation is demanded.
        self._before_demand: tuple[bool, int | None] | None = None
        self._limit_val_batches: int | float | None = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._weights: Path | None = None
        self.ckpt_path: str | None = self._download()

    # Before the training.

    def _download(self) -> str | None:
        """The file to go on from. None: train from the beginning, perhaps with another trial's weights."""
        info = self._core.info
        if info is None or info.latest_checkpoint is None:
            return None
        dist = self._core.distributed
        if dist.local_rank == 0:
            # It lasts as long as this process, and so until all have loaded it.
            self._folder = tempfile.TemporaryDirectory(prefix="determined-lightning-")
        folder = dist.broadcast_local(self._folder.name if self._folder is not None else None)
        self._core.checkpoint.download(info.latest_checkpoint, folder)
        path = Path(folder) / FILE
        if not path.is_file():
            raise errors.InvalidCheckpointException(
                f"checkpoint {info.latest_checkpoint} has no {FILE}: "
                "determined.lightning.DeterminedCallback has not stored it"
            )
        if _own_checkpoint.is_own(
            self._core, self._core.checkpoint.get_metadata(info.latest_checkpoint)
        ):
            return str(path)
        logger.info(
            "the checkpoint %s is another trial's: training begins with its weights, at batch 0",
            info.latest_checkpoint,
        )
        self._weights = path
        return None

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        dist = self._core.distributed
        advice = f'give it strategy="ddp", devices={dist.local_size}, num_nodes={dist.cross_size}'
        _processes.check(dist, "Trainer", trainer.world_size, advice)
        if stage != "fit" or self._lengths.longest is None:
            return
        before = (trainer.max_epochs, trainer.max_steps)
        loop = trainer.fit_loop
        if self._lengths.unit is core.Unit.EPOCHS:
            loop.max_epochs, loop.epoch_loop.max_steps = self._lengths.longest, -1
        else:
            steps = math.ceil(self._lengths.longest / trainer.accumulate_grad_batches)
            loop.max_epochs, loop.epoch_loop.max_steps = -1, steps
        if (trainer.max_epochs, trainer.max_steps) != before:
            logger.info(
                "the searcher's length in the configuration counts: the Trainer's max_epochs %s "
                "and max_steps %s become %s and %s",
                *before,
                trainer.max_epochs,
                trainer.max_steps,
            )

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._weights is not None:
            # Lightning's own checkpoints hold more than tensors.
            state = torch.load(self._weights, map_location="cpu", weights_only=False)
            pl_module.load_state_dict(state["state_dict"])

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        batches = self._batches(trainer)
        self._saved_at = -1
        if self.ckpt_path is not None and batches:
            self._saved_at = batches
            logger.info("going on after batch %d", batches)
        elif self.ckpt_path is not None:
            logger.warning(
                "training begins at batch 0 although the trial has a checkpoint; to go on from it, call "
                "trainer.fit(..., ckpt_path=callback.ckpt_path)"
            )
        if self._lengths.longest is not None and self._lengths.unit is core.Unit.BATCHES:
            # The schedules have been told. How many steps that is in truth depends on accumulation at the
            # ends of epochs and on modules that optimize by themselves: batches are counted here.
            trainer.fit_loop.epoch_loop.max_steps = -1
        # Lengths that the checkpoint ends, and of which the searcher had not heard when it was stored.
        while self._lengths.reached(self._units(trainer)):
            self._lengths.complete(self._validated)
        if self._lengths.over:
            self._stop(trainer)

    # What is reported.

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._seen = dict(trainer.callback_metrics)

    def on_train_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        batches = self._batches(trainer)
        if not trainer.is_last_batch and batches % trainer.log_every_n_steps == 0:
            self._report_training(trainer)
        self._report_progress(trainer)
        if self._core.preempt.should_preempt():
            logger.info("preempted after batch %d", batches)
            self._preempted = True
        in_batches = self._lengths.unit is core.Unit.BATCHES
        longest = self._lengths.longest
        if self._lengths.reached(self._units(trainer)):
            self._demand_validation(trainer)
        elif in_batches and longest is not None and batches >= longest:
            self._stop(trainer)
        elif self._preempted and trainer.is_last_batch:
            # There is little left of this epoch; the checkpoint of its end is the better one.
            self._stop(trainer)
        elif self._preempted:
            self._save(trainer)
            self._stop(trainer)
            self._limit_val_batches, trainer.limit_val_batches = trainer.limit_val_batches, 0

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._before_validation = dict(trainer.callback_metrics)
        if self._before_demand is not None:
            # Restore the former value: other callbacks may have stopped the training.
            trainer.should_stop, trainer.check_val_every_n_epoch = self._before_demand
            self._before_demand = None

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.sanity_checking or trainer.state.fn != "fit":
            return
        new = _changed(self._before_validation, trainer.callback_metrics)
        metrics = {**self._counts(trainer), **new}
        self._lengths.check(metrics)
        self._validated = metrics
        if self._is_chief:
            self._core.train.report_validation_metrics(self._batches(trainer), metrics)
        at_end = self._lengths.unit is core.Unit.BATCHES and self._lengths.reached(
            self._batches(trainer)
        )
        if at_end:
            self._complete(trainer)
            if self._lengths.over or self._preempted:
                self._stop(trainer)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        # Lightning calls this in mid-epoch too, when it is stopped.
        if not trainer.is_last_batch:
            return
        self._report_training(trainer)
        validated = self._validated.get("batches") == self._batches(trainer)
        in_epochs = self._lengths.unit is core.Unit.EPOCHS
        if in_epochs and validated and self._lengths.reached(self._units(trainer)):
            self._complete(trainer)
        if self._lengths.over or self._preempted:
            self._stop(trainer)
        every = self._checkpoint_epochs
        if self._preempted or (every and (trainer.current_epoch + 1) % every == 0):
            self._save(trainer)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._limit_val_batches is not None:
            trainer.limit_val_batches = self._limit_val_batches
        self._save(trainer)
        if self._lengths.reached(self._units(trainer)):
            raise errors.InvalidModelException(
                f"the searcher waits for {self._lengths.metric!r}, but no validation ran at the "
                f"end of its length of {self._lengths.current}: fit() needs validation data (and the "
                "Trainer no limit_val_batches=0)"
            )

    def _report_training(self, trainer: Trainer) -> None:
        # Lightning keeps old ones, of other epochs and of validations.
        new = _changed(self._seen, trainer.callback_metrics)
        self._seen = dict(trainer.callback_metrics)
        metrics = {name: value for name, value in new.items() if name not in self._validated}
        if self._is_chief and metrics:
            self._core.train.report_training_metrics(
                self._batches(trainer), {**self._counts(trainer), **metrics}
            )

    def _report_progress(self, trainer: Trainer) -> None:
        if not trainer.is_last_batch:
            return
        units = self._units(trainer)
        if self._lengths.longest is not None:
            self._lengths.progress(units, units / self._lengths.longest)
            return
        total = trainer.estimated_stepping_batches
        if total and math.isfinite(total):
            self._lengths.progress(units, trainer.global_step / total)

    # Where the training stands.

    def _batches(self, trainer: Trainer) -> int:
        return trainer.fit_loop.total_batch_idx + 1

    def _epochs(self, trainer: Trainer) -> float:
        length = trainer.num_training_batches
        if not length or not math.isfinite(length):
            # Nobody knows how long an epoch is. Lightning counts it after the validation at its end.
            progress = trainer.fit_loop.epoch_progress.current
            ended = progress.ready > progress.processed and trainer.is_last_batch
            return float(progress.processed + ended)
        return self._batches(trainer) / length

    def _units(self, trainer: Trainer) -> float:
        in_epochs = self._lengths.unit is core.Unit.EPOCHS
        return self._epochs(trainer) if in_epochs else self._batches(trainer)

    def _counts(self, trainer: Trainer) -> dict[str, Any]:
        return {"batches": self._batches(trainer), "epochs": self._epochs(trainer)}

    # Checkpoints and ends.

    def _complete(self, trainer: Trainer) -> None:
        # Save the checkpoint first: the searcher's decision may end this process.
        self._save(trainer)
        self._lengths.complete(self._validated)

    def _save(self, trainer: Trainer) -> None:
        batches = self._batches(trainer)
        if batches == self._saved_at:
            return
        self._saved_at = batches
        dist = self._core.distributed
        if not self._is_chief:
            # Every process takes part: strategies gather the state.
            trainer.save_checkpoint(dist.broadcast(None))
            return
        metadata = _own_checkpoint.metadata(self._core, batches)
        with self._core.checkpoint.store_path(metadata) as (path, _):
            trainer.save_checkpoint(dist.broadcast(str(Path(path) / FILE)))

    def _demand_validation(self, trainer: Trainer) -> None:
        """Make Lightning validate before it stops; the next step is decided after that."""
        self._before_demand = trainer.should_stop, trainer.check_val_every_n_epoch
        trainer.check_val_every_n_epoch = 1
        self._stop(trainer)

    def _stop(self, trainer: Trainer) -> None:
        trainer.should_stop = True
        # Lightning would train on up to its minimum.
        trainer.fit_loop.min_epochs = trainer.fit_loop.epoch_loop.min_steps = None

    def state_dict(self) -> dict[str, Any]:
        metrics = {name: float(value) for name, value in self._validated.items()}
        return {"validated": metrics}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._validated = state_dict["validated"]


def _changed(before: dict[str, Any], now: dict[str, Any]) -> dict[str, Any]:
    """The values that are new objects: Lightning makes a new object for each logged value."""
    return {name: value for name, value in now.items() if before.get(name) is not value}
