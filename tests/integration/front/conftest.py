"""A visitor of the service's own pages, without a browser: :class:`Pages`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from bs4 import BeautifulSoup, Tag
from fastapi import FastAPI

from determined_service.base.pages import FRONT_HOME
from tests.integration.service_api.world import World

HOST = "http://det.localhost"


class Page:
    """An answer of the pages."""

    def __init__(self, answer: httpx.Response) -> None:
        self.status = answer.status_code
        self.path = answer.url.raw_path.decode()
        self.answer = answer
        self.soup = BeautifulSoup(answer.text, "html.parser")

    @property
    def text(self) -> str:
        """What a reader reads, with one space between words."""
        return " ".join((self.soup.find("main") or self.soup).get_text(" ").split())

    @property
    def said(self) -> str:
        """The sentence about the last action; empty: there is none."""
        found = self.soup.select_one(".said")
        return "" if found is None else found.get_text()

    def one(self, selector: str) -> Tag:
        """The one element that the CSS selector finds."""
        found = self.soup.select(selector)
        assert len(found) == 1, f"{selector}: {len(found)} elements in {self.text[:2000]}"
        return found[0]

    def has(self, selector: str) -> bool:
        return self.soup.select_one(selector) is not None

    def links(self) -> set[str]:
        return {str(one["href"]) for one in self.soup.select("a[href]")}


class Pages:
    """A browser of one user, without scripts. Redirects are followed, and cookies kept."""

    def __init__(self, app: FastAPI) -> None:
        self.client = httpx.AsyncClient(
            transport=httpx.ASGITransport(app),
            base_url=HOST,
            headers={"Accept": "text/html", "Origin": HOST},
            follow_redirects=True,
        )

    async def open(self, path: str, **given: Any) -> Page:
        """``path``: below ``/det``. Raises AssertionError for a fault of the service."""
        answer = await self.client.get(f"{FRONT_HOME}{path}", **given)
        assert answer.status_code < 500, answer.text
        return Page(answer)

    async def json(self, path: str, **given: Any) -> Any:
        answer = await self.client.get(f"{FRONT_HOME}{path}", **given)
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def post(self, path: str, fields: dict[str, Any]) -> Page:
        """Sends a form as it is."""
        answer = await self.client.post(f"{FRONT_HOME}{path}", data=fields)
        assert answer.status_code < 500, answer.text
        return Page(answer)

    async def send(self, page: Page, action: str, **changed: Any) -> Page:
        """Sends the form of ``page`` whose action ends in ``/actions/ACTION``, with its own fields and
        ``changed``; the form must be there."""
        form = page.one(f'form[action$="/actions/{action}"]')
        fields = {
            str(one["name"]): str(one.get("value", one.get_text()))
            for one in form.select("input[name], textarea[name]")
            if one.get("type") not in ("checkbox", "radio") or one.has_attr("checked")
        }
        return await self.post(f"/actions/{action}", fields | changed)

    async def log_in(self, username: str, password: str = "") -> Page:
        return await self.post("/login", {"username": username, "password": password, "to": ""})


@pytest.fixture
async def world(service_app: FastAPI) -> AsyncIterator[World]:
    """See :class:`World`."""
    found = World(service_app)
    yield found
    await found.close()


@pytest.fixture
async def stranger(service_app: FastAPI) -> AsyncIterator[Pages]:
    """A visitor who is not logged in."""
    found = Pages(service_app)
    async with found.client:
        yield found


@pytest.fixture
async def pages(service_app: FastAPI) -> AsyncIterator[Pages]:
    """A visitor who is logged in as ``determined``."""
    found = Pages(service_app)
    async with found.client:
        page = await found.log_in("determined")
        assert page.path == f"{FRONT_HOME}/", page.text
        yield found


@pytest.fixture
async def admin(service_app: FastAPI) -> AsyncIterator[Pages]:
    """A visitor who is logged in as ``admin``."""
    found = Pages(service_app)
    async with found.client:
        page = await found.log_in("admin")
        assert page.path == f"{FRONT_HOME}/", page.text
        yield found
