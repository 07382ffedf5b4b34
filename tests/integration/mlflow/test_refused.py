"""Requests that MLflow's server accepts or refuses, and a request that once got a 5xx here."""

from __future__ import annotations

import logging

import httpx
import mlflow
import pytest

from tests.integration.mlflow.conftest import Cluster

API = "/mlflow/api/2.0/mlflow"
PAGES = "/mlflow/ajax-api/2.0/mlflow"
ARTIFACTS = "/mlflow/api/2.0/mlflow-artifacts/artifacts"


def _run(api: httpx.Client, name: str) -> tuple[str, str]:
    """A run of a new experiment: the ids of both."""
    made = api.post(f"{API}/experiments/create", json={"name": name})
    made.raise_for_status()
    experiment = made.json()["experiment_id"]
    started = api.post(f"{API}/runs/create", json={"experiment_id": experiment})
    started.raise_for_status()
    return experiment, started.json()["run"]["info"]["run_id"]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("experiments/create", {"name": "a\0b"}),
        ("experiments/search", {"max_results": 1, "filter": "name = 'a\0b'"}),
        ("registered-models/create", {"name": "a\0b"}),
        ("runs/search", {"experiment_ids": ["1"], "filter": "tags.a = 'a\0b'"}),
    ],
)
def test_a_text_with_nul_is_refused(cluster: Cluster, path: str, body: dict[str, object]) -> None:
    with cluster.api() as api:
        answer = api.post(f"{API}/{path}", json=body)
    assert answer.status_code == 400, answer.text
    assert "NUL" in answer.json()["message"]


def test_a_name_that_no_storage_keeps_is_refused(cluster: Cluster) -> None:
    with cluster.api() as api:
        _, run = _run(api, "long names")
        for name, status in (
            ("a" * 255, 200),
            ("a" * 256, 400),
            ("é" * 128, 400),
            ("b" * 300 + "/c", 400),
            ("/".join(["d" * 200] * 21), 400),
            ("/".join(["d" * 200] * 4), 200),
        ):
            answer = api.put(f"{ARTIFACTS}/trials/{run}/{name}", content=b"x")
            assert answer.status_code == status, (name, answer.text)
            assert status == 200 or "are allowed" in answer.json()["message"], answer.text


def test_the_pages_upload_files(cluster: Cluster) -> None:
    with cluster.api() as api:
        _, run = _run(api, "uploads of pages")
        for path in ("a.txt", "deep/er/b.txt"):
            given = {"run_uuid": run, "path": path}
            sent = api.post(f"{PAGES}/upload-artifact", params=given, content=path.encode())
            assert sent.status_code == 200, sent.text
            got = api.get(f"{ARTIFACTS}/trials/{run}/{path}")
            assert (got.status_code, got.text) == (200, path)
        # MLflow's server holds it in memory.
        sent = api.post(f"{PAGES}/upload-artifact", params=given, content=bytes(10 * 2**20 + 1))
        assert sent.status_code == 413, sent.text


def test_values_and_names_of_metrics(cluster: Cluster) -> None:
    """Accepted and refused as by MLflow's server."""
    with cluster.api() as api:
        _, run = _run(api, "names of metrics")
        for key, value, status in (
            ("a/b", 1, 200),
            ("c", "1.5", 200),
            ("d", "-2e3", 200),
            ("e", "Infinity", 200),
            ("../x", 1, 400),
            ("a//b", 1, 400),
            ("/a", 1, 400),
            (".", 1, 400),
            ("a/", 1, 400),
            ("f", "1.5 ", 400),
            ("f", "x", 400),
            ("f", "1_0", 400),
            ("f", True, 400),
        ):
            point = {"key": key, "value": value, "timestamp": 1, "step": 0}
            for path, body in (
                ("log-metric", {"run_id": run, **point}),
                ("log-batch", {"run_id": run, "metrics": [point]}),
            ):
                answer = api.post(f"{API}/runs/{path}", json=body)
                assert answer.status_code == status, (path, key, value, answer.text)
        got = api.get(f"{API}/runs/get", params={"run_id": run}).json()["run"]["data"]["metrics"]
        kept = {one["key"]: one["value"] for one in got}
    assert kept == {"a/b": 1, "c": 1.5, "d": -2000, "e": "Infinity"}


