"""The metrics of a logged model or a data set, and searches for models and runs by them."""

from __future__ import annotations

import math

import httpx
import mlflow
import numpy as np
import pandas as pd
import pytest
from mlflow.entities import Metric
from mlflow.exceptions import MlflowException

from tests.integration.mlflow.conftest import Cluster


def test_a_model_has_the_metrics_that_runs_report(tracking: Cluster) -> None:
    client = mlflow.MlflowClient()
    experiment = mlflow.set_experiment("metrics of models").experiment_id
    data = mlflow.data.from_pandas(pd.DataFrame({"x": [1.0, 2.0]}), name="held out")
    with mlflow.start_run() as run:
        good, poor, none = (
            client.create_logged_model(experiment, name, source_run_id=run.info.run_id).model_id
            for name in ("good", "poor", "none")
        )
        for _ in range(2):  # the same point twice is there once
            client.log_metric(run.info.run_id, "acc", 0.9, step=3, timestamp=7, model_id=good)
        mlflow.log_metrics({"acc": 0.1, "loss": math.nan}, model_id=poor, dataset=data)
    with mlflow.start_run() as later:
        client.log_batch(
            later.info.run_id, [Metric("acc", value, 8, 4, good) for value in (0.95, 0.96)]
        )
    found = client.get_logged_model(good).metrics
    assert [(one.key, one.value, one.step, one.run_id, one.model_id) for one in found] == [
        ("acc", 0.9, 3, run.info.run_id, good),
        ("acc", 0.95, 4, later.info.run_id, good),
    ]
    measured = {one.key: one for one in client.get_logged_model(poor).metrics}
    assert math.isnan(measured["loss"].value)
    assert (measured["acc"].dataset_name, measured["acc"].dataset_digest) == (
        "held out",
        data.digest,
    )
    # The run has them, too.
    assert client.get_run(run.info.run_id).data.metrics["acc"] in (0.1, 0.9)

    def search(filter_string: str = "", **more: object) -> list[str]:
        models = client.search_logged_models([experiment], filter_string or None, **more)
        return [one.name for one in models]

    assert search("metrics.acc > 0.5") == ["good"]
    assert search(datasets=[{"dataset_name": "held out"}]) == ["poor"]
    assert search(datasets=[{"dataset_name": "held out", "dataset_digest": "x"}]) == []
    by = [{"field_name": "metrics.acc", "ascending": False}]
    assert search(order_by=by) == ["good", "poor", "none"]
    assert client.get_logged_model(none).metrics == []
    with pytest.raises(MlflowException, match="does not exist"):
        client.log_metric(run.info.run_id, "acc", 1.0, model_id=f"m-{'0' * 32}")


def test_a_model_of_anothers_is_not_measured(cluster: Cluster) -> None:
    api = "/mlflow/api/2.0/mlflow"
    with cluster.api(cluster.log_in("admin")) as admin:
        user = {"user": {"username": "measurer"}, "password": ""}
        admin.post("/api/v1/users", json=user).raise_for_status()

    def run_of(client: httpx.Client, name: str) -> tuple[str, str]:
        made = client.post(f"{api}/experiments/create", json={"name": name})
        experiment = made.json()["experiment_id"]
        started = client.post(f"{api}/runs/create", json={"experiment_id": experiment})
        return experiment, started.json()["run"]["info"]["run_id"]

    with cluster.api() as mine, cluster.api(cluster.log_in("measurer")) as other:
        experiment, run = run_of(mine, "measured")
        given = {"experiment_id": experiment, "source_run_id": run}
        made = mine.post(f"{api}/logged-models", json=given).json()
        model = made["model"]["info"]["model_id"]
        point = {"key": "a", "value": 1, "timestamp": 1, "step": 1, "model_id": model}
        _, own = run_of(other, "measuring")
        for path, body in (
            ("log-metric", {"run_id": own, **point}),
            ("log-batch", {"run_id": own, "metrics": [point]}),
        ):
            answer = other.post(f"{api}/runs/{path}", json=body)
            assert answer.status_code == 403, answer.text
            assert "belongs to another user" in answer.json()["message"]
        got = mine.get(f"{api}/logged-models/{model}").json()["model"]
        assert "metrics" not in got["data"]


def test_an_autologged_model_has_its_metrics(tracking: Cluster) -> None:
    from sklearn.linear_model import LogisticRegression

    mlflow.set_experiment("autologged models")
    mlflow.sklearn.autolog()
    try:
        with mlflow.start_run() as run:
            x, y = np.array([[0.0], [1.0], [2.0], [3.0]]), np.array([0, 0, 1, 1])
            LogisticRegression().fit(x, y)
    finally:
        mlflow.sklearn.autolog(disable=True)
    client = mlflow.MlflowClient()
    (output,) = client.get_run(run.info.run_id).outputs.model_outputs
    model = client.get_logged_model(output.model_id)
    kept = {one.key for one in model.metrics}
    assert kept >= {"training_score", "training_f1_score"}
    assert {one.dataset_name for one in model.metrics} == {"dataset"}


def test_runs_are_found_by_their_data_sets(tracking: Cluster) -> None:
    experiment = mlflow.set_experiment("data sets").experiment_id
    runs = {}
    for name, context in (("birds", "training"), ("fish", "testing")):
        with mlflow.start_run() as run:
            frame = pd.DataFrame({"x": [float(len(name))]})
            data = mlflow.data.from_pandas(frame, name=name)
            mlflow.log_input(data, context=context)
            runs[name] = (run.info.run_id, data.digest)
    with mlflow.start_run():
        pass
    client = mlflow.MlflowClient()

    def search(filter_string: str) -> list[str]:
        return [one.info.run_id for one in client.search_runs([experiment], filter_string)]

    birds, digest = runs["birds"]
    fish = runs["fish"][0]
    assert search("dataset.name = 'birds'") == [birds]
    assert search("datasets.name LIKE '%is%'") == [fish]
    assert search(f"dataset.digest IN ('{digest}', 'x')") == [birds]
    assert search("dataset.context = 'testing'") == [fish]
    assert search("dataset.name != 'birds'") == [fish]
    assert search("dataset.name = 'cats'") == []
    with tracking.api() as api:
        answer = api.post(
            "/mlflow/ajax-api/2.0/mlflow/experiments/search-datasets",
            json={"experiment_ids": [experiment]},
        )
        answer.raise_for_status()
    assert answer.json()["dataset_summaries"] == [
        {"experiment_id": experiment, "name": name, "digest": runs[name][1], "context": context}
        for name, context in (("birds", "training"), ("fish", "testing"))
    ]
