"""Scripts in the two shapes that Determined's Core API tutorials have, under single and random."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.local_cluster import LocalCluster

OPERATIONS_FORM = """
import logging
import determined as det

def main(core_context, increment_by):
    x = 0
    for op in core_context.searcher.operations():
        for batch in range(op.length):
            x += increment_by
            steps_completed = batch + 1
            if steps_completed % 10 == 0:
                core_context.train.report_training_metrics(
                    steps_completed=steps_completed, metrics={"x": x})
                op.report_progress(steps_completed)
                if core_context.preempt.should_preempt():
                    return
        core_context.train.report_validation_metrics(steps_completed=op.length, metrics={"x": x})
        op.report_completed(x)

if __name__ == "__main__":
    logging.basicConfig(level=logging.DEBUG, format=det.LOG_FORMAT)
    info = det.get_cluster_info()
    assert info is not None
    with det.core.init() as core_context:
        main(core_context, info.trial.hparams["increment_by"])
"""

REPORTS_FORM = """
import logging
import determined as det

def main(core_context, increment_by):
    x = 0
    for batch in range(100):
        x += increment_by
        steps_completed = batch + 1
        if steps_completed % 10 == 0:
            core_context.train.report_training_metrics(
                steps_completed=steps_completed, metrics={"x": x})
            core_context.train.report_progress(steps_completed / 100)
            if core_context.preempt.should_preempt():
                return
    core_context.train.report_validation_metrics(steps_completed=100, metrics={"x": x})

if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format=det.LOG_FORMAT)
    info = det.get_cluster_info()
    with det.core.init() as core_context:
        main(core_context, info.trial.hparams["increment_by"])
"""

SEARCHERS = {
    "single": ("searcher: {{name: single, metric: x{length}}}", "increment_by: 1"),
    "random": (
        "searcher: {{name: random, metric: x, max_trials: 3, max_concurrent_trials: 2{length}}}",
        "increment_by: {type: int, minval: 1, maxval: 8}",
    ),
}


ORDER = """
import json
import determined as det
info = det.get_cluster_info()
config = info.trial._config["hyperparameters"]
print("order", json.dumps(info.trial.hparams), json.dumps(list(config)))
with det.core.init() as core_context:
    core_context.train.report_validation_metrics(steps_completed=1, metrics={"x": 1.0})
"""


def test_hyperparameters_come_sorted_by_name(cluster: LocalCluster, tmp_path: Path) -> None:
    """As ordered by the script and by `det`; the database has them in another order."""
    config = """
name: order
entrypoint: python3 train.py
max_restarts: 0
searcher: {name: single, metric: x}
hyperparameters:
  zeta: 1
  lr: 0.5
  batch_size: 8
  Model: {type: const, val: {width: 3, depth: 2, a: [{y: 1, abc: 2}]}}
  optimizer: {weight_decay: 0.1, eps: 1}
"""
    experiment = cluster.submit(tmp_path, config, train_py=ORDER)
    assert cluster.wait(experiment) == "COMPLETED", cluster.logs(experiment)
    shown = (
        '{"Model": {"a": [{"abc": 2, "y": 1}], "depth": 2, "width": 3}, "batch_size": 8, "lr": 0.5, '
        '"optimizer": {"eps": 1, "weight_decay": 0.1}, "zeta": 1}'
    )
    names = '["Model", "batch_size", "lr", "optimizer", "zeta"]'
    assert f"order {shown} {names}" in cluster.logs(experiment)
    (trial,) = cluster.trials(experiment)
    described = cluster.json("t", "describe", str(trial["id"]))
    assert json.dumps(described["hparams"]) == json.dumps(trial["hparams"]) == shown


def test_the_search_of_the_tutorial(cluster: LocalCluster, tmp_path: Path) -> None:
    """Its `max_length` is a number, which the script gets as `op.length`; the rungs divide it."""
    config = """
name: tutorial-search
entrypoint: python3 train.py
max_restarts: 0
searcher: {name: adaptive_asha, metric: x, smaller_is_better: true, max_trials: 6, max_length: 100}
hyperparameters:
  increment_by: {type: int, minval: 1, maxval: 8}
"""
    experiment = cluster.submit(tmp_path, config, train_py=OPERATIONS_FORM)
    assert cluster.wait(experiment) == "COMPLETED", cluster.logs(experiment)
    trials = cluster.trials(experiment)
    lengths = {trial["totalBatchesProcessed"] for trial in trials}
    assert len(trials) == 6
    assert {100} <= lengths <= {6, 25, 100}


@pytest.mark.parametrize("searcher", SEARCHERS)
@pytest.mark.parametrize("form", ["operations", "reports"])
def test_tutorial_script(cluster: LocalCluster, tmp_path: Path, form: str, searcher: str) -> None:
    section, hyperparameter = SEARCHERS[searcher]
    length = ", max_length: 100" if form == "operations" else ""
    config = f"""
name: tutorial-{form}-{searcher}
entrypoint: python3 train.py
max_restarts: 0
{section.format(length=length)}
hyperparameters:
  {hyperparameter}
"""
    script = OPERATIONS_FORM if form == "operations" else REPORTS_FORM
    experiment = cluster.submit(tmp_path, config, train_py=script)
    assert cluster.wait(experiment) == "COMPLETED", cluster.logs(experiment)
    trials = cluster.trials(experiment)
    assert len(trials) == (1 if searcher == "single" else 3)
    for trial in trials:
        assert trial["searcherMetricValue"] == 100 * trial["hparams"]["increment_by"]
