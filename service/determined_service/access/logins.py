"""Logging in by a user's name and password."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import sqlalchemy as sa
from fastapi import Request
from pydantic import BaseModel
from sqlalchemy.ext.asyncio import AsyncConnection

from determined_registry.database.tables import users
from determined_service.access.accounts import renew_hash
from determined_service.access.sessions import open_session
from determined_service.access.throttle import LoginThrottle
from determined_service.base import passwords
from determined_service.base.addresses import client_address, is_from_here
from determined_service.base.bounds import Name, Password
from determined_service.base.db import Database
from determined_service.base.errors import Forbidden, Unauthenticated
from determined_service.base.settings import Settings


class Login(BaseModel):
    """``isHashed``: the password is already what :func:`determined_service.base.passwords.as_sent` makes."""

    username: Name
    password: Password = ""
    isHashed: bool = False  # noqa: N815 - the name in the API


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
    if row.remote:
        raise Forbidden(
            f"user {given.username} is remote, and this cluster knows no other login than by a password: an "
            f"administrator gives it an access token, or makes it local again (det user edit "
            f"{given.username} --remote false)"
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
