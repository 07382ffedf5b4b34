"""Users."""

# Parameters are named as in the API.
# ruff: noqa: N803, N815
from __future__ import annotations

import asyncio
from typing import Any

import sqlalchemy as sa
from fastapi import APIRouter, Request
from pydantic import BaseModel
from sqlalchemy.ext.asyncio import AsyncConnection

from determined_registry.tables import users
from determined_service import passwords
from determined_service.api.state import Db
from determined_service.auth import CurrentUser, Principal
from determined_service.errors import BadRequest, Conflict, Forbidden, NotFound
from determined_service.request import body
from determined_service.views.paging import Limit, Offset, OrderBy, fetch_page, ordered
from determined_service.views.users import LAST_AUTH, get_user, select_users, user_json

router = APIRouter(prefix="/api/v1/users", tags=["Users"])

_SORT_KEYS: dict[str, sa.ColumnElement[Any]] = {
    "UNSPECIFIED": users.c.id,
    "DISPLAY_NAME": users.c.display_name,
    "USER_NAME": users.c.username,
    "NAME": sa.func.coalesce(users.c.display_name, users.c.username),
    "ADMIN": users.c.admin,
    "ACTIVE": users.c.active,
    "REMOTE": users.c.remote,
    "MODIFIED_TIME": users.c.modified_at,
    "LAST_AUTH_TIME": LAST_AUTH,
}


@router.get("")
async def list_users(
    user: CurrentUser,
    db: Db,
    offset: Offset = 0,
    limit: Limit = 0,
    sortBy: str = "SORT_BY_UNSPECIFIED",
    orderBy: OrderBy = "ORDER_BY_ASC",
    name: str | None = None,
    active: bool | None = None,
    admin: bool | None = None,
) -> dict[str, Any]:
    """Users by part of their name, by being active, by being an administrator."""
    statement = select_users().order_by(*ordered(_SORT_KEYS, sortBy, orderBy, users.c.id))
    if name:
        statement = statement.where(
            users.c.username.icontains(name, autoescape=True)
            | users.c.display_name.icontains(name, autoescape=True)
        )
    if active is not None:
        statement = statement.where(users.c.active == active)
    if admin is not None:
        statement = statement.where(users.c.admin == admin)
    async with db.tx() as conn:
        rows, pages = await fetch_page(conn, statement, offset, limit)
    return {"users": [user_json(row) for row in rows], "pagination": pages}


@router.get("/{user_id}")
async def get_user_by_id(user_id: int, user: CurrentUser, db: Db) -> dict[str, Any]:
    """One user."""
    async with db.tx() as conn:
        return {"user": await get_user(conn, user_id)}


@router.get("/{username}/by-username")
async def get_user_by_name(username: str, user: CurrentUser, db: Db) -> dict[str, Any]:
    """One user, by name."""
    async with db.tx() as conn:
        row = (await conn.execute(select_users().where(users.c.username == username))).first()
    if row is None:
        raise NotFound(f"user {username!r} does not exist")
    return {"user": user_json(row)}


class _Given(BaseModel):
    username: str | None = None
    displayName: str | None = None
    admin: bool | None = None
    active: bool | None = None
    remote: bool | None = None


class NewUser(BaseModel):
    """``password`` as typed, or as clients hash it when ``isHashed``."""

    user: _Given
    password: str | None = None
    isHashed: bool = False


class UserChange(_Given):
    """What is left out stays as it is."""

    password: str | None = None
    isHashed: bool = False


async def _hash(password: str, is_hashed: bool) -> str:
    sent = password if is_hashed else passwords.as_sent(password)
    return await asyncio.to_thread(passwords.store, sent)


def _columns(given: _Given) -> dict[str, Any]:
    values = {
        "username": given.username,
        "display_name": given.displayName,
        "admin": given.admin,
        "active": given.active,
        "remote": given.remote,
    }
    return {name: value for name, value in values.items() if value is not None}


@router.post("")
async def create_user(given: NewUser, user: CurrentUser, db: Db) -> dict[str, Any]:
    """Administrators only."""
    user.require_admin()
    if not given.user.username:
        raise BadRequest("a user needs a username")
    values = _columns(given.user) | {
        "password_hash": await _hash(given.password or "", given.isHashed),
        "active": given.user.active is not False,
    }
    async with db.tx() as conn:
        await _require_free(conn, given.user.username)
        user_id = (
            await conn.execute(sa.insert(users).values(values).returning(users.c.id))
        ).scalar_one()
        return {"user": await get_user(conn, user_id)}


async def _require_free(conn: AsyncConnection, username: str) -> None:
    found = await conn.execute(sa.select(users.c.id).where(users.c.username == username))
    if found.first() is not None:
        raise Conflict(f"there is a user {username!r} already")


@router.patch("/{user_id}")
async def patch_user(user_id: int, given: UserChange, user: CurrentUser, db: Db) -> dict[str, Any]:
    """Oneself: display name and password. Administrators: anybody, and everything."""
    return {"user": await _change(user_id, given, user, db)}


@router.post("/{user_id}/password")
async def set_password(user_id: int, request: Request, user: CurrentUser, db: Db) -> dict[str, Any]:
    """The body is the password, a JSON string, as clients hash it."""
    password = await body(request)
    if not isinstance(password, str):
        raise BadRequest("the body must be the password, a JSON string")
    change = UserChange(password=password, isHashed=True)
    return {"user": await _change(user_id, change, user, db)}


async def _change(user_id: int, given: UserChange, user: Principal, db: Db) -> dict[str, Any]:
    values = _columns(given)
    if not user.admin:
        if user.user_id != user_id or values.keys() - {"display_name"}:
            raise Forbidden("only an administrator may change this")
        if user.allocation is not None:
            raise Forbidden("a training process may not change its owner")
    if given.password is not None:
        values["password_hash"] = await _hash(given.password, given.isHashed)
    async with db.tx() as conn:
        before = await get_user(conn, user_id)
        if given.username and given.username != before["username"]:
            await _require_free(conn, given.username)
        await conn.execute(
            sa.update(users)
            .where(users.c.id == user_id)
            .values(**values, modified_at=sa.func.now())
        )
        return await get_user(conn, user_id)
