"""Whole searches on the real cluster: YAML in, trained models out."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.integration.prefect_server import Prefect
from tests.local_cluster import LocalCluster

ROOT = Path(__file__).parents[2]

OPERATIONS_SCRIPT = """
import determined as det
info = det.get_cluster_info()
with det.core.init() as core_context:
    for op in core_context.searcher.operations():
        for step in range(1, op.length + 1):
            core_context.train.report_training_metrics(step, {"loss": 1.0 / step})
        value = float(info.trial.hparams["a"])
        core_context.train.report_validation_metrics(op.length, {"x": value})
        with core_context.checkpoint.store_path({"steps_completed": op.length}) as (path, uuid):
            (path / "value.txt").write_text(str(value))
        op.report_completed(value)
"""

SEARCH = """
name: space
entrypoint: python3 script.py
hyperparameters:
  a: {type: double, minval: 0, maxval: 1}
searcher: {name: random, metric: x, max_trials: 5, max_concurrent_trials: 2, max_length: {batches: 7}}
reproducibility: {experiment_seed: 11}
max_restarts: 0
"""


@pytest.fixture(scope="module")
def experiment(cluster: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> int:
    """The search above, at its end; its tests read only."""
    submitted = cluster.submit(
        tmp_path_factory.mktemp("search"), SEARCH, script_py=OPERATIONS_SCRIPT
    )
    assert cluster.wait(submitted) == "COMPLETED", cluster.logs(submitted)
    return submitted


def test_a_random_search_runs_to_its_end(
    cluster: LocalCluster, experiment: int, tmp_path: Path
) -> None:
    trials = cluster.trials(experiment)
    assert [trial["state"] for trial in trials] == ["COMPLETED"] * 5
    checkpoints = cluster.json("experiment", "list-checkpoints", str(experiment))
    assert {row["training"]["trialId"] for row in checkpoints} == {trial["id"] for trial in trials}
    best = min(trial["hparams"]["a"] for trial in trials)
    cluster.det("experiment", "download", str(experiment), "-o", str(tmp_path / "best"))
    (value,) = (tmp_path / "best").rglob("value.txt")
    assert float(value.read_text()) == best


def test_the_same_seed_gives_the_trials_of_the_simulation(
    cluster: LocalCluster, experiment: int
) -> None:
    from determined_searchers import simulate

    config = cluster.describe(experiment)["config"]
    expected = simulate(config).trials
    found = cluster.trials(experiment)
    assert sorted((t["hparams"]["a"], t["seed"]) for t in found) == sorted(
        (t.hparams["a"], t.seed) for t in expected
    )


def test_every_metric_is_kept_once(cluster: LocalCluster, experiment: int) -> None:
    for trial in cluster.trials(experiment):
        described = cluster.json("trial", "describe", str(trial["id"]), "--metrics")
        rows = [row for row in described["workloads"] if row["kind"] == "training"]
        steps = [row["totalBatches"] for row in rows]
        assert steps == list(range(1, 8))


def test_trials_are_subflows_of_the_experiment_in_prefect(
    cluster: LocalCluster, experiment: int
) -> None:
    parent = cluster.describe(experiment)["flowRunId"]
    prefect = Prefect(cluster)
    assert prefect.wait(parent)["state_type"] == "COMPLETED"
    runs = prefect.call(
        "/flow_runs/filter", {"flow_runs": {"parent_flow_run_id": {"any_": [parent]}}}
    )
    assert len(runs) == 5
    ended = [prefect.wait(run["id"]) for run in runs]
    assert {run["state_type"] for run in ended} == {"COMPLETED"}
    assert {run["run_count"] for run in ended} == {1}


@pytest.mark.parametrize("example", ["const", "grid"])
def test_the_digits_example(cluster: LocalCluster, example: str) -> None:
    folder = ROOT / "examples/digits"
    # All twelve trials of the grid, for the number of epochs that the best ones need.
    epochs = {"const": 10, "grid": 5}[example]
    done = cluster.det(
        *("flow", "run", str(folder / f"{example}.yaml"), str(folder)),
        *("--config", f"searcher.max_length.epochs={epochs}"),
        timeout=280,
    )
    trials = cluster.trials(max(row["id"] for row in cluster.json("experiment", "list")))
    assert len(trials) == {"const": 1, "grid": 12}[example], done.stdout
    assert {trial["totalBatchesProcessed"] for trial in trials} == {epochs}
    assert max(trial["searcherMetricValue"] for trial in trials) >= 0.95


def test_trials_side_by_side_share_the_cores(cluster: LocalCluster, tmp_path: Path) -> None:
    script = (
        "import os, torch\nprint('threads', os.environ['OMP_NUM_THREADS'], torch.get_num_threads())"
    )
    config = SEARCH.replace("max_trials: 5", "max_trials: 1")
    experiment = cluster.submit(tmp_path, config, script_py=script)
    assert cluster.wait(experiment) == "COMPLETED"
    share = max(1, len(os.sched_getaffinity(0)) // 2)  # the tests' cluster has two slots
    assert f"threads {share} {share}" in cluster.logs(experiment)
