"""The callback for ``transformers.Trainer``."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from determined import _own_checkpoint, _processes, core
from determined._lengths import Lengths
from determined.transformers._resume import checkpoint_name, download

logger = logging.getLogger("determined.transformers")

# Of no use to a search, and different every time.
SPEED = ("_runtime", "_per_second", "_compilation_time", "_preparation_time")


class DetCallback(TrainerCallback):
    """Connects a Trainer to the trial: make it *before* the Trainer, and pass it as the last of
    ``callbacks``.

    It reports what the Trainer logs (``eval_…``: validation, anything else: training), stores the
    checkpoints it saves, and stops it when the trial is preempted or the searcher has no further length.
    ``args`` are changed: ``max_steps`` and ``num_train_epochs`` to ``searcher.max_length`` (or
    ``max_time``) of the configuration, and ``resume_from_checkpoint`` to the trial's latest checkpoint, for
    ``trainer.train(resume_from_checkpoint=args.resume_from_checkpoint)``. Off the cluster metrics are
    logged and checkpoints stored locally.

    A checkpoint is always saved at the end of a length, at a preemption and at the end of the training. The
    model is evaluated at the end of a length, and at the end of the training if ``args`` ask for
    evaluations. In several processes (``core.init(distributed=…)``) each process makes the callback; the
    chief reports.

    Args:
        core_context: of ``det.core.init()``. args: the arguments of the Trainer. filter_metrics: report
        only metrics whose name contains one of these; metrics that the searcher needs are reported in any
        case. None: all. user_data: JSON that is stored in every checkpoint, as ``my_data.json`` beside the
        model.

    Raises ValueError when the Trainer and ``core_context`` do not agree on the number of processes,
    errors.InvalidConfigurationException when the searcher counts in anything but epochs and
    batches (a batch is a step of the optimizer), errors.InvalidCheckpointException when the latest
    checkpoint is not one of this callback.
    """

    def __init__(
        self,
        core_context: core.Context,
        args: TrainingArguments,
        filter_metrics: list[str] | None = None,
        user_data: dict[str, Any] | None = None,
    ) -> None:
        super().__init__()
        advice = "on CPUs it needs TrainingArguments(use_cpu=True)"
        _processes.check(core_context.distributed, "Trainer", args.world_size, advice)
        self.core_context = core_context
        self.filter_metrics = filter_metrics
        self.user_data = user_data
        # The step after which it was last done.
        self._trained = self._evaluated = self._saved = self._downloaded = -1
        self._metrics: dict[str, Any] = {}
        self._unreported: dict[str, Any] = {}
        self._training = self._stopping = self._idle = False
        self._percent = 0
        self._lengths = Lengths(core_context, "transformers.Trainer")
        if self._lengths.longest is not None:
            self._set_length(args, self._lengths.longest)
        self.load_last_checkpoint(args)

    # Before the training.

    def _set_length(self, args: TrainingArguments, length: int) -> None:
        before = (args.max_steps, args.num_train_epochs)
        if self._lengths.unit is core.Unit.BATCHES:
            args.max_steps = length
        else:
            args.max_steps, args.num_train_epochs = -1, float(length)
        if (args.max_steps, args.num_train_epochs) != before:
            logger.info(
                "the searcher's length in the configuration counts: the arguments' max_steps %s "
                "and num_train_epochs %s become %s and %s",
                *before,
                args.max_steps,
                args.num_train_epochs,
            )

    def load_last_checkpoint(self, args: TrainingArguments) -> None:
        """Download the trial's latest checkpoint to ``args.output_dir``, and set its path in ``args``."""
        info = self.core_context.info
        if info is None or info.latest_checkpoint is None:
            return
        if getattr(args, "overwrite_output_dir", False):
            logger.info("the latest checkpoint is not loaded, because overwrite_output_dir is set")
            return
        path = download(self.core_context, info.latest_checkpoint, Path(args.output_dir))
        args.resume_from_checkpoint = str(path)
        state = TrainerState.load_from_json(str(path / "trainer_state.json"))
        self._saved = self._downloaded = state.global_step
        self._take_back_ends(args, state)
        logger.info("going on after step %d", state.global_step)

    def _take_back_ends(self, args: TrainingArguments, state: TrainerState) -> None:
        """Complete lengths that end with the checkpoint and were not yet reported when it was stored."""
        at_end = [entry for entry in state.log_history if entry.get("step") == state.global_step]
        metrics = {name: value for entry in at_end for name, value in entry.items()}
        while self._lengths.reached(self._units(state)):
            self._lengths.complete(self._counted(metrics, state))
        if self._lengths.over:
            # Nothing to train. Within an epoch the Trainer cannot help but train one more step.
            self._idle = True
            args.max_steps = state.global_step

    # What is reported.

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        if not logs or self._idle or any(name.startswith("test_") for name in logs):
            return
        metrics = self._wanted(logs)
        if any(name.startswith("eval_") for name in logs):
            self._note_validation(metrics, state)
        # The Trainer sums up at its end, maybe once more for the same step.
        elif "total_flos" not in logs or state.global_step != self._trained:
            self._trained = state.global_step
            self._report("training", self._counted(metrics, state))

    def _note_validation(self, metrics: dict[str, Any], state: TrainerState) -> None:
        """The new metrics of a step. With several data sets each data set is logged separately."""
        if state.global_step != self._evaluated:
            self._evaluated, self._metrics = state.global_step, self._counted({}, state)
        new = {name: value for name, value in metrics.items() if name not in self._metrics}
        self._metrics.update(new)
        self._unreported.update(new)
        if not self._training:
            self._report_validation()

    def _report_validation(self) -> None:
        """A validation is over, with all its data sets."""
        if not self._unreported:
            return
        counts = {name: self._metrics[name] for name in ("batches", "epochs")}
        metrics, self._unreported = {**counts, **self._unreported}, {}
        self._lengths.check(self._metrics)
        self._report("validation", metrics)

    def _report(self, group: str, metrics: dict[str, Any]) -> None:
        if self.core_context.distributed.rank == 0:
            self.core_context.train.report_metrics(group, metrics["batches"], metrics)

    def _wanted(self, logs: dict[str, Any]) -> dict[str, Any]:
        always = {self._lengths.metric, self._lengths.time_metric}
        return {
            name: value
            for name, value in logs.items()
            if name != "epoch"
            and value is not None
            and not name.endswith(SPEED)
            and (
                self.filter_metrics is None
                or name in always
                or any(part in name for part in self.filter_metrics)
            )
        }

    def _counted(self, metrics: dict[str, Any], state: TrainerState) -> dict[str, Any]:
        return {"batches": state.global_step, "epochs": state.epoch or 0.0, **metrics}

    def _units(self, state: TrainerState) -> float:
        in_epochs = self._lengths.unit is core.Unit.EPOCHS
        return float(state.epoch or 0) if in_epochs else state.global_step

    def _report_progress(self, state: TrainerState) -> None:
        percent = int(100 * state.global_step / max(state.max_steps, 1))
        if percent >= self._percent + 5 or percent == 100:
            self._percent = percent
            self._lengths.progress(self._units(state), percent / 100)

    # Where it stops.

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._training = True
        if state.global_step < self._downloaded:
            logger.warning(
                "training begins at step %d, but the trial's latest checkpoint is of step %d; to "
                "go on from it, call "
                "trainer.train(resume_from_checkpoint=args.resume_from_checkpoint)",
                state.global_step,
                self._downloaded,
            )
        self._downloaded = -1
        if state.global_step < self._saved:
            # Not the training that was saved: its steps are to be done again, or another Trainer's.
            self._trained = self._evaluated = self._saved = -1

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._report_validation()

    def on_evaluate(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        # An earlier callback may end the training (early stopping, for example).
        if self._training and control.should_training_stop and not self._idle:
            control.should_save = state.global_step != self._saved

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._report_validation()
        self._training = False
        if state.global_step > self._saved and not self._idle:
            logger.warning(
                "the end of the training, step %d, is in no checkpoint, because another callback "
                "stopped the training after its evaluation: make DetCallback the last of the "
                "Trainer's callbacks",
                state.global_step,
            )

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._report_progress(state)
        if self.core_context.preempt.should_preempt():
            logger.info("preempted after step %d", state.global_step)
            self._stopping = control.should_training_stop = True
        # At an epoch's end on_epoch_end is next: the checkpoint must be saved after its evaluation, which
        # draws random numbers.
        if not _ends_epoch(state):
            self._ask(args, state, control)

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if control.should_training_stop and not _ends_epoch(state):
            # The Trainer calls this in mid-epoch too, when it is stopped; everything due was done then.
            control.should_evaluate = control.should_save = False
        self._ask(args, state, control)

    def _ask(self, args: TrainingArguments, state: TrainerState, control: TrainerControl) -> None:
        """Decide what to do after this step, once."""
        ending = self._lengths.reached(self._units(state))
        last = control.should_training_stop and not self._stopping
        if ending or (last and args.eval_strategy != "no"):
            control.should_evaluate = True
        if ending or control.should_training_stop:
            control.should_save = True
        if state.global_step == self._evaluated or self._idle:
            control.should_evaluate = False
        if state.global_step == self._saved or self._idle:
            control.should_save = False

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._report_validation()
        self._saved = state.global_step
        self._store(Path(args.output_dir), state.global_step)
        if self._lengths.reached(self._units(state)):
            self._lengths.complete(self._metrics)
            if self._lengths.over:
                self._stopping = control.should_training_stop = True

    def _store(self, output_dir: Path, step: int) -> None:
        name = checkpoint_name(step)
        dist = self.core_context.distributed
        if dist.rank == 0 and self.user_data is not None:
            (output_dir / name / "my_data.json").write_text(json.dumps(self.user_data))
        metadata = _own_checkpoint.metadata(self.core_context, step)

        def selected(path: str) -> bool:
            return path.startswith(f"{name}/")

        # Each process has written its random generators' state.
        dist.allgather(None)
        if dist.cross_size == 1:
            if dist.rank == 0:
                self.core_context.checkpoint.upload(output_dir, metadata, selector=selected)
        else:
            mine = output_dir if dist.local_rank == 0 else None
            self.core_context.checkpoint.upload(mine, metadata, shard=True, selector=selected)
        # The Trainer may delete old files now (save_total_limit).
        dist.allgather(None)


def _ends_epoch(state: TrainerState) -> bool:
    return float(state.epoch or 0).is_integer()
