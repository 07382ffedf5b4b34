"""What happens when: hooks, reports, validations, checkpoints, steps of optimizers and schedulers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import IterableDataset
from trials import SIZE, SmallTrial, World, data

from determined import errors, pytorch
from determined.pytorch._callback import HOOKS

Mode = pytorch.LRScheduler.StepMode


def recorder(calls: list[str]) -> pytorch.PyTorchCallback:
    """A callback that writes its calls down."""

    def hook(name: str) -> Any:
        return lambda self, *args, **kwargs: calls.append(name)

    methods = {name: hook(name) for name in HOOKS}
    return type("Recorder", (pytorch.PyTorchCallback,), methods)()


def hooks_of(world: World, **fit: Any) -> list[str]:
    calls: list[str] = []

    def prepare(trial: Any) -> None:
        trial.callbacks = {"recorder": recorder(calls)}

    world.train(prepare=prepare, **fit)
    return [call.removeprefix("on_") for call in calls]


VALIDATION = [
    "validation_start",
    "validation_epoch_start",
    "validation_epoch_end",
    "validation_end",
]
CHECKPOINT = [
    "checkpoint_save_start", "checkpoint_end", "checkpoint_write_end", "checkpoint_upload_end",
]  # fmt: skip


def test_the_order_of_hooks(world: World) -> None:
    calls = hooks_of(
        world,
        max_length=pytorch.Batch(7),
        validation_period=pytorch.Batch(3),
        checkpoint_policy="none",
        checkpoint_period=pytorch.Batch(3),
    )
    assert calls == [
        "trial_startup", "training_start", "training_epoch_start",
        "training_workload_end", *VALIDATION, *CHECKPOINT,
        "training_epoch_end", "training_epoch_start",
        "training_workload_end", *VALIDATION, *CHECKPOINT,
        "training_workload_end", *VALIDATION, *CHECKPOINT,
        "trial_shutdown",
    ]  # fmt: skip


def test_the_order_of_hooks_after_a_resume(world: World) -> None:
    first = world.train(max_length=pytorch.Batch(7))
    fit: dict[str, Any] = {"checkpoint_policy": "none", "latest_checkpoint": first.stored[7]}
    assert hooks_of(world, max_length=pytorch.Batch(8), **fit) == [
        "trial_startup", "checkpoint_load_start", "training_start",
        "training_workload_end", *VALIDATION, *CHECKPOINT, "trial_shutdown",
    ]  # fmt: skip


def test_shutdown_follows_a_failure(world: World) -> None:
    calls: list[str] = []

    def prepare(trial: Any) -> None:
        trial.callbacks = {"one": recorder(calls), "two": recorder(calls)}
        trial.evaluate_batch = lambda batch, batch_idx: 1 / 0

    with pytest.raises(ZeroDivisionError):
        world.train(prepare=prepare)
    assert calls[:2] == ["on_trial_startup", "on_trial_startup"]
    assert calls[-2:] == ["on_trial_shutdown", "on_trial_shutdown"]


def test_the_arguments_of_hooks(world: World) -> None:
    given: dict[str, Any] = {}

    class Taker(pytorch.PyTorchCallback):
        def on_trial_startup(self, first_batch_idx: int, checkpoint_uuid: str | None) -> None:
            given["startup"] = (first_batch_idx, checkpoint_uuid)

        def on_training_workload_end(self, avg_metrics: Any, batch_metrics: Any) -> None:
            given["workload"] = (avg_metrics, batch_metrics)

        def on_validation_epoch_end(self, outputs: list[Any]) -> None:
            given["outputs"] = outputs

        def on_validation_end(self, metrics: dict[str, Any]) -> None:
            metrics["added"] = 1

        def on_checkpoint_save_start(self, checkpoint: dict[str, Any]) -> None:
            checkpoint["mine"] = "x"

        def on_checkpoint_load_start(self, checkpoint: dict[str, Any]) -> None:
            given["mine"] = checkpoint["mine"]

    def prepare(trial: Any) -> None:
        trial.callbacks = {"taker": Taker()}

    trial = world.train(prepare=prepare, max_length=pytorch.Batch(3))
    assert given["startup"] == (0, None)
    average, batches = given["workload"]
    losses = [loss for loss, _ in trial.seen]
    assert [batch["loss"] for batch in batches] == losses
    assert average["loss"] == pytest.approx(sum(losses) / 3)
    assert (average["batches"], average["epochs"]) == (3, 0)
    assert [float(output["first"]) for output in given["outputs"]] == [0, 4]
    assert trial.reports.reports[-1][2]["added"] == 1
    world.train(prepare=prepare, max_length=pytorch.Batch(4), latest_checkpoint=trial.stored[3])
    assert given["startup"] == (3, trial.stored[3])
    assert given["mine"] == "x"


@pytest.mark.parametrize(
    ("fit", "training", "validation", "checkpoints"),
    [
        ({}, [10], [10], [10]),
        ({"reporting_period": pytorch.Batch(4)}, [4, 8, 10], [10], [10]),
        ({"validation_period": pytorch.Epoch(1)}, [5, 10], [5, 10], [5, 10]),
        (
            {"validation_period": pytorch.Batch(4), "checkpoint_policy": "none"},
            [4, 8, 10], [4, 8, 10], [10],
        ),
        ({"checkpoint_period": pytorch.Record(12)}, [3, 6, 9, 10], [10], [3, 6, 9, 10]),
        ({"checkpoint_period": pytorch.Batch([1, 7])}, [1, 7, 10], [10], [1, 7, 10]),
        ({"step_zero_validation": True}, [10], [0, 10], [10]),
        ({"test_mode": True}, [1], [1], [1]),
        ({"max_length": pytorch.Record(24)}, [6], [6], [6]),
    ],
)  # fmt: skip
def test_periods(
    world: World, fit: dict[str, Any], training: Any, validation: Any, checkpoints: Any
) -> None:
    trial = world.train(**fit)
    assert trial.reports.steps("training") == training
    assert trial.reports.steps("validation") == validation
    assert sorted(trial.stored) == checkpoints
    assert trial.reports.progress[-1] == 1.0


def test_the_end_that_the_training_asks_for(world: World) -> None:
    def prepare(trial: Any) -> None:
        trial.stop_after = 2

    trial = world.train(prepare=prepare, reporting_period=pytorch.Batch(3))
    assert trial.reports.steps("training") == [3]
    assert trial.reports.steps("validation") == []
    assert sorted(trial.stored) == [3]


class Gradients(SmallTrial):
    """Notes the weights' change and the learning rate at each batch."""

    mode, frequency = Mode.MANUAL_STEP, 1

    def __init__(self, context: Any) -> None:
        super().__init__(context)
        self.weight = torch.nn.Parameter(torch.zeros(()))
        module = torch.nn.Module()
        module.weight = self.weight
        context.wrap_model(module)
        self.sgd = context.wrap_optimizer(torch.optim.SGD([self.weight], lr=1.0))
        schedule = torch.optim.lr_scheduler.LambdaLR(self.sgd, lambda n: 1.0 + n)
        assert context.wrap_lr_scheduler(schedule, self.mode, self.frequency) is schedule
        self.schedule = schedule
        self.notes: list[tuple[float, float]] = []
        self.clip: Any = None

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
        context = self.context
        where = (context.current_train_epoch(), context.current_train_batch())
        assert where == (epoch_idx, batch_idx)
        assert context.is_epoch_start() == (batch_idx % 5 == 0)
        assert context.is_epoch_end() == (batch_idx % 5 == 4)
        loss = self.weight * (batch_idx + 1)
        context.backward(loss)
        context.step_optimizer(self.sgd, clip_grads=self.clip)
        self.notes.append((self.weight.item(), self.schedule.get_last_lr()[0]))
        return loss


