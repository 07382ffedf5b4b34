"""``/openapi.json``, made when it is first asked for, beside the event loop."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from fastapi import FastAPI, Request, Response


def describe_aside(app: FastAPI) -> None:
    """Takes the place of FastAPI's own route.

    That makes the description in the event loop, from every model of every route: 0.1 to 0.3 s in which the
    service answers nobody. It also writes it as JSON at each question.
    """
    writing: asyncio.Task[bytes] | None = None

    async def description(request: Request) -> Response:
        nonlocal writing
        if writing is None or (writing.done() and writing.exception() is not None):
            writing = asyncio.create_task(asyncio.to_thread(_written, app))
        # Who stops waiting does not stop it: others wait, too.
        return Response(await asyncio.shield(writing), media_type="application/json")

    routes = app.router.routes
    routes[:] = [route for route in routes if getattr(route, "path", None) != app.openapi_url]
    assert app.openapi_url is not None
    app.add_route(app.openapi_url, description, include_in_schema=False)


def _written(app: FastAPI) -> bytes:
    schema: dict[str, Any] = app.openapi()
    # In pieces: the C encoder would write the whole at once and block the event loop.
    return "".join(json.JSONEncoder(ensure_ascii=False).iterencode(schema)).encode()
