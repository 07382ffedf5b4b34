"""DeterminedCallback with a real Trainer of Lightning."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from one_trial import OneTrial
from torch.utils.data import DataLoader, TensorDataset

from determined import core, errors

lightning = pytest.importorskip("lightning.pytorch", reason="needs lightning")

from determined.lightning import DeterminedCallback  # noqa: E402

STEPS = 4
SINGLE = {"name": "single", "metric": "error"}
pytestmark = pytest.mark.filterwarnings("ignore")


class Line(lightning.LightningModule):  # type: ignore[misc,name-defined,unused-ignore]
    """y = w x by gradient descent, with a learning rate that falls each epoch."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        inputs, targets = batch
        loss = torch.nn.functional.mse_loss(self.layer(inputs), targets)
        self.log("loss", loss)
        self.log("mean_loss", loss, on_step=False, on_epoch=True)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        inputs, targets = batch
        self.log("error", torch.nn.functional.l1_loss(self.layer(inputs), targets))

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.Adam(self.parameters(), lr=0.1)
        return [optimizer], [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)]


def loader(batches: int) -> Any:
    inputs = torch.randn(4 * batches, 2, generator=torch.Generator().manual_seed(1))
    return DataLoader(TensorDataset(inputs, inputs.sum(1, keepdim=True)), batch_size=4)


def train(
    context: core.Context, checkpoint_epochs: int = 1, watch: Any = None, **options: Any
) -> Any:
    """One leg of a training; the Trainer."""
    torch.manual_seed(0)
    module = options.pop("module", None) or Line()
    data, others = options.pop("data", loader(STEPS)), options.pop("others", [])
    if watch is not None:
        module.on_train_batch_start = lambda batch, idx: watch(module.trainer.global_step)
    callback = DeterminedCallback(context, checkpoint_epochs)
    ckpt_path = options.pop("ckpt_path", callback.ckpt_path)
    trainer = lightning.Trainer(
        **{
            "max_epochs": 3,
            "accelerator": "cpu",
            "log_every_n_steps": 1,
            "logger": False,
            "enable_progress_bar": False,
            "enable_model_summary": False,
            "callbacks": [callback, *others],
            **options,
        }
    )
    trainer.fit(module, data, loader(1), ckpt_path=ckpt_path, weights_only=False)
    return trainer


def test_metrics_checkpoints_and_progress(trial: OneTrial) -> None:
    with trial.leg(SINGLE) as context:
        train(context)
    training = trial.reports("training")
    assert sorted(training) == list(range(1, 3 * STEPS + 1))
    assert set(training[1]) == {"loss", "batches", "epochs"}
    assert set(training[STEPS]) == {"loss", "mean_loss", "batches", "epochs"}
    assert set(training[STEPS + 1]) == set(training[1])
    validation = trial.reports("validation")
    assert sorted(validation) == trial.checkpoints() == [4, 8, 12]
    assert set(validation[4]) == set(validation[8]) == {"error", "batches", "epochs"}
    assert [report["epochs"] for report in validation.values()] == [1, 2, 3]
    assert trial.service.body("/progress")["progress"] == 1


def stop_at(trial: OneTrial, context: core.Context, step: int) -> Any:
    context.preempt.should_preempt()

    def watch(now: int) -> None:
        if now == step:
            trial.preempt(context)

    return watch


@pytest.mark.parametrize("step", [STEPS - 1, STEPS + 1])
def test_preempted_and_resumed(trial: OneTrial, tmp_path: Path, step: int) -> None:
    unbroken = OneTrial(tmp_path / "other")
    with unbroken.leg(SINGLE) as context:
        train(context)
    with trial.leg(SINGLE) as context:
        train(context, watch=stop_at(trial, context, step), min_epochs=2)
    assert trial.checkpoints()[-1] == step + 1
    assert any(path.endswith("ack_preemption") for path in trial.service.paths("POST"))
    with trial.leg(SINGLE) as context:
        train(context)
    assert sorted(trial.reports("training")) == sorted(unbroken.reports("training"))
    assert sorted(trial.reports("validation")) == [4, 8, 12]
    if step == STEPS - 1:
        assert trial.reports("validation") == unbroken.reports("validation")
        assert trial.reports("training") == unbroken.reports("training")


def test_killed_and_resumed_with_the_same_losses(trial: OneTrial, tmp_path: Path) -> None:
    unbroken = OneTrial(tmp_path / "other")
    with unbroken.leg(SINGLE) as context:
        train(context)

    def die(step: int) -> None:
        if step == 2 * STEPS:
            raise KeyboardInterrupt

    with trial.leg(SINGLE) as context, pytest.raises((KeyboardInterrupt, SystemExit)):
        train(context, watch=die)
    assert trial.checkpoints()[-1] == 2 * STEPS
    with trial.leg(SINGLE) as context:
        train(context)
    assert trial.reports("training") == unbroken.reports("training")
    assert trial.reports("validation") == unbroken.reports("validation")