def test_steps_and_times_of_metrics(cluster: Cluster) -> None:
    """Any of 64 bits, and any year that is a date; where a model is named, its points are looked up, too."""
    in_3500, in_9998 = 48_282_000_000_000, 253_370_764_799_999
    most = 2**63 - 1
    with cluster.api() as api:
        experiment, run = _run(api, "steps and times")
        made = api.post(
            f"{API}/logged-models",
            json={"experiment_id": experiment, "name": "m", "source_run_id": run},
        ).raise_for_status()
        model = made.json()["model"]["info"]["model_id"]
        for more in ({}, {"model_id": model}):
            for step, moment, status, said in (
                (most, 1, 200, ""),
                (-most, in_3500, 200, ""),
                (0, in_9998, 200, ""),
                (
                    most + 1,
                    1,
                    400,
                    "'metrics[0].step' supplied: expected a whole number from -9223",
                ),
                (-(10**30), 1, 400, "parameter 'metrics[0].step' supplied"),
                (0, in_9998 + 1, 400, "parameter 'metrics[0].timestamp' supplied"),
                (0, 10**40, 400, "parameter 'metrics[0].timestamp' supplied"),
                (1.5, 1, 400, "Invalid value 1.5 for parameter 'metrics[0].step' supplied"),
                (True, 1, 400, "Invalid value true for parameter 'metrics[0].step' supplied"),
                (0, 1.5, 400, "Invalid value 1.5 for parameter 'metrics[0].timestamp' supplied"),
                (2.0, 1, 200, ""),
            ):
                point = {"key": "a", "value": 1, "timestamp": moment, "step": step, **more}
                body = {"run_id": run, "metrics": [point]}
                answer = api.post(f"{API}/runs/log-batch", json=body)
                assert answer.status_code == status, (more, step, moment, answer.text)
                assert status == 200 or said in answer.json()["message"], answer.text
        params = {"run_id": run, "metric_key": "a"}
        history = api.get(f"{API}/metrics/get-history", params=params).raise_for_status().json()
        found = api.get(f"{API}/logged-models/{model}").raise_for_status().json()
    points = {(one["step"], one["timestamp"]) for one in history["metrics"]}
    assert points == {(most, 1), (-most, in_3500), (0, in_9998), (2, 1)}
    assert found["model"]["data"]["metrics"]


def test_wrong_parameters_are_named_in_mlflows_words(cluster: Cluster) -> None:
    with cluster.api() as api:
        _, run = _run(api, "wrong parameters")
        point = {"run_id": run, "key": "a", "value": 1, "timestamp": 1, "step": 1}
        for path, given, words in (
            (
                "log-metric",
                {**point, "run_id": 31},
                "Invalid value 31 for parameter 'run_id' supplied",
            ),
            (
                "log-metric",
                {**point, "run_id": None},
                "Missing value for required parameter 'run_id'",
            ),
            ("log-metric", {**point, "key": 31}, "Invalid value 31 for parameter 'key' supplied"),
            ("log-metric", {**point, "key": None}, "Missing value for required parameter 'key'"),
            (
                "log-metric",
                {**point, "step": "x"},
                "Invalid value \"x\" for parameter 'step' supplied",
            ),
            (
                "log-metric",
                {**point, "timestamp": "x"},
                "value \"x\" for parameter 'timestamp' supplied",
            ),
            (
                "log-metric",
                {**point, "value": "x"},
                "Invalid value \"x\" for parameter 'value' supplied",
            ),
            ("log-batch", {"metrics": "x"}, "Invalid value \"x\" for parameter 'metrics' supplied"),
            ("log-batch", {"params": "x"}, "Invalid value \"x\" for parameter 'params' supplied"),
            ("log-batch", {"tags": "x"}, "Invalid value \"x\" for parameter 'tags' supplied"),
            (
                "log-batch",
                {"metrics": [point, {"key": "mae", "value": 2.5}]},
                "Missing value for required parameter 'metrics[1].timestamp'",
            ),
            (
                "log-batch",
                {"metrics": [{**point, "key": "../x"}]},
                "Invalid value \"../x\" for parameter 'metrics[0].name' supplied",
            ),
            (
                "log-batch",
                {"tags": [{"key": "a", "value": 1}]},
                "for parameter 'tags[0].value' supplied",
            ),
            ("log-batch", {"params": [{"value": "1"}]}, "required parameter 'params[0].key'"),
            (
                "log-batch",
                {"params": [{"key": "a", "value": "1"}] * 2},
                "Duplicate parameter keys have been submitted: 'a'",
            ),
            (
                "log-batch",
                {"metrics": [point] * 1001},
                "A batch logging request can contain at most 1000 metrics. Got 1001 metrics",
            ),
        ):
            body = given if path == "log-metric" else {"run_id": run, **given}
            answer = api.post(f"{API}/runs/{path}", json=body)
            assert answer.status_code == 400, (given, answer.text)
            assert words in answer.json()["message"], answer.text
        tag = api.post(f"{API}/runs/delete-tag", json={"run_id": run, "key": "absent"})
        assert (tag.status_code, "No tag with name: absent" in tag.text) == (404, True), tag.text


