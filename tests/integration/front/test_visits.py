"""Who gets in, and what no page lets through."""

from __future__ import annotations

import httpx
import pytest
from fastapi import FastAPI

from tests.integration.conftest import client_of
from tests.integration.front.conftest import HOST, Pages
from tests.integration.service_api.world import World

HOSTILE = "<script>alert(1)</script>\u202e\x1b[31m\"'&\u2028"


async def test_a_stranger_logs_in_and_gets_the_page_that_was_asked_for(stranger: Pages) -> None:
    page = await stranger.open("/experiments?q=x")
    assert page.path.startswith("/det/login?to=")
    wrong = await stranger.post("/login", {"username": "determined", "password": "wrong", "to": ""})
    assert (wrong.status, "wrong user name or password" in wrong.text) == (401, True)
    to = page.one("input[name=to]")["value"]
    page = await stranger.post("/login", {"username": "determined", "password": "", "to": str(to)})
    assert page.path == "/det/experiments?q=x"


@pytest.mark.parametrize(
    "to", ["https://evil.example/", "//evil.example", "/det//evil", "/api/v1/me", "/det\\x"]
)
async def test_a_login_leads_nowhere_else(stranger: Pages, to: str) -> None:
    page = await stranger.post("/login", {"username": "determined", "password": "", "to": to})
    assert (page.answer.url.host, page.path) == ("det.localhost", "/det/")


async def test_who_logs_out_is_out(pages: Pages) -> None:
    page = await pages.open("/")
    form = page.one('form[action="/det/logout"]')
    cookies = dict(pages.client.cookies)
    page = await pages.post("/logout", {"csrf": str(form.find("input")["value"])})  # type: ignore[index]
    assert page.path.startswith("/det/login")
    pages.client.cookies.update(cookies)
    assert (await pages.open("/")).path.startswith("/det/login"), "the session has ended too"


async def test_the_cookie_is_no_token_of_the_api(pages: Pages, service_app: FastAPI) -> None:
    token = next(iter(pages.client.cookies.values()))
    async with client_of(service_app, token) as client:
        assert (await client.get("/api/v1/me")).status_code == 401
    async with client_of(service_app, None) as client:
        client.cookies.update(pages.client.cookies)
        assert (await client.get("/api/v1/me")).status_code == 401


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://localhost:1234"},
        {"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "image"},
        {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "iframe"},
    ],
)
async def test_another_page_reads_nothing(pages: Pages, headers: dict[str, str]) -> None:
    answer = await pages.client.get("/det/experiments", headers=headers)
    assert answer.status_code == 403


async def test_a_form_needs_its_own_session(pages: Pages, world: World) -> None:
    experiment = await world.experiment(state="COMPLETED")
    fields = {"id": str(experiment), "to": "/det/experiments"}
    for csrf in ({}, {"csrf": ""}, {"csrf": "0" * 40}):
        answer = await pages.client.post("/det/actions/experiment.archive", data={**fields, **csrf})
        assert answer.status_code == 403, csrf
    elsewhere = {"Origin": "http://evil.example"}
    page = await pages.open(f"/experiments/{experiment}")
    csrf = str(page.soup.select("input[name=csrf]")[0]["value"])
    answer = await pages.client.post(
        "/det/actions/experiment.archive", data={**fields, "csrf": csrf}, headers=elsewhere
    )
    assert answer.status_code == 403
    page = await pages.send(page, "experiment.archive")
    assert f"Experiment {experiment} is archived" in page.said


async def test_texts_of_users_stay_texts(pages: Pages, world: World) -> None:
    experiment = await world.experiment(name=HOSTILE, labels=[HOSTILE], notes=HOSTILE)
    await world.trial(experiment, hparams={HOSTILE: HOSTILE})
    for path in (
        "/",
        "/experiments",
        f"/experiments/{experiment}",
        f"/experiments/{experiment}/trials",
    ):
        page = await pages.open(path)
        assert page.status == 200
        assert "<script>alert" not in page.answer.text, path
        for mark in ("\u202e", "\x1b", "\u2028"):
            assert mark not in page.answer.text, path
        assert "\\u202e" in page.text, path


async def test_every_page_has_the_policy(stranger: Pages, pages: Pages) -> None:
    for visitor, path in ((stranger, "/login"), (pages, "/"), (pages, "/experiments/99")):
        headers = (await visitor.open(path)).answer.headers
        policy = headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self';")
        assert "unsafe" not in policy
        assert headers["cache-control"] == "no-store"
        assert headers["x-frame-options"] == "DENY"


async def test_pages_without_a_host_name_are_at_the_service_itself(
    service_app: FastAPI,
) -> None:
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(service_app), base_url="http://service.example"
    ) as client:
        answer = await client.get("/det/", follow_redirects=True)
        assert (answer.url.host, answer.status_code) == ("service.example", 200)
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(service_app), base_url="http://127.0.0.1:8080"
    ) as client:
        answer = await client.get("/det/experiments?q=x")
        assert answer.headers["location"] == "http://det.localhost:8080/det/experiments?q=x"
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(service_app), base_url=HOST
    ) as client:
        assert (await client.get("/api/v1/master")).status_code == 404, "nothing else is there"
