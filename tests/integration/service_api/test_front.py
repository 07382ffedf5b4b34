"""The page at the service's own address."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI
from pydantic import SecretStr

from determined_service.app import create_app
from determined_service.base.settings import Settings
from tests.integration.browser import open_browser
from tests.integration.conftest import AGENT_TOKEN, client_of, serve

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


class Links(HTMLParser):
    """The addresses in a page, and the names of its elements."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.addresses: list[str] = []
        self.elements: set[str] = set()
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.add(tag)
        self.addresses += [value or "" for name, value in attrs if name in ("href", "src")]


async def test_a_browser_gets_a_page_that_names_the_doors(anonymous: httpx.AsyncClient) -> None:
    answer = await anonymous.get("/", headers={"Accept": BROWSER})
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    links = Links(answer.text)
    if "/mlflow/" in links.addresses:  # where MLflow is installed
        links.addresses.remove("/mlflow/")
    here = [address for address in links.addresses if address.startswith("/")]
    assert sorted(here) == ["/docs", "/health", "/openapi.json", "/prefect/", "/ready"]
    assert [address for address in links.addresses if address not in here] == []
    for address in ("/docs", "/health", "/openapi.json"):  # no Prefect answers here
        assert (await anonymous.get(address)).status_code == 200
    assert not links.elements & {"script", "img", "link", "iframe", "form", "b"}
    assert "&lt;b&gt;&amp;&#34;lab&#39;" in answer.text
    for words in ("det experiment list", "det experiment plot ID", "a password of this cluster"):
        assert words in answer.text
    policy = answer.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; style-src 'sha256-")
    assert "unsafe" not in policy


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


def test_a_real_browser_shows_it_and_complains_of_nothing(
    settings: Settings, tmp_path_factory: pytest.TempPathFactory
) -> None:
    none = {"prefect_api_url": None}
    with (
        serve(create_app(settings.model_copy(update=none))) as url,
        open_browser(tmp_path_factory.mktemp("chromium"), log=True) as browser,
    ):
        browser.get(url)
        assert browser.find_element("tag name", "h1").text == "Determined on Prefect"
        assert f"Cluster {NAME}," in browser.find_element("tag name", "body").text
        style = "return getComputedStyle(document.body).maxWidth"
        assert re.fullmatch(r"[1-9]\d+px", browser.execute_script(style)), (
            "its style is let through"
        )
        severe = [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]
        assert severe == []
        browser.save_screenshot(str(Path(tmp_path_factory.getbasetemp()) / "front.png"))
