"""What a server of MLflow's takes or refuses, and a request that was once a 5xx here."""

from __future__ import annotations

import httpx
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
