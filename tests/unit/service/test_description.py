"""``/openapi.json`` is made once, and not in the event loop's thread."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from determined_service.web.description import describe_aside


async def test_it_is_made_once_beside_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    app = FastAPI(title="Ours")
    made_by: list[int] = []
    original = app.openapi

    def openapi() -> dict[str, Any]:
        made_by.append(threading.get_ident())
        if len(made_by) == 1:
            raise ValueError("once")
        return original()

    monkeypatch.setattr(app, "openapi", openapi)
    describe_aside(app)
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://service") as client:
        assert (await client.get("/openapi.json")).status_code == 500
        answers = await asyncio.gather(*(client.get("/openapi.json") for _ in range(3)))
        page = await client.get("/docs")
    assert [answer.json()["info"]["title"] for answer in answers] == ["Ours"] * 3
    assert {answer.headers["content-type"] for answer in answers} == {"application/json"}
    assert "/openapi.json" in page.text
    assert len(made_by) == 2
    assert threading.get_ident() not in made_by
