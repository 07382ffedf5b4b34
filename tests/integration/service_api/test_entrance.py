"""The service's own address."""

from __future__ import annotations

import httpx
import pytest
from fastapi import FastAPI
from pydantic import SecretStr

from determined_service.base.settings import Settings
from tests.integration.conftest import AGENT_TOKEN, client_of

BROWSER = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"
NAME = "<b>&\"lab'"


@pytest.fixture
def settings(settings: Settings) -> Settings:
    changed = {
        "cluster_name": NAME,
        "prefect_api_url": "http://127.0.0.1:9/api",
        "prefect_auth": SecretStr("determined:of-prefect"),
        "bootstrap_passwords": {"admin": SecretStr("of-admin")},
    }
    return settings.model_copy(update=changed)


@pytest.mark.parametrize(
    ("host", "found"),
    [("127.0.0.1:8080", "http://det.localhost:8080/det/"), ("service.example", "/det/")],
)
async def test_a_browser_is_led_to_the_pages(
    anonymous: httpx.AsyncClient, host: str, found: str
) -> None:
    headers = {"Accept": BROWSER, "Host": host}
    answer = await anonymous.get("/", headers=headers)
    assert (answer.status_code, answer.headers["location"]) == (302, "/det/")
    answer = await anonymous.get("/det/", headers=headers)
    there = answer.headers["location"]
    assert there == (found if found != "/det/" else "/det/login?to=%2Fdet%2F")


@pytest.mark.parametrize("accept", ["application/json", "*/*", ""])
async def test_another_client_gets_json(anonymous: httpx.AsyncClient, accept: str) -> None:
    answer = await anonymous.get("/", headers={"Accept": accept})
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["vary"] == "Accept"
    found = answer.json()
    assert found["clusterName"] == NAME
    found["links"].pop("mlflow", None)
    assert found["links"] == {
        "pages": "/det/",
        "api": "/docs",
        "openapi": "/openapi.json",
        "prefect": "/prefect/",
        "health": "/health",
        "ready": "/ready",
    }


async def test_nothing_of_the_request_and_no_secret(
    anonymous: httpx.AsyncClient, service_app: FastAPI
) -> None:
    headers = {
        "Host": "evil.example",
        "X-Forwarded-Host": "evil.example",
        "Referer": "http://evil.example",
        "User-Agent": "evil.example",
    }
    for accept in (BROWSER, "application/json"):
        plain = await anonymous.get("/", headers={"Accept": accept})
        odd = await anonymous.get("/?next=evil.example", headers={**headers, "Accept": accept})
        assert odd.content == plain.content
        for secret in (
            AGENT_TOKEN,
            "of-prefect",
            "of-admin",
            str(service_app.state.settings.db_url),
        ):
            assert secret not in odd.text


async def test_without_prefect_there_is_no_door_to_it(service_app: FastAPI) -> None:
    none = {"prefect_api_url": None}
    service_app.state.settings = service_app.state.settings.model_copy(update=none)
    async with client_of(service_app, None) as client:
        assert "prefect" not in (await client.get("/")).json()["links"]
