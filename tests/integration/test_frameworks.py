"""The examples of other frameworks and of batch inference, on a cluster and off it."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.local_cluster import LocalCluster
from tests.outcomes import client
from tests.templates import try_out
from tests.waiting import TIMEOUT_S

EXAMPLES = Path(__file__).parents[2] / "examples"

# example: (configuration, the script, the searcher's metric, batches of the two epochs)
TRAINED = {
    "huggingface": ("distributed.yaml", "train.py", "eval_accuracy", 90),
    "lightning": ("distributed.yaml", "train.py", "accuracy", 90),
    "keras": ("const.yaml", "train.py", "accuracy", 90),
}
# The process of rank 1 dies once, before its second checkpoint.
DEATH = """
    def process_batch(self, batch, batch_idx):
        import os, pathlib, signal
        died = pathlib.Path({flag!r})
        if self.context.get_distributed_rank() == 1 and batch_idx == 7 and not died.exists():
            died.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        self.process(batch, batch_idx)

    def process("""


@pytest.fixture(scope="module")
def experiments(cluster: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> dict[str, int]:
    """All submitted at once: they share the cluster's slots."""
    found = {}
    for name, (config, script, _, _) in TRAINED.items():
        configuration: dict[str, Any] = yaml.safe_load((EXAMPLES / name / config).read_text())
        configuration["searcher"]["max_length"] = {"epochs": 2}
        code = (EXAMPLES / name / script).read_text().replace("EPOCHS = 5", "EPOCHS = 2")
        folder = tmp_path_factory.mktemp(name)
        found[name] = cluster.submit(folder, yaml.safe_dump(configuration), train_py=code)
    return found


@pytest.mark.parametrize("name", TRAINED)
def test_trained_on_the_cluster(
    cluster: LocalCluster, experiments: dict[str, int], name: str
) -> None:
    experiment_id = experiments[name]
    assert cluster.wait(experiment_id, 300) == "COMPLETED", cluster.logs(experiment_id)
    _, _, metric, batches = TRAINED[name]
    (trial,) = client(cluster).get_experiment(experiment_id).get_trials()
    reports = {
        report.steps_completed: report.metrics for report in trial.iter_metrics("validation")
    }
    assert sorted(reports) == [batches // 2, batches]
    assert reports[batches][metric] > 0.75
    checkpoints = [one.metadata["steps_completed"] for one in trial.list_checkpoints()]
    assert batches in checkpoints


def test_batch_inference_past_the_death_of_a_process(cluster: LocalCluster, tmp_path: Path) -> None:
    example = EXAMPLES / "batch_inference"
    script = (example / "predict.py").read_text()
    flag = str(tmp_path / "died")
    deadly = script.replace("\n    def process_batch(", DEATH.format(flag=flag))
    assert deadly != script
    before = set(cluster.data_dir.rglob("rank_?"))
    config = (example / "distributed.yaml").read_text()
    experiment_id = cluster.submit(tmp_path, config, predict_py=deadly)
    assert cluster.wait(experiment_id, 300) == "COMPLETED", cluster.logs(experiment_id)
    assert Path(flag).exists()
    assert cluster.trials(experiment_id)[0]["restarts"] == 1
    assert "going on after batch 5" in cluster.logs(experiment_id)
    folders = sorted(set(cluster.data_dir.rglob("rank_?")) - before)
    assert [folder.name for folder in folders] == ["rank_0", "rank_1"]
    files = [file for folder in folders for file in folder.glob("*.csv")]
    numbers = [int(row["image"]) for file in files for row in csv.DictReader(file.open())]
    assert sorted(numbers) == list(range(1797))


@pytest.mark.parametrize("name", ["transformers", "lightning", "keras"])
def test_a_template_runs_as_it_is(cluster: LocalCluster, tmp_path: Path, name: str) -> None:
    try_out(cluster, tmp_path, name)


def test_batch_inference_off_the_cluster(tmp_path: Path) -> None:
    env = {name: value for name, value in os.environ.items() if not name.startswith("DET_")}
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / "batch_inference/predict.py")],
        env={**env, "HOME": str(tmp_path), "XDG_DATA_HOME": str(tmp_path), "OMP_NUM_THREADS": "1"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert done.returncode == 0, done.stderr
    assert "validation metrics after 29 steps" in done.stderr
