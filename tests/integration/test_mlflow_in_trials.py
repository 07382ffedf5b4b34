"""MLflow in a training script: its data belong to the trial; and the links from a run to its page."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.prefect_server import Prefect
from tests.local_cluster import LocalCluster
from tests.waiting import until

pytest.importorskip("mlflow")

CONFIG = """
name: by-mlflow
entrypoint: python3 train.py
searcher: {name: single, metric: accuracy, smaller_is_better: false, max_length: {batches: 1}}
max_restarts: 0
"""
TRAIN = """
import os
import mlflow
from mlflow.exceptions import MlflowException

other = os.environ["OTHER"]
with mlflow.start_run() as run:
    mlflow.log_params({"layers": 3})
    for step in range(3):
        mlflow.log_metrics({"accuracy": step / 4, "training/loss": 1 - step / 4}, step=step)
    mlflow.set_tag("team", "vision")
print("logged to", run.info.run_id, run.info.experiment_id)
client = mlflow.MlflowClient()
for refused in (
    lambda: client.log_metric(other, "accuracy", 1.0),
    lambda: client.set_tag(other, "team", "mine"),
    lambda: client.create_run(client.get_run(other).info.experiment_id),
    lambda: client.delete_run(run.info.run_id),
    lambda: client.delete_experiment(run.info.experiment_id),
):
    try:
        refused()
    except MlflowException as error:
        print("refused:", error)
    else:
        print("ALLOWED")
"""


def test_a_scripts_logs_belong_to_its_trial(cluster: LocalCluster, tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "train.py").write_text(TRAIN)
    session = cluster.session()
    mlflow = "/mlflow/api/2.0/mlflow"
    owners = session.post(f"{mlflow}/experiments/create", json={"name": "of the owner"})
    other = session.post(f"{mlflow}/runs/create", json={"experiment_id": owners["experiment_id"]})[
        "run"
    ]["info"]["run_id"]
    config = f"{CONFIG}environment: {{environment_variables: ['OTHER={other}']}}\n"
    (tmp_path / "config.yaml").write_text(config)

    done = cluster.det("flow", "run", str(tmp_path / "config.yaml"), str(tmp_path / "model"))

    found = session.get("/api/v1/experiments", params={"name": "by-mlflow"})["experiments"][0]
    (trial,) = cluster.trials(found["id"])
    page = f"/mlflow/#/experiments/{found['id']}/runs/{trial['id']}"
    assert f"look at it in MLflow: {session.master}{page}" in done.stderr
    logs = cluster.logs(found["id"])
    assert f"logged to {trial['id']} {found['id']}" in logs
    assert logs.count("refused:") == 5 and "ALLOWED" not in logs, logs
    assert trial["state"] == "COMPLETED"
    known = session.get(f"/api/v1/trials/{trial['id']}")["trial"]["summaryMetrics"]
    assert known["validation_metrics"]["accuracy"]["last"] == 0.5
    assert known["avg_metrics"]["loss"]["last"] == 0.5
    run = session.get(f"{mlflow}/runs/get", params={"run_id": trial["id"]})["run"]
    assert {"key": "layers", "value": "3"} in run["data"]["params"]
    assert {"key": "team", "value": "vision"} in run["data"]["tags"]
    assert run["info"]["status"] == "FINISHED"
    prefect = Prefect(cluster)
    wanted = {"flow_runs": {"id": {"any_": [trial["flowRunId"]]}}}
    (shown,) = until(
        "the page of the trial's run", lambda: prefect.call("/artifacts/filter", wanted)
    )
    assert f"[Trial {trial['id']} in MLflow]({session.master}{page})" in shown["data"]
