"""Trial classes on a cluster: from YAML to the end, through pauses and crashes, with the same losses."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from determined import pytorch
from tests.local_cluster import LocalCluster
from tests.outcomes import client
from tests.waiting import TIMEOUT_S

EXAMPLE = Path(__file__).parents[2] / "examples/digits_pytorch_trial"

# Stands still in front of the last batch of its third epoch, to be stopped there.
HELD = """
import os, pathlib, time
from model_def import DigitsTrial

class HeldTrial(DigitsTrial):
    def train_batch(self, batch, epoch_idx, batch_idx):
        if batch_idx == 134:
            print("pid", os.getpid(), flush=True)
            while {held}:
                time.sleep(0.05)
        return super().train_batch(batch, epoch_idx, batch_idx)
"""
# In one process only: several would have to ask in step.
UNTIL_PREEMPTED = "not self.context._core.preempt.should_preempt(auto_ack=False)"
UNTIL_TOLD = "not pathlib.Path({go!r}).exists()"
"""The file is ``go`` in the folder that the experiment was submitted from."""


def config(**changes: Any) -> dict[str, Any]:
    base: dict[str, Any] = yaml.safe_load((EXAMPLE / "const.yaml").read_text())
    return {**base, **changes}


def submit(
    cluster: LocalCluster, folder: Path, configuration: dict[str, Any], held: str = "False"
) -> int:
    """Submit the example's model, in a form that pauses while ``held`` is true."""
    model = {f"{name}_py": (EXAMPLE / f"{name}.py").read_text() for name in ("model_def", "train")}
    folder.mkdir(exist_ok=True)
    model["held_py"] = HELD.format(held=held.format(go=str(folder / "go")))
    return cluster.submit(folder, yaml.safe_dump(configuration), **model)


def losses(cluster: LocalCluster, experiment_id: int) -> dict[int, list[float]]:
    """Per report of training, the loss of each of its batches."""
    (trial,) = client(cluster).get_experiment(experiment_id).get_trials()
    return {
        report.steps_completed: [batch["loss"] for batch in report.batch_metrics or []]
        for report in trial.iter_metrics("training")
    }


def validations(cluster: LocalCluster, experiment_id: int) -> dict[int, dict[str, Any]]:
    (trial,) = client(cluster).get_experiment(experiment_id).get_trials()
    return {report.steps_completed: report.metrics for report in trial.iter_metrics("validation")}


