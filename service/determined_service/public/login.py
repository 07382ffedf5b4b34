"""Logging in and out."""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import parse_qs

from fastapi import Request
from pydantic import ValidationError
from starlette.responses import Response

from determined_service.access.browser import is_of_ours
from determined_service.access.dependencies import UserReader, may
from determined_service.access.logins import Login, log_in
from determined_service.access.principal import Principal
from determined_service.access.rules import Action
from determined_service.access.sessions import close_session
from determined_service.access.targets import Kind
from determined_service.access.tokens import bearer_token
from determined_service.base.errors import BadRequest, Forbidden
from determined_service.base.json import JsonResponse
from determined_service.views.users import get_user, user_json
from determined_service.web.router import Router
from determined_service.web.state import Db, SettingsOf, Throttle

router = Router("Authentication", "/api/v1")


async def read_form(request: Request) -> Login:
    """The fields of a login page's form.

    Raises Forbidden where another page sends it: that page could log its visitor in as somebody else, who
    would own what the visitor then does. Raises BadRequest.
    """
    if not is_of_ours(request):
        raise Forbidden(
            "another page sent this form, or the browser does not say which one did: open the login page by "
            "its own address, and log in there"
        )
    given = parse_qs((await request.body()).decode("utf-8", "replace"), keep_blank_values=True)
    try:
        return Login(
            username=given.get("username", [""])[0], password=given.get("password", [""])[0]
        )
    except ValidationError as error:
        raise BadRequest("username and password are texts") from error


@router.post("/auth/login")
async def login(
    given: Login, request: Request, db: Db, settings: SettingsOf, throttle: Throttle
) -> Response:
    """A session token, good for 7 days; one too many (`quotas.sessions`) ends another that nobody uses.

    After some wrong passwords the answer is 429, with the seconds to wait in words and in `Retry-After`.
    """
    token, row = await log_in(given, request, db, settings, throttle)
    return JsonResponse({"token": token, "user": user_json(row)})


@router.post("/auth/logout")
async def logout(
    request: Request, user: Annotated[Principal, may(Action.DELETE, Kind.SESSION)], db: Db
) -> dict[str, Any]:
    """Ends the session whose token is sent; other sessions of the user go on."""
    token = bearer_token(request.headers)
    async with db.tx() as conn:
        await close_session(conn, token)
    request.app.state.auth.forget(token)
    return {}


@router.get("/auth/user")
@router.get("/me")
async def me(user: UserReader, db: Db) -> dict[str, Any]:
    """The user that the token belongs to."""
    async with db.tx() as conn:
        return {"user": await get_user(conn, user.user_id)}