def test_gradients_add_up_and_are_averaged(world: World) -> None:
    options: dict[str, Any] = {"context_options": {"aggregation_frequency": 3}}
    trial = world.train(Gradients, max_length=pytorch.Batch(7), **options)
    assert [weight for weight, _ in trial.notes] == [0, 0, -2, -2, -2, -7, -7]
    options["context_options"]["exp_conf"] = {
        "optimizations": {"average_aggregated_gradients": False}
    }
    trial = world.train(Gradients, max_length=pytorch.Batch(7), **options)
    assert [weight for weight, _ in trial.notes] == [0, 0, -6, -6, -6, -21, -21]


def test_gradients_that_add_up_are_not_zeroed_by_the_trial(world: World) -> None:
    class Zeroing(Gradients):
        def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
            self.sgd.zero_grad()
            self.context.backward(self.weight * 1)
            self.context.step_optimizer(self.sgd, auto_zero_grads=False)
            return {"weight": self.weight}

    assert world.train(Zeroing, max_length=pytorch.Batch(2)).weight.item() == -2
    with pytest.raises(errors.InvalidModelException, match="leave auto_zero_grads=False"):
        world.train(Zeroing, context_options={"aggregation_frequency": 2})


def test_gradients_are_clipped(world: World) -> None:
    def prepare(trial: Any) -> None:
        trial.clip = lambda parameters: torch.nn.utils.clip_grad_value_(parameters, 1.5)

    trial = world.train(Gradients, prepare, max_length=pytorch.Batch(3))
    assert [weight for weight, _ in trial.notes] == [-1, -2.5, -4]


