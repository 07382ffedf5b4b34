"""DeepSpeedTrial with the real package, in one process and in two.

``tests/integration/test_deepspeed.py`` runs these where it is not installed.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from determined import core, errors, pytorch
from determined.storage import build

os.environ.setdefault("DS_ACCELERATOR", "cpu")
pytest.importorskip(
    "deepspeed",
    reason="deepspeed is not installed; tests/integration/test_deepspeed.py installs it",
)

from one_trial import OneTrial

from determined.pytorch import deepspeed as ds
from determined.pytorch.deepspeed import _backend
from tests.waiting import TIMEOUT_S

EXAMPLE = Path(__file__).parents[3] / "examples/deepspeed"
HPARAMS = {"hidden_size": 8, "dropout": 0.2}


@pytest.fixture(scope="module")
def digits() -> Iterator[type[Any]]:
    """The example's class; it keeps losses."""
    sys.path.insert(0, str(EXAMPLE))
    base: Any = importlib.import_module("model_def").DigitsTrial
    sys.path.remove(str(EXAMPLE))
    del sys.modules["model_def"]

    class Digits(base):
        def __init__(self, context: Any) -> None:
            super().__init__(context)
            self.losses: list[float] = []
            self.callbacks: dict[str, pytorch.PyTorchCallback] = {}
            self.after_batch: Any = lambda batch_idx: None

        def build_callbacks(self) -> dict[str, pytorch.PyTorchCallback]:
            return self.callbacks

        def train_batch(self, dataloader_iter: Any, epoch_idx: int, batch_idx: int) -> Any:
            metrics = super().train_batch(dataloader_iter, epoch_idx, batch_idx)
            self.losses.append(metrics["loss"].item())
            if len(self.losses) % self.context.get_num_micro_batches_per_slot() == 0:
                self.after_batch(batch_idx)
            return metrics

    yield Digits


@contextmanager
def off_cluster(folder: Path, **hparams: Any) -> Iterator[Any]:
    """A context that stores checkpoints in ``folder``."""
    storage = build({"type": "directory", "container_path": str(folder)})
    dist = core.DummyDistributedContext()
    torch.manual_seed(3)
    with (
        core._context._dummy_context(
            dist, storage, core.PreemptMode.WorkersAskChief
        ) as core_context,
        _backend.process_group(dist),
    ):
        yield ds.DeepSpeedTrialContext(core_context, 3, {**HPARAMS, **hparams}, 1, 0, None)


class Uuid(pytorch.PyTorchCallback):
    uuid = ""

    def on_checkpoint_upload_end(self, uuid: str) -> None:
        self.uuid = uuid


def train(
    digits: Any, folder: Path, length: int, latest: str | None = None, stage: int = 0
) -> tuple[list[float], str]:
    """The losses of its micro-batches, and the last checkpoint."""
    arguments = {"zero_optimization": {"stage": stage}}
    with off_cluster(folder, overwrite_deepspeed_args=arguments) as context:
        trial = digits(context)
        uuid = trial.callbacks["uuid"] = Uuid()
        ds.Trainer(trial, context).fit(max_length=pytorch.Batch(length), latest_checkpoint=latest)
        assert context.models[0].zero_optimization_stage() == stage
    return trial.losses, uuid.uuid


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_resumed_with_the_losses_of_an_unbroken_training(
    digits: Any, tmp_path: Path, stage: int
) -> None:
    unbroken, _ = train(digits, tmp_path, 6, stage=stage)
    half, uuid = train(digits, tmp_path, 4, stage=stage)
    rest, _ = train(digits, tmp_path, 6, latest=uuid, stage=stage)
    assert len(unbroken) == 6 * 4
    assert half + rest == unbroken
    assert len(set(unbroken)) == len(unbroken)


def test_a_checkpoints_files(digits: Any, tmp_path: Path) -> None:
    _, uuid = train(digits, tmp_path, 1)
    names = {path.name for path in (tmp_path / uuid).iterdir()}
    assert names >= {
        "det_state_dict_rank0.pth",
        "trial_state.pkl",
        "load_data.json",
        "model0",
        "code",
    }
    assert (tmp_path / uuid / "model0" / "mp_rank_00_model_states.pt").is_file()
    with pytest.raises(
        errors.InvalidCheckpointException, match="of a DeepSpeedTrial, not of a PyTorch"
    ):
        pytorch.load_trial_from_checkpoint_path(str(tmp_path / uuid))


