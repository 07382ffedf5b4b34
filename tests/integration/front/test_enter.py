"""Getting in by a ticket, and from these pages to MLflow's."""

from __future__ import annotations

import datetime
from collections.abc import AsyncIterator
from urllib.parse import urlsplit

import httpx
import pytest
import sqlalchemy as sa
from fastapi import FastAPI

from determined_registry.database.tables import page_tickets
from tests.integration.conftest import client_of
from tests.integration.front.conftest import HOST, Pages
from tests.integration.service_api.world import World

OPENED = {"Sec-Fetch-Site": "none"}
"""What a browser sends when a person opens an address."""
LED = {
    "Sec-Fetch-Site": "cross-site",
    "Sec-Fetch-Mode": "navigate",
    "Sec-Fetch-Dest": "document",
}


@pytest.fixture
async def api(service_app: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    """A program that is logged in as ``determined``."""
    async with client_of(service_app, None) as client:
        client.base_url = httpx.URL("http://127.0.0.1")
        given = {"username": "determined", "password": ""}
        token = (await client.post("/api/v1/auth/login", json=given)).json()["token"]
        client.headers["Authorization"] = f"Bearer {token}"
        yield client


async def ticket(api: httpx.AsyncClient, to: str = "/det/experiments") -> str:
    """The address without a host name."""
    answer = await api.post("/api/v1/pages/tickets", json={"to": to})
    assert answer.status_code == 200, answer.text
    url = urlsplit(answer.json()["url"])
    assert f"{url.scheme}://{url.netloc}" == HOST
    return f"{url.path.removeprefix('/det')}?{url.query}"


async def test_a_person_who_opens_the_address_is_logged_in_once(
    stranger: Pages, api: httpx.AsyncClient
) -> None:
    where = await ticket(api, "/det/experiments?q=x")
    page = await stranger.open(where, headers=OPENED)
    assert page.path == "/det/experiments?q=x"
    page = await stranger.open(where, headers=OPENED)
    assert page.path == "/det/experiments?q=x", "who is logged in sees the page again"
    stranger.client.cookies.clear()
    page = await stranger.open(where, headers=OPENED)
    assert (page.status, "was good once" in page.text) == (401, True)


@pytest.mark.parametrize("headers", [{}, LED])
async def test_who_is_led_there_is_asked_first(
    stranger: Pages, api: httpx.AsyncClient, headers: dict[str, str]
) -> None:
    page = await stranger.open(await ticket(api), headers=headers)
    assert "Log in as determined?" in page.text
    assert not stranger.client.cookies
    form = page.one('form[action="/det/enter"]')
    fields = {str(one["name"]): str(one["value"]) for one in form.select("input")}
    elsewhere = await stranger.client.post(
        "/det/enter", data=fields, headers={"Origin": "http://evil.example"}
    )
    assert elsewhere.status_code == 403
    assert (await stranger.post("/enter", fields)).path == "/det/experiments"


async def test_a_ticket_ends_after_a_minute_and_with_its_session(
    stranger: Pages, api: httpx.AsyncClient, world: World
) -> None:
    old = await ticket(api)
    async with world.db.tx() as conn:
        past = sa.func.now() - datetime.timedelta(seconds=61)
        await conn.execute(sa.update(page_tickets).values(created_at=past))
    assert (await stranger.open(old, headers=OPENED)).status == 401
    of_session = await ticket(api)
    assert (await api.post("/api/v1/auth/logout")).status_code == 200
    assert (await stranger.open(of_session, headers=OPENED)).status == 401
    assert await world.rows(sa.select(page_tickets)) == []


@pytest.mark.parametrize(
    "to", ["https://evil.example/", "//evil", "/api/v1/me", "/det\\x", "/mlflow/"]
)
async def test_a_ticket_leads_to_our_pages_alone(
    stranger: Pages, api: httpx.AsyncClient, to: str
) -> None:
    answer = await api.post("/api/v1/pages/tickets", json={"to": to})
    assert answer.status_code == 400
    where = (await ticket(api)).partition("&to=")[0]
    page = await stranger.open(where, params={"to": to}, headers=OPENED)
    assert page.answer.url.host == "det.localhost"


async def test_only_a_login_gets_tickets(
    api: httpx.AsyncClient, pages: Pages, world: World, service_app: FastAPI
) -> None:
    me = (await api.get("/api/v1/me")).json()["user"]["id"]
    made = await api.post("/api/v1/tokens", json={"userId": me})
    for token in (
        made.json()["token"],
        f"token-of-{(await world.leg()).allocation_id}",
        *pages.client.cookies.values(),
    ):
        async with client_of(service_app, token) as client:
            answer = await client.post("/api/v1/pages/tickets", json={})
            assert answer.status_code in (401, 403), answer.text
            assert "det user login" in answer.text or "log in" in answer.text


async def test_mlflow_takes_the_login_over(pages: Pages, service_app: FastAPI) -> None:
    there = "http://mlflow.localhost"
    transport = httpx.ASGITransport(service_app)
    async with httpx.AsyncClient(transport=transport, headers=LED) as browser:
        browser.cookies.update(pages.client.cookies)
        page = "/mlflow/#/experiments/3"
        answer = await browser.get(f"{HOST}/det/go/mlflow", params={"to": page})
        on_the_way = []
        while answer.has_redirect_location:
            on_the_way.append(urlsplit(answer.headers["location"]).netloc)
            if answer.headers["location"] == page:
                break
            answer = await browser.get(str(answer.next_request.url))  # type: ignore[union-attr]
        assert on_the_way == ["mlflow.localhost", "det.localhost", "mlflow.localhost", ""]
        names = [cookie.name for cookie in browser.cookies.jar if "mlflow" in cookie.domain]
        assert names == ["determined-session"]
        again = await browser.get(f"{there}/mlflow/enter")
        assert again.headers["location"] == "/mlflow/", "it is logged in there already"


async def test_nobody_is_led_to_mlflow_with_anothers_ticket(
    pages: Pages, service_app: FastAPI
) -> None:
    there = "http://mlflow.localhost"
    transport = httpx.ASGITransport(service_app)
    async with (
        httpx.AsyncClient(transport=transport, headers=LED) as evil,
        httpx.AsyncClient(transport=transport, headers=LED) as visitor,
    ):
        evil.cookies.update(pages.client.cookies)
        begins = await evil.get(f"{there}/mlflow/enter")
        made = await evil.get(begins.headers["location"])
        taken = made.headers["location"]
        assert "ticket=" in taken
        await visitor.get(f"{there}/mlflow/enter")
        answer = await visitor.get(taken)
        assert answer.headers["location"] == "/mlflow/"
        assert [one.name for one in visitor.cookies.jar] == []


async def test_prefect_is_a_link(pages: Pages) -> None:
    answer = await pages.client.get("/det/go/prefect", follow_redirects=False)
    assert answer.status_code in (303, 404)