@pytest.mark.parametrize(
    ("mode", "frequency", "aggregation", "rates"),
    [
        (Mode.MANUAL_STEP, 1, 1, [1, 1, 1, 1, 1, 1, 1]),
        (Mode.STEP_EVERY_BATCH, 1, 1, [1, 2, 3, 4, 5, 6, 7]),
        (Mode.STEP_EVERY_BATCH, 3, 1, [1, 1, 1, 2, 2, 2, 3]),
        (Mode.STEP_EVERY_EPOCH, 1, 1, [1, 1, 1, 1, 1, 2, 2]),
        (Mode.STEP_EVERY_EPOCH, 2, 1, [1, 1, 1, 1, 1, 1, 1]),
        (Mode.STEP_EVERY_OPTIMIZER_STEP, 1, 2, [1, 1, 2, 2, 3, 3, 4]),
        (Mode.STEP_EVERY_OPTIMIZER_STEP, 2, 1, [1, 1, 2, 2, 3, 3, 4]),
        # Not before the optimizer's step, and then as often as there were batches.
        (Mode.STEP_EVERY_BATCH, 1, 2, [1, 1, 3, 3, 5, 5, 7]),
        (Mode.STEP_EVERY_BATCH, 2, 3, [1, 1, 1, 2, 2, 2, 4]),
    ],
)
@pytest.mark.filterwarnings("error:Detected call of")
def test_learning_rates(
    world: World, mode: Any, frequency: int, aggregation: int, rates: list[int]
) -> None:
    trial_class = type("Trial", (Gradients,), {"mode": mode, "frequency": frequency})
    options = {"aggregation_frequency": aggregation}
    trial = world.train(trial_class, max_length=pytorch.Batch(7), context_options=options)
    assert [rate for _, rate in trial.notes] == rates


def test_evaluating_the_full_dataset(world: World) -> None:
    class Full(SmallTrial):
        evaluate_batch = pytorch.PyTorchTrial.evaluate_batch

        def evaluate_full_dataset(self, data_loader: Any) -> dict[str, Any]:
            assert not torch.is_grad_enabled() and not self.model.training
            return {"records": torch.tensor(sum(len(batch[0]) for batch in data_loader))}

    assert world.train(Full).reports.reports[-1][2]["records"] == 7


def test_evaluate_batch_of_early_releases(world: World) -> None:
    class Early(SmallTrial):
        def evaluate_batch(self, batch: Any) -> dict[str, Any]:  # type: ignore[override]
            return {"records": len(batch[0])}

        def evaluation_reducer(self) -> Any:
            return pytorch.Reducer.SUM

    assert world.train(Early).reports.reports[-1][2]["records"] == 7


class InItsOrder(SmallTrial):
    def train_batch(self, batch: Any, batch_idx: int, epoch_idx: int) -> Any:  # type: ignore[override]
        assert epoch_idx == batch_idx // 5
        return super().train_batch(batch, epoch_idx, batch_idx)

    def evaluate_batch(self, batch_idx: int, batch: Any) -> Any:  # type: ignore[override]
        return super().evaluate_batch(batch, batch_idx)


