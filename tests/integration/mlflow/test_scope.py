"""MLflow's pages and clients show each user its own workspaces."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

pytest.importorskip("mlflow")

from tests.integration.roles import take
from tests.integration.service_api.conftest import world  # noqa: F401 - a fixture
from tests.integration.service_api.test_scope import Mine, two  # noqa: F401 - a fixture
from tests.waiting import until_async

AJAX = "/mlflow/ajax-api/2.0/mlflow"
API = "/mlflow/api/2.0/mlflow"


def asked_of(mine: Mine) -> list[tuple[str, str, dict[str, Any], Any]]:
    """Requests that name this user's things, and lists."""
    experiment, run = str(mine.experiment_id), str(mine.trial_id)
    graph = 'query { mlflowGetExperiment(input: {experimentId: "%s"}) { experiment { name } } }'
    return [
        ("GET", f"{API}/experiments/get", {"experiment_id": experiment}, None),
        ("GET", f"{API}/experiments/get-by-name", {"experiment_name": mine.word}, None),
        ("POST", f"{API}/experiments/search", {}, {"max_results": 1000}),
        ("POST", f"{API}/runs/search", {}, {"experiment_ids": ["1", "2"], "max_results": 1000}),
        ("GET", f"{API}/runs/get", {"run_id": run}, None),
        ("GET", f"{API}/metrics/get-history", {"run_id": run, "metric_key": mine.word}, None),
        (
            "GET",
            f"{AJAX}/metrics/get-history-bulk-interval",
            {"run_ids": run, "metric_key": mine.word},
            None,
        ),
        ("GET", f"{API}/artifacts/list", {"run_id": run}, None),
        ("GET", f"{API}/registered-models/get", {"name": mine.word}, None),
        ("GET", f"{API}/registered-models/search", {"max_results": "100"}, None),
        ("GET", f"{API}/model-versions/search", {"max_results": "100"}, None),
        ("GET", f"{API}/model-versions/get", {"name": mine.word, "version": "1"}, None),
        ("GET", f"{API}/registered-models/alias", {"name": mine.word, "alias": mine.word}, None),
        ("POST", f"{API}/logged-models/search", {}, {"experiment_ids": ["1", "2"]}),
        ("GET", f"{API}/logged-models/m-{mine.checkpoint.replace('-', '')}", {}, None),
        ("POST", "/mlflow/graphql", {}, {"query": graph % experiment, "variables": {}}),
    ]


async def _ask(
    client: httpx.AsyncClient, one: tuple[str, str, dict[str, Any], Any]
) -> httpx.Response:
    method, path, params, body = one
    return await client.request(method, path, params=params, json=body, timeout=180)


async def test_nothing_of_the_others_is_in_mlflows_answers(
    service_app: FastAPI,
    two: tuple[Mine, Mine],  # noqa: F811
) -> None:
    alpha, beta = two
    seen = 0
    # Requests of both at once: the connections of MLflow's server serve them in turn.
    for asker, other in ((alpha, beta), (beta, alpha)):
        for own, theirs in zip(asked_of(asker), asked_of(other), strict=True):
            answers = await asyncio.gather(
                _ask(asker.client, own), _ask(other.client, own), _ask(asker.client, theirs)
            )
            mine, mistaken, strange = answers
            assert all(answer.status_code < 500 for answer in answers), (own, mine.text)
            named = json.dumps([own[2], own[3]])
            assert other.word not in mine.text, (own, mine.text)
            for answer, word, asked in ((mistaken, asker.word, own), (strange, other.word, theirs)):
                text = answer.text
                if answer.is_error:
                    # A refusal says again what was asked for.
                    for value in asked[2].values():
                        text = text.replace(str(value), "")
                assert word not in text, (asked, answer.text)
            seen += asker.word in mine.text and asker.word not in named
    assert seen > 8


async def test_a_role_that_is_taken_ends_what_mlflow_shows(
    service_app: FastAPI,
    two: tuple[Mine, Mine],  # noqa: F811
) -> None:
    alpha, _ = two
    wanted = asked_of(alpha)[0]
    assert alpha.word in (await _ask(alpha.client, wanted)).text
    await take(service_app, f"user-{alpha.word[::-1]}")

    async def is_gone() -> bool:
        return (await _ask(alpha.client, wanted)).status_code == 404

    await until_async("MLflow shows nothing any more", is_gone)