def test_batches_are_averages_over_micro_batches(digits: Any, tmp_path: Path) -> None:
    class Averages(pytorch.PyTorchCallback):
        def on_training_workload_end(self, avg_metrics: Any, batch_metrics: Any) -> None:
            self.batches = [batch["loss"] for batch in batch_metrics]

    with off_cluster(tmp_path) as context:
        trial = digits(context)
        averages = trial.callbacks["averages"] = Averages()
        ds.Trainer(trial, context).fit(max_length=pytorch.Batch(3))
        assert context.models[0].global_steps == 3
    wanted = [sum(trial.losses[at : at + 4]) / 4 for at in (0, 4, 8)]
    assert averages.batches == pytest.approx(wanted)


def test_gradients_that_the_trial_accumulates(digits: Any, tmp_path: Path) -> None:
    class ByHand(digits):  # type: ignore[misc]
        def train_batch(self, dataloader_iter: Any, epoch_idx: int, batch_idx: int) -> Any:
            for _ in range(self.context.get_num_micro_batches_per_slot()):
                metrics = super().train_batch(dataloader_iter, epoch_idx, batch_idx)
            return metrics

    automatic, _ = train(digits, tmp_path, 3)
    with off_cluster(tmp_path) as context:
        context.disable_auto_grad_accumulation()
        trial = ByHand(context)
        ds.Trainer(trial, context).fit(max_length=pytorch.Batch(3))
    assert trial.losses == automatic


@pytest.mark.parametrize("steps", [0, 3])
def test_a_step_that_is_left_out_is_found(digits: Any, tmp_path: Path, steps: int) -> None:
    class Forgetful(digits):  # type: ignore[misc]
        def train_batch(self, dataloader_iter: Any, epoch_idx: int, batch_idx: int) -> Any:
            if len(self.losses) == steps:
                self.engine.step = lambda: None
            return super().train_batch(dataloader_iter, epoch_idx, batch_idx)

    with (
        off_cluster(tmp_path) as context,
        pytest.raises(errors.InvalidModelException, match=f"stepped {steps} of 4 micro-batches"),
    ):
        ds.Trainer(Forgetful(context), context).fit(max_length=pytorch.Batch(2))


def test_refusals_of_the_context(digits: Any, tmp_path: Path) -> None:
    mpu = ds.ModelParallelUnit(0, 1, True, True)
    with off_cluster(tmp_path) as context:
        for ask in (context.get_num_micro_batches_per_slot, lambda: context.set_mpu(mpu)):
            with pytest.raises(
                errors.InvalidExperimentException, match=r"call wrap_model_engine\(\)"
            ):
                ask()
        with pytest.raises(TypeError, match=r"the first of what.*found tuple"):
            context.wrap_model_engine((None, None))
        trial = digits(context)
        context.set_mpu(mpu)
        with pytest.raises(errors.InvalidExperimentException, match="called already"):
            context.set_mpu(mpu)
        assert (context.train_micro_batch_size_per_gpu, context.num_micro_batches_per_slot) == (
            8,
            4,
        )
        assert not context.use_pipeline_parallel
        with pytest.raises(TypeError, match="object of a DeepSpeedTrial class"):
            ds.Trainer(digits, context)
        context.models.clear()
        with pytest.raises(errors.InvalidModelException, match="has wrapped no engine"):
            ds.Trainer(trial, context).fit(max_length=pytorch.Batch(1))


def test_other_loaders_need_permission(digits: Any, tmp_path: Path) -> None:
    class OfTorch(digits):  # type: ignore[misc]
        def build_training_data_loader(self) -> Any:
            return torch.utils.data.DataLoader(self.training_data, batch_size=8)

    with off_cluster(tmp_path) as context:
        trial = OfTorch(context)
        with pytest.raises(
            errors.InvalidModelException,
            match=r"context\.disable_dataset_reproducibility_checks\(\)",
        ):
            ds.Trainer(trial, context).fit(max_length=pytorch.Batch(1))
        context.disable_dataset_reproducibility_checks()
        ds.Trainer(trial, context).fit(max_length=pytorch.Batch(1))
        assert len(trial.losses) == 4


