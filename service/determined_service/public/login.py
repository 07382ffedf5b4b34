"""Logging in and out."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated, Any
from urllib.parse import parse_qs

import sqlalchemy as sa
from fastapi import Request
from pydantic import BaseModel, ValidationError
from sqlalchemy.ext.asyncio import AsyncConnection
from starlette.responses import Response

from determined_registry.database.tables import users
from determined_service.access.accounts import renew_hash
from determined_service.access.dependencies import UserReader, may
from determined_service.access.principal import Principal
from determined_service.access.rules import Action
from determined_service.access.sessions import close_session, open_session
from determined_service.access.targets import Kind
from determined_service.access.throttle import LoginThrottle
from determined_service.access.tokens import bearer_token
from determined_service.base import passwords
from determined_service.base.addresses import client_address, is_from_here
from determined_service.base.bounds import Name, Password
from determined_service.base.db import Database
from determined_service.base.errors import BadRequest, Forbidden, Unauthenticated
from determined_service.base.json import JsonResponse
from determined_service.base.settings import Settings
from determined_service.views.users import get_user, user_json
from determined_service.web.router import Router
from determined_service.web.state import Db, SettingsOf, Throttle

router = Router("Authentication", "/api/v1")


class Login(BaseModel):
    """``isHashed``: the password is already what :func:`determined_service.base.passwords.as_sent` makes."""

    username: Name
    password: Password = ""
    isHashed: bool = False  # noqa: N815 - the name in the API


async def read_form(request: Request) -> Login:
    """What the form of a page that asks for user and password sends. Raises BadRequest."""
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

    Who sends wrong passwords gets 429 after some, with the seconds to wait in words and in `Retry-After`.
    """
    token, row = await log_in(given, request, db, settings, throttle)
    return JsonResponse({"token": token, "user": user_json(row)})


async def log_in(
    given: Login,
    request: Request,
    db: Database,
    settings: Settings,
    throttle: LoginThrottle,
    opening: Callable[[AsyncConnection, int, int], Awaitable[str]] = open_session,
) -> tuple[str, sa.Row[Any]]:
    """The token of the session that ``opening`` makes, and the user.

    Raises Unauthenticated, Forbidden, TooManyRequests.
    """
    sent = given.password if given.isHashed else passwords.as_sent(given.password)
    with throttle.attempt(given.username, client_address(request)) as attempt:
        async with db.tx() as conn:
            row = (
                await conn.execute(sa.select(users).where(users.c.username == given.username))
            ).first()
        kept = row.password_hash if row is not None else None
        if not await passwords.in_thread(passwords.matches, sent, kept) or row is None:
            raise Unauthenticated("wrong user name or password")
        attempt.succeeded()
    if not row.active:
        raise Forbidden(
            f"user is not active: {given.username} was deactivated, and an administrator can activate it "
            f"again"
        )
    if passwords.is_blank(sent) and settings.is_reachable and not is_from_here(request):
        raise Forbidden(
            f"user {given.username} has a blank password, with which only the service's own machine logs in, "
            f"because other machines reach the service: set one there, or ask an administrator"
        )
    await renew_hash(db, row.id, row.password_hash, sent)
    async with db.tx() as conn:
        token = await opening(conn, row.id, settings.cluster.quotas.sessions)
    return token, row


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
