"""The callback for ``model.fit()``."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import pickle
import tempfile
from pathlib import Path
from typing import Any

import keras

from determined import core, errors
from determined._lengths import Lengths
from determined.keras import _rng

logger = logging.getLogger("determined.keras")

MODEL = "model_checkpoint"
STATE = "callback_state"


class DeterminedCallback(keras.callbacks.ProgbarLogger):
    """Reports, stores checkpoints, stops for preemption and goes on: one of ``fit``'s ``callbacks``.

    ::

        callback = DeterminedCallback(core_context, checkpoint=info.latest_checkpoint,
                                      continue_id=info.trial.trial_id)
        model.fit(..., epochs=10, callbacks=[callback])

    Training metrics are reported per epoch (or number of batches), validation metrics under their names
    without ``val_``. All happens at the ends of epochs: checkpoints, preemption, the lengths that the
    searcher gives (``searcher.max_length: {epochs: n}``; ``fit`` needs as many ``epochs`` at least). A
    checkpoint is always stored at a preemption and at the end of the training. A resumed training goes on
    with the weights, the optimizer, and the random generators of python, numpy and torch, with any
    ``initial_epoch`` of ``fit``. With ``verbose`` there is a line per epoch in place of a progress bar.

    Leave out ``BackupAndRestore`` and ``ModelCheckpoint``, which would also restore and save.

    In several processes (``core.init(distributed=…)``) each makes the callback and calls ``fit`` with its
    share of the data; the chief reports its own metrics. On torch, Keras trains a separate model in each
    process, unless the optimizer averages the gradients (docs/train/frameworks.md). The callback notices this
    after the first batch.

    Args:
        core_context: of ``det.core.init()``. checkpoint: uuid of the checkpoint to begin with; None: from
        scratch. continue_id: kept in checkpoints. From a checkpoint of the same id the training continues.
        From a checkpoint of another id only the model is loaded, and the training begins at epoch 0.
        train_metrics_report_period: "epoch", or a number of batches. checkpoint_epochs: store a checkpoint
        after this many epochs; 0: only when it is necessary.

    Raises errors.InvalidConfigurationException for a searcher's length that is not in epochs or beyond
    those of ``fit``, errors.InvalidModelException when the searcher's metric is missing, or when processes
    train different models.
    """

    def __init__(
        self,
        core_context: core.Context,
        checkpoint: str | None,
        continue_id: int | str,
        *,
        train_metrics_report_period: int | str = "epoch",
        checkpoint_epochs: int = 1,
    ) -> None:
        super().__init__()
        period = train_metrics_report_period
        if period != "epoch" and (not isinstance(period, int) or period < 1):
            raise ValueError(
                f"train_metrics_report_period must be 'epoch' or a number of batches, found {period!r}"
            )
        if checkpoint_epochs < 0:
            raise ValueError(f"checkpoint_epochs must be 0 or more, found {checkpoint_epochs}")
        self._core = core_context
        self._checkpoint = checkpoint
        self._continue_id = continue_id
        self._period = period
        self._checkpoint_epochs = checkpoint_epochs
        self._is_chief = core_context.distributed.rank == 0
        self._lengths = Lengths(core_context, "keras", (core.Unit.EPOCHS,))
        # Totals, including the training restored from a checkpoint.
        self._batches = 0
        self._epochs = 0
        self._in_epoch = False
        self._saved_epochs = -1
        self._validated: tuple[int, dict[str, Any]] | None = None
        # On other backends it is Keras that distributes the training, and knows.
        several = core_context.distributed.size > 1
        self._unchecked = several and keras.backend.backend() == "torch"

    # For subclasses.

    def save_model(self, model: Any, path: str, distributed: core.DistributedContext) -> None:
        """Write ``model`` to files whose names begin with ``path``.

        Called in every process; only the chief's files are kept.
        """
        model.save_weights(f"{path}.weights.h5")

    def load_model(self, model: Any, path: str, distributed: core.DistributedContext) -> None:
        """Load what :meth:`save_model` wrote, in every process."""
        model.load_weights(f"{path}.weights.h5")

    # Keras calls these. The empty ones are those of the progress bar.

    def set_params(self, params: dict[str, Any]) -> None:
        self.params = params

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        epochs = self.params.get("epochs") or 0
        longest = self._lengths.longest
        if longest is not None and longest > epochs:
            raise errors.InvalidConfigurationException(
                {},
                f"the configuration's searcher may train {longest} epochs, but model.fit() was "
                f"called with epochs={epochs}: give epochs={longest} or more (the searcher's "
                "length counts)",
            )
        # Only the first fit() restores the checkpoint; another one goes on from the model's present state.
        checkpoint, self._checkpoint = self._checkpoint, None
        if checkpoint is not None:
            self._load(checkpoint)
        while self._lengths.reached(self._epochs) and self._validated is not None:
            # The checkpoint ends it, and the searcher had not heard of it when that was stored.
            self._lengths.complete(self._validated[1])
        if 0 < epochs <= self._epochs and not self._lengths.over:
            logger.warning(
                "there is nothing to train: model.fit() was called with epochs=%d, but %d epochs "
                "are trained already. A second fit() with this callback continues the count: "
                "fit(epochs=<of both>, initial_epoch=<of the first>)",
                epochs,
                self._epochs,
            )
        # As keras' BackupAndRestore does.
        self.model._initial_epoch = epochs if self._lengths.over else self._epochs

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self._epochs, self._in_epoch = epoch, True

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        self._batches += 1
        if self._unchecked:
            self._check_one_model()
        if self._period != "epoch" and self._batches % int(self._period) == 0:
            self._report("training", logs or {}, self._epochs + 1)

    def on_test_begin(self, logs: dict[str, Any] | None = None) -> None:
        pass

    def on_test_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        pass

    def on_predict_begin(self, logs: dict[str, Any] | None = None) -> None:
        pass

    def on_predict_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        pass

    def on_predict_end(self, logs: dict[str, Any] | None = None) -> None:
        pass

    def on_test_end(self, logs: dict[str, Any] | None = None) -> None:
        # Within fit() the epoch ends after its validation; evaluate() may be called by itself.
        epochs = self._epochs + self._in_epoch
        metrics = self._report("validation", logs or {}, epochs)
        self._lengths.check(metrics)
        self._validated = (epochs, metrics)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self._epochs, self._in_epoch = epoch + 1, False
        logs = logs or {}
        if self._period == "epoch":
            training = {name: value for name, value in logs.items() if not name.startswith("val_")}
            self._report("training", training, self._epochs)
        total = self._lengths.longest or self.params["epochs"]
        self._lengths.progress(self._epochs, self._epochs / total)
        if self._is_chief and self.params.get("verbose"):
            said = ", ".join(f"{name} {value:.4g}" for name, value in logs.items())
            print(f"epoch {self._epochs}/{total}: {said}", flush=True)
        if self._lengths.reached(self._epochs):
            self._end_length()
        if self._checkpoint_epochs and self._epochs % self._checkpoint_epochs == 0:
            self._save()
        if self._core.preempt.should_preempt():
            logger.info("preempted after epoch %d", self._epochs)
            self.model.stop_training = True

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        if self._epochs != self._saved_epochs and self._batches:
            self._save()
        # The next fit() of this model is another training.
        self.model._initial_epoch = None

    # What they do.

    def _check_one_model(self) -> None:
        self._unchecked = False
        digest = hashlib.sha256()
        for weight in self.model.trainable_weights:
            digest.update(keras.ops.convert_to_numpy(weight).tobytes())
        if len(set(self._core.distributed.allgather(digest.digest()))) > 1:
            raise errors.InvalidModelException(
                "the processes train different models: their weights differ after the first batch. "
                "On torch, Keras does not average gradients by itself. Give model.compile() an "
                "optimizer whose apply() averages them (docs/train/frameworks.md has one), and begin "
                "with the same weights in every process, e.g. by keras.utils.set_random_seed()"
            )

    def _report(self, group: str, logs: dict[str, Any], epochs: int) -> dict[str, Any]:
        metrics = {"batches": self._batches, "epochs": epochs, **logs}
        if self._is_chief:
            self._core.train.report_metrics(group, self._batches, metrics)
        return metrics

    def _end_length(self) -> None:
        if self._validated is None or self._validated[0] != self._epochs:
            raise errors.InvalidModelException(
                f"the searcher waits for {self._lengths.metric!r}, but no validation ran after "
                f"epoch {self._epochs}: model.fit() needs validation_data, with validation_freq=1"
            )
        # Save the checkpoint first: the searcher's decision may end this process.
        self._save()
        self._lengths.complete(self._validated[1])
        if self._lengths.over:
            self.model.stop_training = True

    def _save(self) -> None:
        if self._saved_epochs == self._epochs:
            return
        self._saved_epochs = self._epochs
        dist = self._core.distributed
        rng_states = dist.gather(_rng.capture())
        if rng_states is None:
            with tempfile.TemporaryDirectory(prefix="determined-keras-") as folder:
                self.save_model(self.model, str(Path(folder) / MODEL), dist)
            return
        state = {
            "epoch": self._epochs - 1,
            "steps_completed": self._batches,
            "continue_id": self._continue_id,
            "validated": self._validated,
            "rng_states": rng_states,
        }
        metadata = {"steps_completed": self._batches}
        with self._core.checkpoint.store_path(metadata) as (path, _):
            self.save_model(self.model, str(Path(path) / MODEL), dist)
            (Path(path) / STATE).write_bytes(pickle.dumps(state))

    def _load(self, checkpoint: str) -> None:
        with contextlib.ExitStack() as exits:
            path = Path(exits.enter_context(self._core.checkpoint.restore_path(checkpoint)))
            self.load_model(self.model, str(path / MODEL), self._core.distributed)
            if not (path / STATE).is_file():
                return
            state = pickle.loads((path / STATE).read_bytes())
        if state["continue_id"] != self._continue_id:
            logger.info(
                "the checkpoint %s has the continue_id %r, but this training has %r: it begins "
                "with the checkpoint's model, at epoch 0",
                checkpoint,
                state["continue_id"],
                self._continue_id,
            )
            return
        self._batches = state["steps_completed"]
        self._epochs = self._saved_epochs = state["epoch"] + 1
        self._validated = state.get("validated")
        states = state.get("rng_states") or []
        if len(states) == self._core.distributed.size:
            _rng.restore(states[self._core.distributed.rank])
        logger.info("going on after epoch %d", self._epochs)