def test_validations_by_reducers_and_of_the_whole(digits: Any, tmp_path: Path) -> None:
    class Seen(pytorch.PyTorchCallback):
        def on_validation_end(self, metrics: dict[str, Any]) -> None:
            self.metrics = metrics

    class Whole(digits):  # type: ignore[misc]
        evaluate_batch = ds.DeepSpeedTrial.evaluate_batch

        def evaluate_full_dataset(self, data_loader: Any) -> dict[str, Any]:
            return {"records": sum(len(labels) for _, labels in data_loader)}

    class Uneven(digits):  # type: ignore[misc]
        def build_validation_data_loader(self) -> Any:
            return pytorch.DataLoader(self.validation_data, batch_size=350)

        def evaluate_batch(self, dataloader_iter: Any, batch_idx: int) -> dict[str, Any]:
            metrics = super().evaluate_batch(dataloader_iter, batch_idx)
            self.count.update(1)
            return {**metrics, "number": batch_idx}

    found = {}
    for kind in (Whole, Uneven):
        with off_cluster(tmp_path) as context:
            trial: Any = kind(context)
            trial.count = context.wrap_reducer(len, "batches_seen", for_training=False)
            seen = trial.callbacks["seen"] = Seen()
            ds.Trainer(trial, context).fit(max_length=pytorch.Batch(1))
            found[kind] = seen.metrics
    assert found[Whole]["records"] == 360
    assert found[Uneven]["batches_seen"] == 2
    # Batches weigh by their records, 350 and 10.
    assert found[Uneven]["number"] == pytest.approx(10 / 360)


class Counter(pytorch.PyTorchCallback):
    """Keeps a count in checkpoints, and the batch of the start."""

    def __init__(self) -> None:
        self.batches = 0
        self.first = -1

    def on_trial_startup(self, first_batch_idx: int, checkpoint_uuid: str | None) -> None:
        self.first = first_batch_idx

    def on_training_workload_end(self, avg_metrics: Any, batch_metrics: Any) -> None:
        self.batches += len(batch_metrics)

    def state_dict(self) -> dict[str, Any]:
        return {"batches": self.batches}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.batches = state_dict["batches"]


SEARCHER = {"name": "single", "metric": "accuracy", "smaller_is_better": False}


def on_cluster(
    digits: Any, world: OneTrial, prepare: Any = lambda trial, core_context: None
) -> tuple[Any, Counter]:
    """One leg of the trial, until the searcher has no more work or it is preempted."""
    searcher = {**SEARCHER, "max_length": {"batches": 99}}
    dist = core.DummyDistributedContext()
    torch.manual_seed(3)
    with world.leg(searcher) as core_context, _backend.process_group(dist):
        assert core_context.info is not None
        context = ds.DeepSpeedTrialContext(
            core_context, 3, HPARAMS, 1, 0, {"searcher": searcher}, managed_training=True
        )
        trial = digits(context)
        counter = trial.callbacks["counter"] = Counter()
        prepare(trial, core_context)
        ds.Trainer(trial, context).fit(
            validation_period=pytorch.Batch(2),
            latest_checkpoint=core_context.info.latest_checkpoint,
        )
    return trial, counter


def test_lengths_of_the_searcher(digits: Any, trial: OneTrial) -> None:
    trial.service.lengths = [3, 5]
    on_cluster(digits, trial)
    validations = trial.reports("validation")
    assert sorted(validations) == [2, 3, 4, 5]
    wanted = [(length, validations[length]["accuracy"]) for length in (3, 5)]
    assert trial.service.completed == wanted
    assert {3, 5} <= set(trial.checkpoints())


