"""Names and signatures that users' code relies on, and what mistakes are answered with."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from trials import SIZE, SmallTrial, World, data

import determined as det
from determined import core, errors, pytorch
from determined.pytorch import _run, _trainer, samplers
from determined.pytorch._callback import Callbacks as PyTorchCallbacks
from determined.pytorch._validation import Validation
from tests.unit.core.core_service import make_info
from tests.waiting import TIMEOUT_S


def test_the_base_of_contexts() -> None:
    assert issubclass(pytorch.PyTorchTrialContext, det.TrialContext)
    config = {"hyperparameters": {"x": {"type": "const", "val": 3}, "y": 4}, "data": {"z": 5}}
    context = det.TrialContext.from_config(config)
    assert context.get_hparams() == {"x": 3, "y": 4}
    assert context.get_data_config() == {"z": 5}


def test_enumerations() -> None:
    assert [reducer.name for reducer in pytorch.Reducer] == ["AVG", "SUM", "MAX", "MIN"]
    modes = {"STEP_EVERY_EPOCH", "STEP_EVERY_BATCH", "MANUAL_STEP", "STEP_EVERY_OPTIMIZER_STEP"}
    assert set(pytorch.LRScheduler.StepMode.__members__) == modes
    assert pytorch.PyTorchTrial.trial_controller_class is not None
    assert pytorch.samplers is samplers
    assert pytorch.TorchData is not None


@pytest.mark.parametrize(
    ("fit", "kind", "error"),
    [
        ({"max_length": None}, ValueError, "needs max_length off-cluster"),
        ({"max_length": 3}, TypeError, "pytorch.Batch.n.*found 3"),
        ({"max_length": pytorch.Batch([1, 2])}, TypeError, "one number"),
        ({"validation_period": 5}, TypeError, "validation_period must be"),
        ({"reporting_period": None}, TypeError, "reporting_period"),
        ({"checkpoint_policy": "latest"}, ValueError, "best, all, none, found 'latest'"),
    ],
)
def test_arguments_of_fit(world: World, fit: dict[str, Any], kind: type, error: str) -> None:
    with pytest.raises(kind, match=error):
        world.train(**fit)


class Nothing(SmallTrial):
    evaluate_batch = pytorch.PyTorchTrial.evaluate_batch


class Both(SmallTrial):
    def evaluate_full_dataset(self, data_loader: Any) -> dict[str, Any]:
        return {}


class Number(SmallTrial):
    def evaluate_batch(self, batch: Any, batch_idx: int) -> Any:
        return 1.0


class Changing(SmallTrial):
    def evaluate_batch(self, batch: Any, batch_idx: int) -> Any:
        return {f"m{batch_idx}": 1}


class Unknown(SmallTrial):
    def evaluation_reducer(self) -> Any:
        return {"eror": pytorch.Reducer.SUM}


class NoValidation(SmallTrial):
    def build_validation_data_loader(self) -> Any:
        return None

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
        raise AssertionError("the training has begun")


class EmptyValidation(NoValidation):
    def build_validation_data_loader(self) -> Any:
        return pytorch.DataLoader(torch.utils.data.TensorDataset(torch.zeros(0)))


class Texts(SmallTrial):
    def evaluate_batch(self, batch: Any, batch_idx: int) -> Any:
        return {"name": "x"}


class Ragged(SmallTrial):
    def evaluate_batch(self, batch: Any, batch_idx: int) -> Any:
        return {"rows": torch.ones(batch_idx + 2)}


class NoModel(SmallTrial):
    def __init__(self, context: Any) -> None:
        super().__init__(context)
        context.models.clear()


class NoOptimizer(SmallTrial):
    def __init__(self, context: Any) -> None:
        super().__init__(context)
        context.optimizers.clear()


class Plateau(SmallTrial):
    def __init__(self, context: Any) -> None:
        super().__init__(context)
        schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(self.optimizer)
        context.wrap_lr_scheduler(schedule, pytorch.LRScheduler.StepMode.STEP_EVERY_EPOCH)


class Callbacks(SmallTrial):
    def build_callbacks(self) -> Any:
        return [pytorch.PyTorchCallback()]


class Empty(SmallTrial):
    def build_training_data_loader(self) -> Any:
        return pytorch.DataLoader(torch.utils.data.TensorDataset(torch.zeros(3)), 4, drop_last=True)


@pytest.mark.parametrize(
    ("trial_class", "error"),
    [
        (Nothing, "found neither"),
        (Both, "found both"),
        (Number, "dict of metrics, found float"),
        (Changing, "same metrics for every batch; found m0 and m1"),
        (Unknown, "names eror.*returns error, first"),
        (NoValidation, "build_validation_data_loader.*found None"),
        (EmptyValidation, "build_validation_data_loader.*is the dataset empty"),
        (Texts, "Reducer.AVG takes numbers.*for 'name' 'x', 'x'"),
        (Ragged, "arrays of one shape.*for 'rows'"),
        (NoModel, r"NoModel has wrapped no model: give it to context.wrap_model\(\)"),
        (NoOptimizer, r"no optimizer: give it to context.wrap_optimizer\(\)"),
        (Plateau, "MANUAL_STEP.*found StepMode.STEP_EVERY_EPOCH"),
        (Callbacks, "build_callbacks"),
        (Empty, "gives no batch"),
    ],
)
def test_trials_that_are_wrong(world: World, trial_class: Any, error: str) -> None:
    with pytest.raises(errors.InvalidModelException, match=error):
        world.train(trial_class)


def test_validation_data_that_every_process_would_read(world: World) -> None:
    class Plain(SmallTrial):
        def build_validation_data_loader(self) -> Any:
            return torch.utils.data.DataLoader(data(7), SIZE)

    assert len(world.train(Plain, max_length=pytorch.Batch(1)).seen) == 1
    with world.context() as context:
        trial = Plain(context)
        context.distributed = SimpleNamespace(size=2, rank=1)
        with pytest.raises(errors.InvalidModelException, match="each of 2 processes would"):
            Validation(trial, context, PyTorchCallbacks({}), test_mode=False)
        context.experimental.disable_dataset_reproducibility_checks()
        Validation(trial, context, PyTorchCallbacks({}), test_mode=False)


def test_contexts_answer_in_words(world: World) -> None:
    with world.context(hparams={"learning_rate": 1}) as context:
        with pytest.raises(ValueError, match=r"'learning_rat'; did you mean 'learning_rate'\?"):
            context.get_hparam("learning_rat")
        with pytest.raises(TypeError, match=r"torch\.nn\.Module, found int"):
            context.wrap_model(3)
        with pytest.raises(TypeError, match=r"torch\.optim\.Optimizer, found int"):
            context.wrap_optimizer(3)
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
        mode = pytorch.LRScheduler.StepMode.MANUAL_STEP
        with pytest.raises(ValueError, match="optimizer is not wrapped"):
            context.wrap_lr_scheduler(schedule, mode)
        with pytest.raises(TypeError, match=r"STEP_EVERY_EPOCH.*found 1"):
            context.wrap_lr_scheduler(schedule, 1)
        for ask in (context.current_train_batch, context.is_epoch_start):
            with pytest.raises(RuntimeError, match="has not started"):
                ask()
        for ask in (context.get_trial_id, context.get_experiment_id):
            with pytest.raises(RuntimeError, match="off-cluster"):
                ask()
        with pytest.raises(errors.InvalidExperimentException, match="global_batch_size"):
            context.get_global_batch_size()
        with pytest.raises(NotImplementedError, match="use_amp"):
            context.configure_apex_amp([], [])
        with pytest.raises(TypeError, match="found 1"):
            context.set_stop_requested(1)
        context.wrap_scaler(torch.amp.GradScaler("cpu"))
        with pytest.raises(ValueError, match="not both"):
            context.experimental.use_amp()
        with pytest.raises(TypeError, match="object of a PyTorchTrial class"):
            pytorch.Trainer(SmallTrial, context)


def test_init_off_cluster(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    config = {"reproducibility": {"experiment_seed": 5}, "data": {"url": "x"}}
    draws = []
    for _ in range(2):
        with pytorch.init(hparams={"global_batch_size": 8}, exp_conf=config) as context:
            draws.append(torch.rand(1).item())
            assert context.get_trial_seed() == 5
            assert context.get_data_config() == {"url": "x"}
            assert context.get_per_slot_batch_size() == 8
            assert context.get_tensorboard_path().is_dir()
    assert draws[0] == draws[1]


def test_init_on_the_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    info = make_info({"searcher": {"name": "single"}})
    monkeypatch.setattr(_trainer, "get_cluster_info", lambda: info)
    dist = core.DummyDistributedContext()
    mode = core.PreemptMode.WorkersAskChief
    dummy = core._context._dummy_context(dist, None, mode)
    monkeypatch.setattr(core, "init", lambda distributed: contextlib.nullcontext(dummy))
    given = {"of_the_script": 1, **dict.fromkeys(info.trial.hparams, "other")}
    with pytorch.init(hparams=given) as context:
        assert context.get_hparams() == {"of_the_script": 1, **info.trial.hparams}
    assert info.trial.hparams and "of_the_script" not in info.trial.hparams


def test_the_launcher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    Path("model_def.py").write_text(
        "from trials import SmallTrial\nclass MyTrial(SmallTrial): ...\nx = 1\n"
    )
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert _run.load_class("model_def:MyTrial").__name__ == "MyTrial"
    for spec, error in {
        "model_def": "MODULE:CLASS",
        "model_deff:MyTrial": "no module 'model_deff'",
        "model_def:MyTrail": "did you mean MyTrial?",
        "model_def:x": "not a subclass",
    }.items():
        with pytest.raises(SystemExit):
            _run.load_class(spec)
        assert error in capsys.readouterr().err
    sys.modules.pop("model_def")
    command = [
        sys.executable,
        "-m",
        "determined.launch.torch_distributed",
        "--trial",
        "model_def:MyTrial",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S)
    assert done.returncode == 1
    assert done.stderr.startswith("error: --trial model_def:MyTrial works only on the cluster")
