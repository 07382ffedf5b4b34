"""A LightningModule under our Trainer: the same weights as under Lightning's own."""

from __future__ import annotations

import sys
import types
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import TensorDataset

from determined import core, errors, pytorch

lightning = pytest.importorskip("lightning.pytorch", reason="needs lightning")

from determined.lightning.experimental import DetLogger  # noqa: E402
from determined.pytorch.lightning import LightningAdapter  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")
STEPS = 4


class Line(lightning.LightningModule):  # type: ignore[misc,name-defined,unused-ignore]
    """y = w x; its hooks note when they are called."""

    def __init__(self, schedule: str = "epoch") -> None:
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)
        self.schedule = schedule
        self.calls: list[str] = []

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        inputs, targets = batch
        loss = torch.nn.functional.mse_loss(self.layer(inputs), targets)
        self.log("double", 2 * loss)
        self.calls.append(f"{self.trainer.current_epoch}.{batch_idx}")
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        inputs, targets = batch
        self.log_dict({"error": torch.nn.functional.l1_loss(self.layer(inputs), targets)})

    def on_validation_epoch_end(self) -> None:
        self.log("weight", self.layer.weight.sum())

    def on_train_epoch_end(self) -> None:
        self.calls.append("epoch end")

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["mine"] = 5

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.calls.append(f"mine {checkpoint['mine']}")

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.Adam(self.parameters(), lr=0.1)
        if self.schedule == "plateau":
            plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, threshold=9)
            return {"optimizer": optimizer, "lr_scheduler": plateau, "monitor": "error"}
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
        if self.schedule == "epoch":
            return [optimizer], [scheduler]
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": scheduler, "interval": "step", "frequency": 2},
        }


def dataset(batches: int) -> TensorDataset:
    inputs = torch.randn(4 * batches, 2, generator=torch.Generator().manual_seed(1))
    return TensorDataset(inputs, inputs.sum(1, keepdim=True))


class LineTrial(LightningAdapter):
    """Its global batches have 4 records."""

    module: Any = None
    shuffle = False

    def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
        torch.manual_seed(0)
        super().__init__(
            context, lightning_module=self.module or Line(context.get_hparam("schedule"))
        )

    def build_training_data_loader(self) -> Any:
        size = 4 // self.context.distributed.size
        return pytorch.DataLoader(dataset(STEPS), batch_size=size, shuffle=self.shuffle)

    def build_validation_data_loader(self) -> Any:
        return pytorch.DataLoader(dataset(2), batch_size=4 // self.context.distributed.size)


def fit(
    length: int | pytorch.TrainUnit,
    schedule: str = "epoch",
    distributed: core.DistributedContext | None = None,
    trial_class: type[LineTrial] = LineTrial,
    **options: Any,
) -> Any:
    """The trial after this number of epochs, or this length."""
    length = pytorch.Epoch(length) if isinstance(length, int) else length
    with pytorch.init(hparams={"schedule": schedule}, distributed=distributed) as context:
        trial = trial_class(context)
        pytorch.Trainer(trial, context).fit(
            max_length=length, validation_period=pytorch.Epoch(1), **options
        )
    return trial


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))


@pytest.mark.parametrize("schedule", ["epoch", "step", "plateau"])
def test_the_same_weights_as_under_lightning(schedule: str) -> None:
    ours = fit(3, schedule).lightning_module
    torch.manual_seed(0)
    theirs = Line(schedule)
    lightning.Trainer(
        max_epochs=3,
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        num_sanity_val_steps=0,
    ).fit(
        theirs,
        torch.utils.data.DataLoader(dataset(STEPS), batch_size=4),
        torch.utils.data.DataLoader(dataset(2), batch_size=4),
    )
    assert torch.equal(ours.layer.weight, theirs.layer.weight)
    assert ours.calls == theirs.calls
    assert ours.calls[:5] == ["0.0", "0.1", "0.2", "0.3", "epoch end"]


