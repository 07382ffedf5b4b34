"""Logging in and out."""

from __future__ import annotations

import asyncio
import datetime
from typing import Any

import sqlalchemy as sa
from fastapi import APIRouter, Request
from pydantic import BaseModel
from starlette.responses import Response

from determined_registry.tables import user_sessions, users
from determined_service import passwords
from determined_service.api.state import Db
from determined_service.auth import CurrentUser, bearer_token, new_token, token_hash
from determined_service.errors import Forbidden, Unauthenticated
from determined_service.json import JsonResponse
from determined_service.views.users import get_user, user_json

router = APIRouter(prefix="/api/v1", tags=["Authentication"])

SESSION_LIFE = datetime.timedelta(days=7)


class Login(BaseModel):
    """``isHashed``: the password is already what :func:`determined_service.passwords.as_sent` makes."""

    username: str
    password: str = ""
    isHashed: bool = False  # noqa: N815 - the name in the API


@router.post("/auth/login")
async def login(given: Login, db: Db) -> Response:
    """A session token, good for 7 days."""
    async with db.tx() as conn:
        row = (
            await conn.execute(sa.select(users).where(users.c.username == given.username))
        ).first()
    sent = given.password if given.isHashed else passwords.as_sent(given.password)
    kept = row.password_hash if row is not None else None
    # In a thread: a deliberately slow function must not hold up everybody else.
    if not await asyncio.to_thread(passwords.matches, sent, kept) or row is None:
        raise Unauthenticated("wrong user name or password")
    if not row.active:
        raise Forbidden(f"user {given.username} is deactivated")
    token = new_token()
    async with db.tx() as conn:
        await conn.execute(
            sa.delete(user_sessions).where(user_sessions.c.expires_at < sa.func.now())
        )
        await conn.execute(
            sa.insert(user_sessions).values(
                user_id=row.id,
                token_hash=token_hash(token),
                expires_at=sa.func.now() + SESSION_LIFE,
            )
        )
    return JsonResponse({"token": token, "user": user_json(row)})


@router.post("/auth/logout")
async def logout(request: Request, user: CurrentUser, db: Db) -> dict[str, Any]:
    """Ends the session whose token is sent; other sessions of the user go on."""
    token = bearer_token(request)
    async with db.tx() as conn:
        await conn.execute(
            sa.delete(user_sessions).where(user_sessions.c.token_hash == token_hash(token))
        )
    request.app.state.auth.forget(token)
    return {}


@router.get("/auth/user")
@router.get("/me")
async def me(user: CurrentUser, db: Db) -> dict[str, Any]:
    """Who is asking."""
    async with db.tx() as conn:
        return {"user": await get_user(conn, user.user_id)}
