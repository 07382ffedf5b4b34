"""Population based training on the real cluster."""

from __future__ import annotations

import json
from pathlib import Path

from tests.local_cluster import LocalCluster

LINEAGE = """
import json
import determined as det

info = det.get_cluster_info()
with det.core.init() as core_context:
    lineage = []  # of each epoch: the trial that trained it, and with which rate
    if info.latest_checkpoint is not None:
        with core_context.checkpoint.restore_path(info.latest_checkpoint) as path:
            lineage = json.loads((path / "lineage.json").read_text())
    for op in core_context.searcher.operations():
        while len(lineage) < op.length:
            lineage.append([info.trial.trial_id, info.trial.hparams["rate"]])
        metric = sum(rate for _, rate in lineage)
        core_context.train.report_validation_metrics(op.length, {"gain": metric})
        with core_context.checkpoint.store_path({"steps_completed": op.length}) as (path, _):
            (path / "lineage.json").write_text(json.dumps(lineage))
        print("LINEAGE", json.dumps([info.trial.trial_id, op.length, lineage]), flush=True)
        op.report_completed(metric)
"""

PBT = """
name: population
entrypoint: python3 script.py
hyperparameters:
  rate: {type: double, minval: 0, maxval: 1}
searcher:
  name: pbt
  metric: gain
  smaller_is_better: false
  population_size: 4
  num_rounds: 3
  max_length: {epochs: 6}
reproducibility: {experiment_seed: 5}
max_restarts: 0
"""


def test_copies_go_on_from_the_checkpoints_of_the_best(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    experiment = cluster.submit(tmp_path, PBT, script_py=LINEAGE)
    assert cluster.wait(experiment) == "COMPLETED"
    trials = cluster.trials(experiment)
    assert [trial["state"] for trial in trials] == ["COMPLETED"] * 6
    first = {trial["id"] for trial in sorted(trials, key=lambda trial: trial["id"])[:4]}
    lines = [
        json.loads(line.split("LINEAGE ", 1)[1])
        for trial in trials
        for line in cluster.det("trial", "logs", str(trial["id"])).stdout.splitlines()
        if "LINEAGE " in line
    ]
    # Every member reported once per round; its lineage is as long as its training.
    assert sorted(length for _, length, _ in lines) == [2] * 4 + [4] * 4 + [6] * 4
    assert all(len(lineage) == length for _, length, lineage in lines)
    seen = {(trial, length): lineage for trial, length, lineage in lines}
    for copy in {trial["id"] for trial in trials} - first:
        length = min(length for trial, length in seen if trial == copy)
        inherited = seen[copy, length][:-2]
        # Its source was the best of the round before.
        before = {key: sum(rate for _, rate in seen[key]) for key in seen if key[1] == length - 2}
        best = max(before, key=lambda key: before[key])
        assert inherited == seen[best]
        assert {trial for trial, _ in seen[copy, length][-2:]} == {copy}


def test_without_a_checkpoint_the_experiment_names_the_missing_one(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    begin = LINEAGE.index("        with core_context.checkpoint.store_path")
    end = LINEAGE.index("        print(")
    experiment = cluster.submit(tmp_path, PBT, script_py=LINEAGE[:begin] + LINEAGE[end:])
    assert cluster.wait(experiment) == "ERROR"
    reason = json.dumps(cluster.describe(experiment))
    assert "the training code must save a checkpoint before it reports to the searcher" in reason
