"""A searcher of another package, on the real cluster."""

from __future__ import annotations

from pathlib import Path

from tests.local_cluster import LocalCluster

SCRIPT = """
import determined as det

rate = det.get_cluster_info().trial.hparams["rate"]
with det.core.init() as core_context:
    for op in core_context.searcher.operations():
        core_context.train.report_validation_metrics(op.length, {"gain": rate * op.length})
        op.report_completed(rate * op.length)
"""
CLIMB = """
name: climb
entrypoint: python3 script.py
hyperparameters:
  rate: {type: double, minval: 0, maxval: 1}
searcher: {name: climb, metric: gain, smaller_is_better: false, max_trials: 4, max_length: 2}
reproducibility: {experiment_seed: 5}
max_restarts: 0
"""


def test_a_searcher_of_another_package(disposable: LocalCluster, tmp_path: Path) -> None:
    experiment = disposable.submit(tmp_path, CLIMB, script_py=SCRIPT)
    assert disposable.wait(experiment) == "COMPLETED"
    config = disposable.describe(experiment)["config"]
    assert config["searcher"]["keep"] == 0.5  # its own model's default
    rates = [trial["hparams"]["rate"] for trial in disposable.trials(experiment)]
    assert len(rates) == 4
    assert all(0 <= rate < 1 for rate in rates)