def test_invalid_and_missing_ids(cluster: Cluster) -> None:
    """In the words that MLflow's clients look for."""
    with cluster.api() as api:
        for path, given, status, words in (
            ("experiments/get", {"experiment_id": "abc"}, 400, "Invalid experiment ID"),
            ("experiments/get", {"experiment_id": "987654"}, 404, "Experiment with id=987654 not"),
            ("runs/get", {"run_id": "987654"}, 404, "Run with id=987654 not found"),
            ("runs/get", {"run_id": "abc"}, 404, "Run with id=abc not found"),
            ("registered-models/get", {"name": "nobody"}, 404, "name=nobody not found"),
            ("model-versions/get", {"name": "nobody", "version": "1"}, 404, "not found"),
            (f"logged-models/m-{'0' * 32}", {}, 404, "not found"),
        ):
            answer = api.get(f"{API}/{path}", params=given)
            assert answer.status_code == status, (path, answer.text)
            assert words in answer.json()["message"], answer.text
        search = api.post(f"{API}/runs/search", json={"experiment_ids": ["abc"]})
        assert (search.status_code, "Invalid experiment ID" in search.text) == (400, True)


def test_an_experiment_tells_when_it_was_changed(cluster: Cluster) -> None:
    with cluster.api() as api:
        made = api.post(f"{API}/experiments/create", json={"name": "to be changed"})
        experiment = made.json()["experiment_id"]

        def updated() -> int:
            found = api.get(f"{API}/experiments/get", params={"experiment_id": experiment})
            return int(found.json()["experiment"]["last_update_time"])

        times = [updated()]
        for path, more in (
            ("update", {"new_name": "has been changed"}),
            ("delete", {}),
            ("restore", {}),
        ):
            answer = api.post(
                f"{API}/experiments/{path}", json={"experiment_id": experiment, **more}
            )
            assert answer.status_code == 200, answer.text
            times.append(updated())
        assert times == sorted(set(times)), times
        # It is found by that time, too.
        body = {"max_results": 5, "filter": f"last_update_time = {times[-1]}"}
        found = api.post(f"{API}/experiments/search", json=body).json()["experiments"]
    assert [one["experiment_id"] for one in found] == [experiment]


def test_a_client_that_traces_gets_advice(
    tracking: Cluster, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the message does not mention an expired login, as MLflow's client does at a 403."""
    monkeypatch.setenv("MLFLOW_ENABLE_ASYNC_TRACE_LOGGING", "false")
    monkeypatch.setattr(logging.getLogger("mlflow"), "propagate", True)
    mlflow.set_experiment("traced")
    with mlflow.start_span("a step"):
        pass
    said = [one.getMessage() for one in caplog.records if "trace" in one.getMessage()]
    assert any("traces are not kept here: turn them off with" in one for one in said), said
    assert not any("databricks" in one or "authentication" in one for one in said), said


def test_a_token_that_only_reads_changes_nothing(cluster: Cluster) -> None:
    with cluster.api() as api:
        me = api.get("/api/v1/me").json()["user"]["id"]
        made = api.post("/api/v1/tokens", json={"userId": me, "readOnly": True})
        experiment, run = _run(api, "of-full-rights")
    with cluster.api(made.json()["token"]) as reader:
        for path, body in (
            ("experiments/create", {"name": "other"}),
            ("runs/create", {"experiment_id": experiment}),
            ("runs/log-metric", {"run_id": run, "key": "a", "value": 1, "timestamp": 1}),
            ("registered-models/create", {"name": "read-only"}),
        ):
            answer = reader.post(f"{API}/{path}", json=body)
            assert answer.status_code == 403, (path, answer.text)
            assert "good for reading alone" in answer.text, path
        found = reader.post(f"{API}/runs/search", json={"experiment_ids": [experiment]})
        assert found.json()["runs"][0]["info"]["run_id"] == run
