"""examples/retraining on the real cluster: a promotion, and data that has not changed."""

from __future__ import annotations

from pathlib import Path

from tests.local_cluster import LocalCluster

EXAMPLE = Path(__file__).parents[2] / "examples/retraining"


def test_a_model_is_trained_scored_and_promoted(cluster: LocalCluster) -> None:
    cluster.det("retrain", "create", "plan.yaml", ".", cwd=EXAMPLE)
    cluster.det("retrain", "run", "digits-drift")
    cluster.det("retrain", "run", "digits-drift")
    skipped, promoted = cluster.json("retrain", "history", "digits-drift")["runs"]
    assert (promoted["state"], promoted["version"]) == ("PROMOTED", 1)
    assert promoted["decision"]["scores"]["accuracy"]["examples"] == 719
    assert promoted["reason"].startswith("there is no champion yet: accuracy 0.9")
    assert (skipped["state"], skipped["trainingExperimentId"]) == ("SKIPPED", None)
    assert skipped["dataVersion"] == promoted["dataVersion"]
    described = cluster.json("model", "describe", "digits-drift", "--version", "champion")
    assert described["modelVersion"]["version"] == 1
