"""Scripts that know only MLflow, against the service."""

from __future__ import annotations

import math
import runpy
from pathlib import Path

import mlflow
import pytest
from mlflow.exceptions import MlflowException

from tests.integration.mlflow.conftest import Cluster


def test_a_script_of_mlflows_is_an_unmanaged_experiment(tracking: Cluster) -> None:
    mlflow.set_experiment("first steps")
    with mlflow.start_run(run_name="one", tags={"team": "vision"}) as run:
        mlflow.log_param("lr", 0.1)
        mlflow.log_params({"layers": 3, "act": "relu", "tiny": 1e-05, "odd": "1e-4"})
        for step in range(5):
            mlflow.log_metrics({"loss": 1 / (step + 1), "val_loss": 2.0 - step}, step=step)
        mlflow.log_metric("strange", math.nan)
        mlflow.log_metric("huge", math.inf)
    found = mlflow.get_run(run.info.run_id)
    assert found.info.status == "FINISHED"
    assert found.info.run_name == "one"
    assert found.data.params == {
        "lr": "0.1",
        "layers": "3",
        "act": "relu",
        "tiny": "1e-05",
        "odd": "1e-4",
    }
    assert found.data.metrics["loss"] == pytest.approx(0.2)
    assert found.data.metrics["val_loss"] == -2.0
    assert math.isnan(found.data.metrics["strange"])
    assert math.isinf(found.data.metrics["huge"])
    assert found.data.tags["team"] == "vision"
    history = mlflow.MlflowClient().get_metric_history(run.info.run_id, "loss")
    assert [(one.step, one.value) for one in history] == [(s, 1 / (s + 1)) for s in range(5)]
    with tracking.api() as api:
        trial = api.get(f"/api/v1/trials/{run.info.run_id}").json()["trial"]
        assert trial["state"] == "STATE_COMPLETED"
        assert trial["hparams"] == {
            "lr": 0.1,
            "layers": 3,
            "act": "relu",
            "tiny": 1e-05,
            "odd": "1e-4",
        }
        kept = trial["summaryMetrics"]
        assert kept["validation_metrics"]["val_loss"]["count"] == 5


def test_a_parameter_does_not_change(tracking: Cluster) -> None:
    mlflow.set_experiment("parameters")
    with mlflow.start_run():
        mlflow.log_param("lr", 0.1)
        mlflow.log_param("lr", 0.1)
        with pytest.raises(MlflowException, match="not allowed"):
            mlflow.log_param("lr", 0.2)


def test_reports_before_the_training_have_a_step_below_0(tracking: Cluster) -> None:
    mlflow.set_experiment("steps")
    with mlflow.start_run() as run:
        for step in (5, -1, 0, -(2**63) + 1, 2**63 - 1):
            mlflow.log_metric("loss", float(step), step=step)
        mlflow.log_metric("before", 2.3, step=-2)
        mlflow.log_metric("before", 2.2, step=-1)
    found = mlflow.get_run(run.info.run_id).data.metrics
    assert found == {"loss": float(2**63 - 1), "before": 2.2}
    history = mlflow.MlflowClient().get_metric_history(run.info.run_id, "before")
    assert [(one.step, one.value) for one in history] == [(-2, 2.3), (-1, 2.2)]
    with tracking.api() as api:
        asked = {"trialIds": run.info.run_id, "group": "training", "metricNames": "before"}
        curves = api.get("/api/v1/trials/time-series", params=asked).json()["trials"]
        steps = [point["batches"] for point in curves[0]["metrics"][0]["data"] if point["values"]]
        assert steps == [-2, -1]
        kept = api.get(f"/api/v1/trials/{run.info.run_id}").json()["trial"]["summaryMetrics"]
        assert kept["avg_metrics"]["before"] | {"sum": 0, "mean": 0} == {
            "type": "number",
            "count": 2,
            "last": 2.2,
            "sum": 0,
            "min": 2.2,
            "max": 2.3,
            "mean": 0,
        }


def test_the_example(tracking: Cluster) -> None:
    """A team's unchanged script: a registered checkpoint of ours answers after it is loaded."""
    example = Path(__file__).parents[3] / "examples" / "mlflow_script" / "train.py"
    run = runpy.run_path(str(example))["run"]
    found = mlflow.get_run(run.info.run_id)
    assert found.info.status == "FINISHED"
    assert found.data.metrics["val_accuracy"] > 0.9
    client = mlflow.MlflowClient()
    assert len(client.get_metric_history(run.info.run_id, "accuracy")) == 10
    version = client.get_model_version("digits-by-mlflow", "1")
    assert version.run_id == run.info.run_id
    with tracking.api() as api:
        path = "/api/v1/models/digits-by-mlflow/versions/1"
        kept = api.get(path).json()["modelVersion"]["checkpoint"]
        assert kept["state"] == "STATE_COMPLETED"
        assert kept["training"]["trialId"] == int(run.info.run_id)