def test_metrics(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "determined")
    fit(1)
    (training,) = [line for line in caplog.messages if line.startswith("training metrics")]
    assert "'loss'" in training
    assert "'double'" in training
    (validation,) = [line for line in caplog.messages if line.startswith("validation metrics")]
    assert "'error'" in validation
    assert "'weight'" in validation


def test_resumed_as_if_unbroken(tmp_path: Path) -> None:
    unbroken = fit(3).lightning_module
    fit(2)
    folder = max(
        (tmp_path / "data/determined/checkpoints").iterdir(), key=lambda p: p.stat().st_mtime_ns
    )
    state = torch.load(folder / "state_dict.pth", weights_only=False)
    assert list(state["models_state_dict"][0]) == ["layer.weight", "layer.bias"]
    resumed = fit(3, latest_checkpoint=folder.name).lightning_module
    assert resumed.calls == ["mine 5", "2.0", "2.1", "2.2", "2.3", "epoch end"]
    assert torch.equal(unbroken.layer.weight, resumed.layer.weight)


class ByHand(Line):
    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False


class Clipping(Line):
    def configure_gradient_clipping(self, *args: Any, **kwargs: Any) -> None:
        pass


class TwoOptimizers(Line):
    def configure_optimizers(self) -> Any:
        return [torch.optim.SGD(self.parameters(), 0.1), torch.optim.SGD(self.parameters(), 0.1)]


class BadInterval(Line):
    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), 0.1)
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
        return [optimizer], [{"scheduler": scheduler, "interval": "hour"}]


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (ByHand, "optimizes by hand"),
        (Clipping, "overrides configure_gradient_clipping"),
        (TwoOptimizers, "must return one optimizer"),
        (BadInterval, r"interval \(epoch or step\)"),
    ],
)
def test_its_refusals(module: type[Line], message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LineTrial, "module", module())
    with pytest.raises(errors.InvalidModelException, match=message):
        fit(1)


def test_attributes_that_the_modules_trainer_lacks() -> None:
    with pytest.raises(AttributeError, match=r"self\.trainer\.datamodule is not known"):
        _ = fit(1).lightning_module.trainer.datamodule


def test_mixed_precision() -> None:
    types: dict[str, Any] = {}

    class Typed(Line):
        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            types["training"] = self.layer(batch[0]).dtype
            return super().training_step(batch, batch_idx)

        def validation_step(self, batch: Any, batch_idx: int) -> None:
            types["validation"] = self.layer(batch[0]).dtype
            super().validation_step(batch, batch_idx)

    class Mixed(LineTrial):
        def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
            LightningAdapter.__init__(self, context, lightning_module=Typed(), precision=16)

    fit(1, trial_class=Mixed)
    assert types == {"training": torch.bfloat16, "validation": torch.bfloat16}


def test_precision_of_old() -> None:
    with pytorch.init() as context, pytest.raises(ValueError, match="16 or 32, found 64"):
        LineTrial.__base__.__init__(  # type: ignore[misc]
            object.__new__(LineTrial), context, Line(), precision=64
        )


def test_the_logger_of_scripts_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []
    fake: Any = types.ModuleType("core_v2")
    fake.init = lambda **arguments: calls.append(arguments)
    fake.close = lambda: calls.append("closed")
    fake.train = types.SimpleNamespace(
        report_training_metrics=lambda step, metrics: calls.append((step, metrics))
    )
    monkeypatch.setitem(sys.modules, "determined.experimental.core_v2", fake)
    logger = DetLogger(config="the config")
    assert calls == []
    logger.log_metrics({"loss": 1.5}, 3)
    logger.finalize("success")
    begun = [{"config": "the config"}, (3, {"loss": 1.5})]
    assert calls == [*begun, "closed"]
    # A test after the training; it fails, which the end of the script will tell.
    logger.log_metrics({"loss": 1.5}, 3)
    logger.finalize("failed")
    assert calls == [*begun, "closed", *begun]