class InKeywords(SmallTrial):
    evaluate_batch = pytorch.PyTorchTrial.evaluate_batch

    def train_batch(self, batch: Any, **where: int) -> Any:  # type: ignore[override]
        assert where["epoch_idx"] == where["batch_idx"] // 5
        return super().train_batch(batch, **where)

    def evaluate_full_dataset(self, *, data_loader: Any) -> dict[str, Any]:  # type: ignore[override]
        return {"batches": len(data_loader), "epochs": 0.5}


class InNamesOfItsOwn(SmallTrial):
    def train_batch(self, data: Any, epoch: int, step: int) -> Any:  # type: ignore[override]
        return super().train_batch(data, epoch, step)


@pytest.mark.parametrize("trial_class", [InItsOrder, InKeywords, InNamesOfItsOwn])
def test_arguments_are_given_by_name(world: World, trial_class: Any) -> None:
    assert world.train(trial_class).seen == world.train().seen


def test_metrics_of_the_trial_that_are_named_as_counts(world: World) -> None:
    metrics = world.train(InKeywords).reports.reports[-1][2]
    assert (metrics["batches"], metrics["epochs"]) == (2, 0.5)


def test_hooks_of_early_releases(world: World) -> None:
    calls: list[str] = []

    class Early(pytorch.PyTorchCallback):
        def on_training_epoch_start(self) -> None:  # type: ignore[override]
            calls.append("epoch")

    def prepare(trial: Any) -> None:
        trial.callbacks = {"early": Early()}

    world.train(prepare=prepare)
    assert calls == ["epoch"] * 2


def test_batches_as_they_come(world: World) -> None:
    class Alone(SmallTrial):
        def __init__(self, context: Any) -> None:
            super().__init__(context)
            context.experimental.disable_auto_to_device()

        def build_training_data_loader(self) -> Any:
            return pytorch.DataLoader(data(), batch_size=SIZE, collate_fn=lambda rows: rows)

        def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
            assert isinstance(batch, list) and isinstance(batch[0], tuple)
            return {"n": len(batch)}

    assert world.train(Alone).reports.reports[0][2]["n"] == 4


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter([(torch.zeros(4), 0.0)] * 8)


class Streamed(SmallTrial):
    def build_training_data_loader(self) -> Any:
        return TorchDataLoader(Stream(), batch_size=SIZE)


class FreeStreamed(Streamed):
    def __init__(self, context: Any) -> None:
        super().__init__(context)
        context.experimental.disable_dataset_reproducibility_checks()


def test_streams_of_data(world: World) -> None:
    with pytest.raises(errors.InvalidModelException, match="disable_dataset_reproducibility"):
        world.train(Streamed)
    trial = world.train(FreeStreamed, max_length=pytorch.Batch(5))
    assert len(trial.seen) == 5
    with pytest.raises(ValueError, match="records_per_epoch"):
        world.train(FreeStreamed, max_length=pytorch.Epoch(1))
    options = {"exp_conf": {"records_per_epoch": 12}}
    trial = world.train(FreeStreamed, max_length=pytorch.Epoch(2), context_options=options)
    assert len(trial.seen) == 6


def test_streams_that_end(world: World) -> None:
    class Once(FreeStreamed):
        def build_training_data_loader(self) -> Any:
            return iter(TorchDataLoader(data(), batch_size=SIZE))

    with pytest.raises(ValueError, match=r"read only once \(5 batches\)"):
        world.train(Once, max_length=pytorch.Batch(7))


def test_profiles(world: World) -> None:
    ready: list[int] = []

    class Profiled(SmallTrial):
        def __init__(self, context: Any) -> None:
            super().__init__(context)
            context.set_profiler(
                activities=[torch.profiler.ProfilerActivity.CPU],
                schedule=torch.profiler.schedule(wait=1, warmup=1, active=1, repeat=1),
                on_trace_ready=lambda profile: ready.append(len(profile.events())),
            )

    world.train(Profiled, profiling_enabled=True)
    assert len(ready) == 1 and ready[0] > 0