def test_preempted_and_resumed(digits: Any, trial: OneTrial, tmp_path: Path) -> None:
    unbroken = OneTrial(tmp_path / "other")
    unbroken.service.lengths = trial.service.lengths = [6]
    whole, _ = on_cluster(digits, unbroken)

    def preempt_after_3(digits_trial: Any, core_context: core.Context) -> None:
        # Watching begins with the first question.
        core_context.preempt.should_preempt()

        def after_batch(batch_idx: int) -> None:
            if batch_idx == 2:
                trial.service.preempt.set()
                assert core_context.preempt._watcher is not None
                core_context.preempt._watcher._thread.join()

        digits_trial.after_batch = after_batch

    first, counter = on_cluster(digits, trial, preempt_after_3)
    # The stretch of batches, up to a validation, is done.
    assert (trial.checkpoints()[-1], counter.batches, trial.service.completed) == (4, 4, [])
    second, counter = on_cluster(digits, trial)
    assert (counter.first, counter.batches) == (4, 6)
    assert first.losses + second.losses == whole.losses
    assert trial.reports("validation") == unbroken.reports("validation")
    assert [length for length, _ in trial.service.completed] == [6]


def off_cluster_environment(folder: Path) -> dict[str, str]:
    env = {name: value for name, value in os.environ.items() if not name.startswith("DET_")}
    return {**env, "XDG_DATA_HOME": str(folder), "OMP_NUM_THREADS": "1"}


def test_the_example_off_the_cluster(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(EXAMPLE / "train.py")],
        env=off_cluster_environment(tmp_path),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in done.stderr.splitlines() if "validation metrics after 225" in line]
    assert float(line.partition("'accuracy': ")[2].partition(",")[0]) > 0.9


@pytest.fixture(scope="module")
def gang(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The results of each of two processes (``deepspeed_gang.py``)."""
    folder = tmp_path_factory.mktemp("gang")
    script = Path(__file__).with_name("deepspeed_gang.py")
    done = subprocess.run(
        [
            *(sys.executable, "-m", "determined.launch.torch_distributed", "--nproc_per_node=2"),
            *("--", str(script), str(EXAMPLE), str(folder)),
        ],
        env=off_cluster_environment(folder),
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]


@pytest.mark.parametrize("kind", ["stage 1", "pipeline"])
def test_two_processes_resumed(gang: list[dict[str, Any]], kind: str) -> None:
    unbroken, half, rest = ([found[kind][part] for found in gang] for part in range(3))
    micro_batches = 2 if kind == "stage 1" else 1
    for rank in range(2):
        assert len(unbroken[rank]["losses"]) == 6 * micro_batches
        assert half[rank]["losses"] + rest[rank]["losses"] == unbroken[rank]["losses"]
        assert rest[rank]["validation"] == unbroken[0]["validation"]
        assert half[rank]["uuid"] == half[0]["uuid"]
    # Data parallel processes have separate data; the stages of a pipeline share one loss.
    same = unbroken[0]["losses"] == unbroken[1]["losses"]
    assert same is (kind == "pipeline")
    files = {"det_state_dict_rank0.pth", "det_state_dict_rank1.pth", "trial_state.pkl"}
    assert files <= set(half[0]["files"])
    own = (
        "zero_pp_rank_1_mp_rank_00_optim_states.pt"
        if kind == "stage 1"
        else "layer_02-model_states.pt"
    )
    assert own in half[0]["files"]


def test_two_processes_average(gang: list[dict[str, Any]]) -> None:
    first, second = (found["stage 1"][0] for found in gang)
    everybody = [
        sum(losses[at : at + 2]) / 4
        for losses in (first["losses"], second["losses"])
        for at in (0, 2)
    ]
    wanted = [everybody[0] + everybody[2], everybody[1] + everybody[3]]
    assert first["batches"][:2] == pytest.approx(wanted)
    assert first["batches"] == second["batches"]


def test_a_process_that_reports_no_metrics(gang: list[dict[str, Any]]) -> None:
    first, second = (found["one reports"] for found in gang)
    losses = first["losses"]
    assert first["batches"] == pytest.approx([sum(losses[:2]) / 2, sum(losses[2:]) / 2])
    assert first["validation"] == second["validation"] == {"rank": 0.0}
