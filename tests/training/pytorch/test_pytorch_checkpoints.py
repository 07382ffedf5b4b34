"""The contents of checkpoints, loading trials from checkpoints, and checkpoints of other releases."""

from __future__ import annotations

import json
import pickle
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from trials import SmallTrial, World

from determined import errors, pytorch

MODEL_DEF = """
import torch
from determined import pytorch
import helper

class MyTrial(pytorch.PyTorchTrial):
    def __init__(self, context, bias=True):
        self.context = context
        size = context.get_hparam("size")
        self.model = context.wrap_model(torch.nn.Linear(size, helper.OUTPUTS, bias=bias))
        context.wrap_optimizer(torch.optim.SGD(self.model.parameters(), lr=0.1))
    def train_batch(self, batch, epoch_idx, batch_idx): ...
    def build_training_data_loader(self): ...
    def build_validation_data_loader(self): ...
"""


@pytest.fixture
def old(tmp_path: Path) -> Iterator[Path]:
    """A checkpoint as the published releases write it."""
    path = tmp_path / "old"
    (path / "code").mkdir(parents=True)
    (path / "code" / "model_def.py").write_text(MODEL_DEF)
    (path / "code" / "helper.py").write_text("OUTPUTS = 2")
    weights = {"weight": torch.full((2, 3), 7.0), "bias": torch.zeros(2)}
    state = {
        "models_state_dict": [weights],
        "optimizers_state_dict": [],
        "lr_schedulers_state_dict": [],
        "callbacks": {},
        "rng_state": {"cpu_rng_state": torch.get_rng_state()},
    }
    torch.save(state, path / "state_dict.pth")
    load = {
        "trial_type": "PyTorchTrial",
        "experiment_config": {"searcher": {"metric": "x"}},
        "hparams": {"size": 3},
        "trial_cls_spec": "model_def:MyTrial",
        "is_trainer": False,
    }
    (path / "load_data.json").write_text(json.dumps(load))
    position = {
        "trial_id": 1, "trial_run_id": 1, "last_ckpt": 100, "step_id": 1,
        "last_val": 100, "batches_trained": 100, "epochs_trained": 2,
    }  # fmt: skip
    (path / "trial_state.pkl").write_bytes(pickle.dumps(position))
    before = set(sys.modules)
    yield path
    assert "model_def" not in set(sys.modules) - before


def edit(path: Path, **changes: Any) -> None:
    load = json.loads((path / "load_data.json").read_text())
    (path / "load_data.json").write_text(json.dumps({**load, **changes}))


def test_an_old_checkpoint_loads(old: Path) -> None:
    trial: Any = pytorch.load_trial_from_checkpoint_path(str(old), map_location="cpu")
    assert type(trial).__name__ == "MyTrial"
    assert trial.model.weight.tolist() == [[7.0] * 3] * 2
    assert trial.context.get_experiment_config() == {"searcher": {"metric": "x"}}


@pytest.mark.parametrize("spec", ["__main__:MyTrial", "model_def:MyTrial"])
def test_the_class_of_a_script_is_found(old: Path, spec: str) -> None:
    edit(old, trial_cls_spec=spec)
    assert type(pytorch.load_trial_from_checkpoint_path(old)).__name__ == "MyTrial"


def test_weights_of_several_processes_and_of_the_first_releases(old: Path) -> None:
    weights = {"module.weight": torch.ones(2, 3), "module.bias": torch.zeros(2)}
    torch.save({"model_state_dict": weights, "optimizer_state_dict": {}}, old / "state_dict.pth")
    (old / "trial_state.pkl").unlink()
    trial: Any = pytorch.load_trial_from_checkpoint_path(old)
    assert trial.model.weight.sum() == 6


def test_further_arguments(old: Path) -> None:
    class Given(SmallTrial):
        def __init__(self, context: Any, outputs: int) -> None:
            self.model = context.wrap_model(torch.nn.Linear(3, outputs))
            self.context = context

    trial: Any = pytorch.load_trial_from_checkpoint_path(
        str(old), Given, {"outputs": 2}, {"map_location": "cpu"}
    )
    assert type(trial) is Given


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"trial_type": "TFKerasTrial"}, "checkpoint of a TFKerasTrial"),
        ({"trial_cls_spec": ""}, "give trial_class"),
        ({"trial_cls_spec": "model_def:Other"}, "cannot be imported.*Other"),
        ({"trial_cls_spec": "helper:OUTPUTS"}, "not a PyTorchTrial"),
        ({"trial_cls_spec": "__main__:Nobody"}, "found none"),
    ],
)
def test_missing_classes(old: Path, changes: dict[str, Any], error: str) -> None:
    edit(old, **changes)
    with pytest.raises(errors.InvalidCheckpointException, match=error):
        pytorch.load_trial_from_checkpoint_path(old)


def test_directories_that_are_not_checkpoints(tmp_path: Path) -> None:
    with pytest.raises(errors.InvalidCheckpointException, match="there is no directory"):
        pytorch.load_trial_from_checkpoint_path(tmp_path / "nowhere")
    (tmp_path / "code").mkdir(exist_ok=True)
    with pytest.raises(errors.InvalidCheckpointException, match=r"no state_dict\.pth, found code"):
        pytorch.load_trial_from_checkpoint_path(tmp_path)


def test_the_layout(world: World) -> None:
    first = world.train(max_length=pytorch.Batch(7))
    path = world.folder / first.stored[7]
    files = {p.relative_to(path).as_posix() for p in path.rglob("*") if p.is_file()}
    assert {name for name in files if not name.startswith(".")} >= {
        "code/trials.py", "load_data.json", "metadata.json", "state_dict.pth", "trial_state.pkl",
    }  # fmt: skip
    state = torch.load(path / "state_dict.pth", weights_only=False)
    assert sorted(state) == [
        "callbacks", "lr_schedulers_state_dict", "models_state_dict",
        "optimizers_state_dict", "rng_state",
    ]  # fmt: skip
    assert sorted(state["rng_state"]) == ["cpu_rng_state", "np_rng_state", "random_rng_state"]
    position = pickle.loads((path / "trial_state.pkl").read_bytes())
    assert position == {
        "trial_id": 0, "last_ckpt": 7, "step_id": 0, "last_val": 7,
        "batches_trained": 7, "epochs_trained": 1,
    }  # fmt: skip
    metadata = json.loads((path / "metadata.json").read_text())
    assert metadata["steps_completed"] == 7
    assert metadata["framework"].startswith("torch-")
