"""examples/retraining on the real cluster: a promotion, and data that has not changed."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.integration.prefect_server import Prefect
from tests.local_cluster import LocalCluster

EXAMPLE = Path(__file__).parents[2] / "examples/retraining"


PLAN = """
model: digits-drift
experiment: experiment.yaml
evaluate: evaluate:evaluate
data_files: ["*.py"]
warm_start: true
rule: {metric: accuracy}
"""


def test_a_model_is_trained_scored_and_promoted(cluster: LocalCluster, tmp_path: Path) -> None:
    before = cluster.json("pipeline", "list")
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

    # From there on by the files' contents, and from the champion's checkpoint.
    model_dir = tmp_path / "model"
    shutil.copytree(EXAMPLE, model_dir)
    (model_dir / "files.yaml").write_text(PLAN)
    cluster.det("retrain", "create", "files.yaml", ".", cwd=model_dir)
    cluster.det("retrain", "run", "digits-drift")
    warm = cluster.json("retrain", "history", "digits-drift")["runs"][0]
    assert (warm["state"] in ("PROMOTED", "KEPT"), warm["championVersion"]) == (True, 1)
    assert warm["dataVersion"].startswith("sha256:")
    config = cluster.describe(warm["trainingExperimentId"])["config"]
    assert config["data"]["version"] == warm["dataVersion"]
    assert config["searcher"]["source_checkpoint_uuid"] == promoted["challengerUuid"]

    # Somebody begins one on Prefect's page: the same data again.
    prefect = Prefect(cluster)
    deployment = prefect.deployment("retrain/retrain")
    path = f"/deployments/{deployment['id']}/create_flow_run"
    begun = prefect.call(path, {"parameters": {"model": "digits-drift"}})
    ended = prefect.wait(begun["id"])
    last = cluster.json("retrain", "history", "digits-drift")["runs"][0]
    assert (last["state"], last["cause"], last["flowRunId"]) == (
        "SKIPPED",
        "a run in Prefect",
        begun["id"],
    )
    assert (ended["state_type"], ended["name"]) == (
        "COMPLETED",
        f"retrain digits-drift #{last['id']}",
    )
    # Its pipelines are not the users'.
    assert cluster.json("pipeline", "list") == before
