"""The previews of a search over REST, in the shapes that each generation of clients reads."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import yaml
from fastapi import FastAPI

from determined_service.access.principal import USER, Principal
from determined_service.base import errors
from determined_service.base.shares import Requests
from determined_service.public import search_preview

CONFIG: dict[str, Any] = {
    "searcher": {
        "name": "adaptive_asha",
        "metric": "loss",
        "max_trials": 16,
        "max_length": {"batches": 1000},
    },
    "hyperparameters": {"lr": {"type": "double", "minval": 0.1, "maxval": 1.0}},
}


def changed(**searcher: Any) -> dict[str, Any]:
    """The configuration with other fields in its searcher; None takes one out."""
    fields = {**CONFIG["searcher"], **searcher}
    return {**CONFIG, "searcher": {k: v for k, v in fields.items() if v is not None}}


class AnyToken:
    """Takes every token for a user's."""

    async def principal(self, token: str) -> Principal:
        return Principal(USER, 2, "determined", False)


@pytest.fixture
def app() -> FastAPI:
    app = FastAPI(strict_content_type=False)
    errors.install(app)
    app.include_router(search_preview.router)
    app.state.requests = Requests(10)
    app.state.auth = AnyToken()
    return app


@pytest.fixture
async def client(app: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(app)
    headers = {"Authorization": "Bearer any"}
    async with httpx.AsyncClient(
        transport=transport, base_url="http://service", headers=headers
    ) as client:
        yield client


async def previewed(client: httpx.AsyncClient, **body: Any) -> Any:
    answer = await client.post("/api/v1/preview-hp-search", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def refused(client: httpx.AsyncClient, body: Any) -> str:
    answer = await client.post("/api/v1/preview-hp-search", json=body)
    assert answer.status_code == 400, answer.text
    return str(answer.json()["error"]["error"])


async def test_the_summary_is_in_closed_form(client: httpx.AsyncClient) -> None:
    found = await previewed(client, config=CONFIG)
    # Brackets of 12 trials (3 rungs) and 4 (2 rungs): 12 -> 3 -> 1 and 4 -> 1.
    assert [(one["count"], one["unit"]) for one in found["summary"]["trials"]] == [
        (9, {"name": "batches", "value": 62, "maxLength": False}),
        (5, {"name": "batches", "value": 250, "maxLength": False}),
        (2, {"name": "batches", "value": 1000, "maxLength": False}),
    ]
    assert found["summary"]["config"]["mode"] == "standard"


async def test_trials_without_a_length_train_to_completion(client: httpx.AsyncClient) -> None:
    config = changed(name="random", max_length=None)
    found = await previewed(client, config=config)
    assert found["summary"]["trials"] == [{"count": 16, "unit": {"maxLength": True}}]
    assert found["simulation"]["trials"] == [{"occurrences": 16, "operations": []}]
    assert found["preview"]["total_units"] is None


async def test_the_simulations_operations(client: httpx.AsyncClient) -> None:
    found = await previewed(client, config=changed(name="async_halving", num_rungs=2), seed=3)
    trials = found["simulation"]["trials"]
    assert sum(one["occurrences"] for one in trials) == 16
    assert trials[-1]["operations"] == [
        {"type": "RUNNABLE_TYPE_TRAIN", "length": "250"},
        {"type": "RUNNABLE_TYPE_VALIDATE"},
        {"type": "RUNNABLE_TYPE_TRAIN", "length": "1000"},
        {"type": "RUNNABLE_TYPE_VALIDATE"},
    ]
    assert found["simulation"]["seed"] == 3
    # Two further generations' words for one simulation.
    lengths = [(one["trials"], one["lengths"]) for one in found["preview"]["breakdown"]]
    assert lengths == [
        (one["occurrences"], [int(step["length"]) for step in one["operations"][::2]])
        for one in trials
    ]


async def test_the_oldest_form(client: httpx.AsyncClient) -> None:
    answer = await client.post("/searcher/preview", json=CONFIG)
    assert answer.status_code == 200
    results = answer.json()["results"]
    assert answer.json()["seed"] == 0
    assert sum(results.values()) == 16
    newer = await previewed(client, config=CONFIG, seed=0)
    assert results == {
        " ".join(map(str, one["lengths"])): one["trials"] for one in newer["preview"]["breakdown"]
    }


async def test_text_reads_as_an_object_does(client: httpx.AsyncClient) -> None:
    text = await previewed(client, config=yaml.safe_dump(CONFIG))
    assert text == await previewed(client, config=CONFIG)


async def test_the_seed_decides(client: httpx.AsyncClient) -> None:
    found = [await previewed(client, config=CONFIG, seed=seed) for seed in (0, 0, 1, 2, 3)]
    assert found[0] == found[1]
    assert len({str(one["preview"]["breakdown"]) for one in found}) > 1
    assert len({str(one["summary"]) for one in found}) == 1


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({}, "config is missing"),
        ([], "the body must be an object"),
        ({"config": 3}, "config: expected an object or YAML text, found int"),
        ({"config": "name: ["}, "not YAML"),
        ({"config": {"hyperparameters": {}}}, "searcher: required field is missing"),
        ({"config": changed(max_trials=0)}, "searcher.max_trials: must be at least 1, found 0"),
        ({"config": changed(max_trials=None, max_trails=1)}, "did you mean 'max_trials'?"),
        ({"config": changed(name="custom", max_trials=None, max_length=None)}, "cannot be prev"),
        ({"config": changed(name="grid", max_trials=None)}, "hyperparameters.lr"),
        ({"config": changed(max_trials=10**9)}, "1000000000 trials are too many to preview"),
        ({"config": CONFIG, "seed": -1}, "seed: expected a whole number from 0 to 4294967295"),
        ({"config": CONFIG, "seed": "x"}, "found 'x'"),
    ],
)
async def test_impossible_previews(client: httpx.AsyncClient, body: Any, text: str) -> None:
    assert text in await refused(client, body)


async def test_a_body_that_is_not_json(client: httpx.AsyncClient) -> None:
    answer = await client.post("/searcher/preview", content=b"{")
    assert answer.status_code == 400
    assert "not JSON" in answer.json()["error"]["error"]


async def test_a_login_is_needed(client: httpx.AsyncClient) -> None:
    del client.headers["Authorization"]
    for path, body in (
        ("/api/v1/preview-hp-search", {"config": CONFIG}),
        ("/searcher/preview", CONFIG),
    ):
        assert (await client.post(path, json=body)).status_code == 401