@pytest.fixture(scope="module")
def unbroken(cluster: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> int:
    """The example's experiment, run to its end."""
    folder = tmp_path_factory.mktemp("unbroken")
    experiment_id = submit(cluster, folder, config())
    assert cluster.wait(experiment_id) == "COMPLETED", cluster.logs(experiment_id)
    return experiment_id


def test_const_yaml_trains_to_the_end(cluster: LocalCluster, unbroken: int) -> None:
    reports = losses(cluster, unbroken)
    assert sorted(reports) == [45 * epoch for epoch in range(1, 11)]
    assert all(len(batches) == 45 for batches in reports.values())
    validated = validations(cluster, unbroken)
    assert sorted(validated) == sorted(reports)
    assert validated[450]["accuracy"] > 0.9
    assert (validated[450]["epochs"], validated[450]["batches"]) == (10, 450)


def test_its_checkpoint_loads(cluster: LocalCluster, unbroken: int, tmp_path: Path) -> None:
    checkpoint = client(cluster).get_experiment(unbroken).top_checkpoint()
    path = Path(checkpoint.download(str(tmp_path / "checkpoint")))
    assert (path / "code" / "model_def.py").is_file()
    trial = pytorch.load_trial_from_checkpoint_path(str(path))
    assert type(trial).__name__ == "DigitsTrial"
    assert trial.context.get_hparam("hidden_size") == 64


def test_paused_and_activated_with_the_same_losses(
    cluster: LocalCluster, unbroken: int, tmp_path: Path
) -> None:
    experiment_id = submit(cluster, tmp_path, config(entrypoint="held:HeldTrial"), UNTIL_PREEMPTED)
    cluster.wait_for_lines(experiment_id, "pid ")
    cluster.det("experiment", "pause", str(experiment_id))
    cluster.wait_for_lines(experiment_id, "preempted after batch")
    cluster.det("experiment", "activate", str(experiment_id))
    assert cluster.wait(experiment_id) == "COMPLETED", cluster.logs(experiment_id)
    cluster.wait_for_lines(experiment_id, "going on after batch")
    assert losses(cluster, experiment_id) == losses(cluster, unbroken)
    assert validations(cluster, experiment_id) == validations(cluster, unbroken)


def test_killed_and_resumed_with_the_same_losses(
    cluster: LocalCluster, unbroken: int, tmp_path: Path
) -> None:
    configuration = config(
        entrypoint="python3 -m determined.launch.torch_distributed --trial held:HeldTrial",
        max_restarts=1,
        min_checkpoint_period={"batches": 45},
    )
    experiment_id = submit(cluster, tmp_path, configuration, UNTIL_TOLD)
    pid = int(cluster.wait_for_lines(experiment_id, "pid ")[0].split()[-1])
    os.kill(pid, signal.SIGKILL)
    (tmp_path / "go").touch()
    assert cluster.wait(experiment_id) == "COMPLETED", cluster.logs(experiment_id)
    cluster.wait_for_lines(experiment_id, "going on after batch")
    assert losses(cluster, experiment_id) == losses(cluster, unbroken)


def test_two_processes_one_of_them_killed(cluster: LocalCluster, tmp_path: Path) -> None:
    configuration = yaml.safe_load((EXAMPLE / "distributed.yaml").read_text())
    alone = submit(cluster, tmp_path / "unbroken", configuration)
    assert cluster.wait(alone) == "COMPLETED", cluster.logs(alone)
    validated = validations(cluster, alone)
    assert validated[450]["accuracy"] > 0.9

    held = {**configuration, "entrypoint": "held:HeldTrial"}
    experiment_id = submit(cluster, tmp_path / "killed", held, UNTIL_TOLD)
    line = cluster.wait_for_lines(experiment_id, "pid ")[0]
    assert "[rank=" in line
    os.kill(int(line.split()[-1]), signal.SIGKILL)
    (tmp_path / "killed" / "go").touch()
    assert cluster.wait(experiment_id) == "COMPLETED", cluster.logs(experiment_id)
    cluster.wait_for_lines(experiment_id, "going on after batch")
    assert losses(cluster, experiment_id) == losses(cluster, alone)
    assert validations(cluster, experiment_id) == validated
    assert cluster.trials(experiment_id)[0]["restarts"] == 1
    # A checkpoint stored by one process is loaded by another number of processes.
    checkpoint = client(cluster).get_experiment(experiment_id).top_checkpoint()
    path = checkpoint.download(str(tmp_path / "checkpoint"))
    model = pytorch.load_trial_from_checkpoint_path(path).model  # type: ignore[attr-defined]
    assert not any(name.startswith("module.") for name in model.state_dict())


def test_the_script_with_reports_for_the_searcher(cluster: LocalCluster, tmp_path: Path) -> None:
    configuration = yaml.safe_load((EXAMPLE / "adaptive.yaml").read_text())
    configuration["searcher"].update(max_trials=4, max_time=3)
    experiment_id = submit(cluster, tmp_path, configuration)
    assert cluster.wait(experiment_id) == "COMPLETED", cluster.logs(experiment_id)
    trials = cluster.trials(experiment_id)
    assert len(trials) == 4
    assert {trial["state"] for trial in trials} == {"COMPLETED"}


def test_lengths_that_are_promoted(cluster: LocalCluster, tmp_path: Path) -> None:
    searcher = {
        "name": "adaptive_asha",
        "metric": "accuracy",
        "smaller_is_better": False,
        "max_trials": 3,
        "divisor": 3,
        "mode": "aggressive",
        "max_length": {"records": 3 * 32 * 20},
    }
    experiment_id = submit(cluster, tmp_path, config(searcher=searcher))
    assert cluster.wait(experiment_id) == "COMPLETED", cluster.logs(experiment_id)
    sdk = client(cluster)
    ends = sorted(
        max(report.steps_completed for report in trial.iter_metrics("validation"))
        for trial in sdk.get_experiment(experiment_id).get_trials()
    )
    assert ends == [20, 20, 60]


MISTAKES = {
    "model_def:DigitTrial": r"model_def has no class DigitTrial; did you mean DigitsTrial\?",
    "train:main": "main is not a subclass of determined.pytorch.PyTorchTrial",
    "held:Half": "Half must define build_training_data_loader",
    "broken:Trial": r"SyntaxError: .*\(broken.py, line 1: class Trial\(\)",
}
"""By entrypoint, the reason."""


@pytest.mark.parametrize("slots", [1, 2])
def test_a_wrong_trial_class_is_said_in_a_line_and_costs_no_restarts(
    cluster: LocalCluster, tmp_path: Path, slots: int
) -> None:
    half = "from determined.pytorch import PyTorchTrial\nclass Half(PyTorchTrial):\n    pass\n"
    model = {"held_py": half, "broken_py": "class Trial()\n"}
    for name in ("model_def", "train"):
        model[f"{name}_py"] = (EXAMPLE / f"{name}.py").read_text()
    submitted = {}
    for number, entrypoint in enumerate(MISTAKES):
        folder = tmp_path / str(number)
        folder.mkdir()
        changes = {
            "entrypoint": entrypoint,
            "max_restarts": 3,
            "resources": {"slots_per_trial": slots},
        }
        submitted[entrypoint] = cluster.submit(folder, yaml.safe_dump(config(**changes)), **model)
    for entrypoint, experiment_id in submitted.items():
        assert cluster.wait(experiment_id) == "ERROR"
        (trial,) = client(cluster).get_experiment(experiment_id).get_trials()
        assert (trial.restarts, trial.document["state"]) == (0, "STATE_ERROR")
        assert re.search(MISTAKES[entrypoint], trial.document["reason"]), trial.document["reason"]
        assert "there is no restart" in cluster.logs(experiment_id)


def test_the_example_runs_without_a_cluster(tmp_path: Path) -> None:
    env = {name: value for name, value in os.environ.items() if not name.startswith("DET_")}
    done = subprocess.run(
        [sys.executable, str(EXAMPLE / "train.py")],
        env={**env, "HOME": str(tmp_path), "XDG_DATA_HOME": str(tmp_path), "OMP_NUM_THREADS": "1"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in done.stderr.splitlines() if "validation metrics after 225" in line]
    found = json.loads(line.partition("steps: ")[2].replace("'", '"'))
    assert found["accuracy"] > 0.9
