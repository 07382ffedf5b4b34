"""Logging in to the pages, and out."""

from __future__ import annotations

import functools
from urllib.parse import parse_qs

from fastapi import Request
from starlette.responses import Response

from determined_service.access.browser import FRONT
from determined_service.access.logins import log_in
from determined_service.access.sessions import close_session, open_pages
from determined_service.base.errors import Forbidden, TooManyRequests, Unauthenticated
from determined_service.base.pages import FRONT_HOME
from determined_service.front.forms import read_form
from determined_service.front.rendering import PageRouter, back, page
from determined_service.front.visits import Elsewhere, Visitor, visitor
from determined_service.public import login as public_login
from determined_service.web.state import Db, SettingsOf, Throttle

router = PageRouter()
_opening = functools.partial(open_pages, label=FRONT.label)


@router.get("/login", include_in_schema=False)
async def login_page(request: Request, to: str = "") -> Response:
    """The form; who is logged in already goes on."""
    if (address := FRONT.elsewhere(request)) is not None:
        raise Elsewhere(address)
    return page("login", request, to=to, refusal="", username="")


@router.post("/login", include_in_schema=False)
async def log_in_here(
    request: Request, db: Db, settings: SettingsOf, throttle: Throttle
) -> Response:
    """A session for these pages alone, whose token becomes a cookie."""
    if (address := FRONT.elsewhere(request)) is not None:
        raise Elsewhere(address)
    given = parse_qs((await request.body()).decode("utf-8", "replace"))
    to = given.get("to", [""])[0]
    login = await public_login.read_form(request)
    try:
        token, _ = await log_in(login, request, db, settings, throttle, _opening)
    except (Unauthenticated, Forbidden, TooManyRequests) as refusal:
        return page(
            "login",
            request,
            status=refusal.status,
            to=to,
            refusal=refusal.message,
            username=login.username,
        )
    answer = back(request, to or f"{FRONT_HOME}/")
    FRONT.keep(answer, request, token)
    return answer


@router.post("/logout", include_in_schema=False)
async def log_out(request: Request, visit: Visitor, db: Db) -> Response:
    """Ends this browser's session; others of the user go on."""
    await read_form(visit)
    token, _ = await visitor(request)
    async with db.tx() as conn:
        await close_session(conn, token)
    request.app.state.auth.forget(token)
    answer = back(request, f"{FRONT_HOME}/login")
    FRONT.forget(answer, request)
    return answer