@pytest.mark.parametrize(
    "validates",
    [
        {"check_val_every_n_epoch": 1},
        {"check_val_every_n_epoch": 2},
        {"check_val_every_n_epoch": None, "val_check_interval": 5},
    ],
)
@pytest.mark.parametrize(("unit", "lengths"), [("epochs", [1, 3]), ("batches", [3, 9])])
def test_lengths_that_the_searcher_assigns(
    trial: OneTrial,
    unit: str,
    lengths: list[int],
    validates: dict[str, Any],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """They end in a validation, whenever else the Trainer validates."""
    caplog.set_level(logging.INFO, "determined")
    trial.service.lengths = lengths
    with trial.leg({**SINGLE, "max_length": {unit: 9}}) as context:
        trainer = train(context, checkpoint_epochs=0, **validates)
    assert trainer.check_val_every_n_epoch == validates["check_val_every_n_epoch"]
    batches = [length * (STEPS if unit == "epochs" else 1) for length in lengths]
    assert trial.checkpoints() == batches
    metrics = [trial.reports("validation")[step]["error"] for step in batches]
    assert trial.service.completed == list(zip(lengths, metrics, strict=True))
    assert max(trial.reports("training")) == batches[-1]
    assert "the searcher's length in the configuration counts" in caplog.text


class Two(Line):
    """Two optimizers, by hand: two steps a batch."""

    automatic_optimization = False

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        for optimizer in self.optimizers():
            loss = super().training_step(batch, batch_idx)
            optimizer.zero_grad()
            self.manual_backward(loss)
            optimizer.step()
        return loss

    def configure_optimizers(self) -> Any:
        return [torch.optim.SGD(self.parameters(), lr=0.1) for _ in range(2)]


class Endless(torch.utils.data.IterableDataset[Any]):
    """Its length is unknown."""

    def __iter__(self) -> Any:
        return iter(loader(STEPS).dataset)


@pytest.mark.parametrize(
    ("unit", "length", "options"),
    [
        ("batches", 6, {"module": Two()}),
        ("epochs", 2, {"data": DataLoader(Endless(), batch_size=4)}),
        # Steps at the ends of epochs have fewer batches: 8 steps instead of 16 / 3, that is 6.
        ("batches", 16, {"accumulate_grad_batches": 3}),
    ],
    ids=["two optimizers", "no length", "accumulated"],
)
def test_lengths_whose_steps_are_not_batches(
    trial: OneTrial, unit: str, length: int, options: dict[str, Any]
) -> None:
    trial.service.lengths = [length]
    with trial.leg({**SINGLE, "max_length": {unit: length}}) as context:
        train(context, **options)
    batches = length * (STEPS if unit == "epochs" else 1)
    last = trial.reports("validation")[batches]
    assert last["epochs"] == batches / STEPS or unit == "batches"
    assert trial.service.completed == [(length, last["error"])]
    assert max(trial.reports("training") | trial.reports("validation")) == batches
    assert trial.checkpoints()[-1] == batches


def test_stopped_early_at_the_end_of_a_length(trial: OneTrial) -> None:
    trial.service.lengths = [2, 4]
    stopper = lightning.callbacks.EarlyStopping("error", patience=1, min_delta=100)
    with trial.leg({**SINGLE, "max_length": {"epochs": 4}}) as context:
        train(context, others=[stopper], check_val_every_n_epoch=1)
    assert sorted(trial.reports("validation")) == trial.checkpoints() == [STEPS, 2 * STEPS]


def test_two_trainings_and_a_forgotten_checkpoint(
    trial: OneTrial, caplog: pytest.LogCaptureFixture
) -> None:
    with trial.leg(SINGLE) as context:
        trainer = train(context, max_epochs=1)
        (callback,) = [one for one in trainer.callbacks if isinstance(one, DeterminedCallback)]
        train(context, max_epochs=1, callbacks=[callback])
    assert trial.checkpoints() == [STEPS, STEPS]
    assert "although" not in caplog.text
    with trial.leg(SINGLE) as context:
        train(context, max_epochs=1, ckpt_path=None)
    assert "although the trial has a checkpoint" in caplog.text


def test_a_length_that_ended_but_was_not_heard_of(trial: OneTrial) -> None:
    searcher = {**SINGLE, "max_length": {"epochs": 9}}
    trial.service.lengths = [1, 2]

    def lost(method: str, path: str, body: Any) -> None:
        if path.endswith("completed_operation"):
            raise KeyboardInterrupt

    trial.service.before = lost  # type: ignore[assignment]
    with pytest.raises((KeyboardInterrupt, SystemExit)), trial.leg(searcher) as context:
        train(context, checkpoint_epochs=0)
    trial.service.before = lambda *_: None
    with trial.leg(searcher) as context:
        train(context, checkpoint_epochs=0)
    assert [length for length, _ in trial.service.completed] == [1, 2]
    assert trial.service.completed[0][1] == trial.reports("validation")[4]["error"]


def test_another_trials_checkpoint_gives_its_weights(trial: OneTrial) -> None:
    with trial.leg(SINGLE) as context:
        first = train(context)
    for stored in trial.service.checkpoints.values():
        stored["metadata"]["trial_id"] = 99
    trial.service.reports.clear()
    with trial.leg(SINGLE) as context:
        trainer = train(context, max_epochs=1, limit_train_batches=1)
    assert sorted(trial.reports("training")) == [1]
    then = first.lightning_module.layer.weight
    assert (trainer.lightning_module.layer.weight - then).abs().max() < 0.11  # one step of Adam


def test_no_validation_where_the_searcher_waits_for_one(trial: OneTrial) -> None:
    trial.service.lengths = [1]
    with (
        pytest.raises(errors.InvalidModelException, match=r"needs validation data"),
        trial.leg({**SINGLE, "max_length": {"epochs": 9}}) as context,
    ):
        train(context, limit_val_batches=0)


@pytest.mark.parametrize(("size", "advice"), [(2, "devices="), (0, "from_torch_distributed")])
def test_processes_that_do_not_know_of_each_other(trial: OneTrial, size: int, advice: str) -> None:
    with pytest.raises(ValueError, match=advice), trial.leg(SINGLE) as context:
        context.distributed.size = size
        train(context)


def test_off_the_cluster(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "determined")
    with core.init(checkpoint_storage=str(tmp_path / "local")) as context:
        train(context)
    assert "validation metrics after 12 steps" in caplog.text
    assert len(list((tmp_path / "local").glob("*/lightning.ckpt"))) == 3
