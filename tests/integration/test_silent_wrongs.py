"""Configurations that contradict the script or the cluster: the user gets a warning."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.local_cluster import LocalCluster
from tests.waiting import until

SPACE = "hyperparameters: {lr: {type: double, minval: 0, maxval: 1}}\n"
HEAD = "name: NAME\nentrypoint: python3 script.py\nmax_restarts: 0\n"
OTHER_METRIC = """
import determined as det

with det.core.init() as core:
    for step in range(1, 9):
        core.train.report_validation_metrics(step, {"val_loss": 1.0 / step, "batches": step})
"""
STORES = """
import determined as det

with det.core.init() as core:
    for step in range(1, 5):
        with core.checkpoint.store_path({"steps_completed": step}) as (path, uuid):
            (path / "weights").write_text(str(step))
        core.train.report_validation_metrics(step, {"METRIC": float("VALUE")})
"""
NO_OPERATIONS = """
import determined as det

with det.core.init() as core:
    for step in range(1, 9):
        core.train.report_validation_metrics(step, {"loss": 1.0 / step})
        if core.preempt.should_preempt():
            break
"""
READS_A_MOUNT = """
import determined as det

with det.core.init() as core:
    value = float(open("/mnt/dataset/x.csv").read())
    core.train.report_validation_metrics(1, {"loss": value})
"""


def written(cluster: LocalCluster, experiment: int) -> str:
    """The logs of all its trials."""
    ids = [str(trial["id"]) for trial in cluster.trials(experiment)]
    return "".join(cluster.det("trial", "logs", one).stdout for one in ids)


def test_asha_by_time_ends_without_reports_of_the_metric(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    searcher = (
        "searcher: {name: adaptive_asha, metric: loss, max_trials: 4, time_metric: batches, max_time: 8, "
        "divisor: 2, max_concurrent_trials: 2}\n"
    )
    config = HEAD.replace("NAME", "misspelt-metric") + SPACE + searcher
    experiment = cluster.submit(tmp_path, config, script_py=OTHER_METRIC)
    assert cluster.wait(experiment) == "ERROR"
    reason = cluster.describe(experiment)["reason"]
    assert reason.startswith("the search failed: trial ")
    assert "searcher.metric is 'loss', but the validation after " in reason
    assert (
        "it has val_loss, batches (did you mean 'val_loss'?); the adaptive_asha searcher" in reason
    )
    assert "searcher.metric is 'loss', but the validation after 1 steps" in written(
        cluster, experiment
    )


@pytest.mark.parametrize(
    ("metric", "value", "kept"), [("val_loss", "0.5", 4), ("loss", "nan", 1), ("loss", "0.5", 1)]
)
def test_the_saved_state_of_a_training(
    cluster: LocalCluster, tmp_path: Path, metric: str, value: str, kept: int
) -> None:
    storage = (
        f"checkpoint_storage: {{type: shared_fs, host_path: {tmp_path / 'storage'}, "
        "save_experiment_best: 1, save_trial_best: 1, save_trial_latest: 0}\n"
    )
    searcher = "searcher: {name: single, metric: loss, max_length: {batches: 4}}\n"
    config = HEAD.replace("NAME", "typo-ck") + searcher + storage
    stores = STORES.replace("METRIC", metric).replace("VALUE", value)
    experiment = cluster.submit(tmp_path, config, script_py=stores)
    assert cluster.wait(experiment) == "COMPLETED"
    until("all checkpoints looked through", lambda: not cluster.collections())
    listed = cluster.json("experiment", "list-checkpoints", str(experiment))
    assert len([one for one in listed if one["state"] == "STATE_COMPLETED"]) == kept
    reason = cluster.describe(experiment)["reason"]
    if metric == "val_loss":
        assert reason == (
            "the search is complete; but no trial ever reported 'loss' (searcher.metric); they reported "
            "val_loss (did you mean 'val_loss'?)"
        )
    else:
        assert reason == "the search is complete"


def test_a_script_without_operations_under_asha(cluster: LocalCluster, tmp_path: Path) -> None:
    searcher = (
        "searcher: {name: adaptive_asha, metric: loss, max_trials: 4, max_length: {batches: 8}, divisor: 2, "
        "max_concurrent_trials: 2}\n"
    )
    config = HEAD.replace("NAME", "no-operations") + SPACE + searcher
    experiment = cluster.submit(tmp_path, config, script_py=NO_OPERATIONS)
    assert cluster.wait(experiment) == "COMPLETED"
    for trial in cluster.trials(experiment):
        found = cluster.json("trial", "describe", str(trial["id"]))
        # By the bracket that it is in.
        assert re.search(
            "(trained to 8, past|reached) the searcher's target of [248] batches, but never completed",
            found["reason"],
        )
    log = written(cluster, experiment)
    assert re.search("the searcher told this trial to train for [24] batches", log)
    assert "or give the searcher time_metric: batches and max_time" in log


def test_mounts_of_processes(cluster: LocalCluster, tmp_path: Path) -> None:
    data = tmp_path / "team"
    data.mkdir()
    (data / "x.csv").write_text("0.5")
    config = HEAD.replace("NAME", "mounted-data") + (
        "environment: {image: 'example.org/team/torch:2.1'}\n"
        f"bind_mounts: [{{host_path: {data}, container_path: /mnt/dataset, read_only: true}}]\n"
        "searcher: {name: single, metric: loss, max_length: {batches: 1}}\n"
    )
    model = tmp_path / "model"
    model.mkdir()
    (model / "script.py").write_text(READS_A_MOUNT)
    (tmp_path / "c.yaml").write_text(config)
    done = cluster.det("e", "create", str(tmp_path / "c.yaml"), str(model))
    words = "environment.image is stored but ignored: resource pool 'default'"
    assert f"warning: {words}" in done.stderr
    experiment = int(done.stdout.split()[-1])
    assert cluster.wait(experiment) == "COMPLETED"
    (trial,) = cluster.trials(experiment)
    log = cluster.det("trial", "logs", str(trial["id"])).stdout.splitlines()
    assert words in log[0]
    assert (
        f"experiment {experiment}: {words}" in cluster.det("e", "describe", str(experiment)).stderr
    )
