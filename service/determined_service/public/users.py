"""Users."""

# Parameters are named as in the API.
# ruff: noqa: N803, N815
from __future__ import annotations

from typing import Annotated, Any

import sqlalchemy as sa
from fastapi import APIRouter, Request
from pydantic import BaseModel

from determined.common.wire import limits
from determined_registry.database.tables import users
from determined_service.access.accounts import change_account, create_account, hash_password
from determined_service.access.dependencies import UserReader, may
from determined_service.access.principal import Principal
from determined_service.access.rules import Action, authorise
from determined_service.access.targets import Kind, Target
from determined_service.base.bounds import Id, Name, Password
from determined_service.base.checks import check_text
from determined_service.base.errors import BadRequest, NotFound
from determined_service.views.paging import Limit, Offset, OrderBy, fetch_page, ordered
from determined_service.views.users import LAST_AUTH, get_user, select_users, user_json
from determined_service.web.request import body
from determined_service.web.state import Db

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
    user: UserReader,
    db: Db,
    offset: Offset = 0,
    limit: Limit = 0,
    sortBy: str = "SORT_BY_UNSPECIFIED",
    orderBy: OrderBy = "ORDER_BY_ASC",
    name: str | None = None,
    active: bool | None = None,
    admin: bool | None = None,
) -> dict[str, Any]:
    """Users, filtered by part of their name, by being active, by being an administrator."""
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
async def get_user_by_id(user_id: Id, user: UserReader, db: Db) -> dict[str, Any]:
    """One user."""
    async with db.tx() as conn:
        return {"user": await get_user(conn, user_id)}


@router.get("/{username}/by-username")
async def get_user_by_name(username: str, user: UserReader, db: Db) -> dict[str, Any]:
    """One user, by name."""
    async with db.tx() as conn:
        row = (await conn.execute(select_users().where(users.c.username == username))).first()
    if row is None:
        raise NotFound(f"user {username!r} does not exist")
    return {"user": user_json(row)}


class _Given(BaseModel):
    username: Name | None = None
    displayName: Name | None = None
    admin: bool | None = None
    active: bool | None = None
    remote: bool | None = None


class NewUser(BaseModel):
    """A new user's data. ``password`` as typed, or as clients hash it when ``isHashed``."""

    user: _Given
    password: Password | None = None
    isHashed: bool = False


class UserChange(_Given):
    """Changes of a user. Fields that are left out stay as they are."""

    password: Password | None = None
    isHashed: bool = False


def _columns(given: _Given) -> dict[str, Any]:
    values = {
        "username": given.username,
        "display_name": given.displayName,
        "admin": given.admin,
        "active": given.active,
        "remote": given.remote,
    }
    return {name: value for name, value in values.items() if value is not None}


Creator = Annotated[Principal, may(Action.CREATE, Kind.USER)]
Changer = Annotated[Principal, may(Action.CHANGE, Kind.USER)]


@router.post("")
async def create_user(given: NewUser, user: Creator, db: Db) -> dict[str, Any]:
    """Creates a user. Only administrators may do this."""
    if not given.user.username:
        raise BadRequest("username is missing: a user needs a name")
    values = _columns(given.user) | {
        "password_hash": await hash_password(given.password or "", given.isHashed),
        "active": given.user.active is not False,
    }
    async with db.tx() as conn:
        user_id = await create_account(conn, given.user.username, values)
        return {"user": await get_user(conn, user_id)}


@router.patch("/{user_id}")
async def patch_user(user_id: Id, given: UserChange, user: Changer, db: Db) -> dict[str, Any]:
    """Changes a user. Users may change their own display name and password; administrators may change any
    field of any user.
    """
    return {"user": await _change(user_id, given, user, db)}


@router.post("/{user_id}/password")
async def set_password(user_id: Id, request: Request, user: Changer, db: Db) -> dict[str, Any]:
    """Sets a user's password. The body is the password, a JSON string, as clients hash it."""
    password = await body(request)
    if not isinstance(password, str):
        raise BadRequest("the body must be the password, a JSON string")
    check_text(password, "password", limits.PASSWORD_CHARS)
    change = UserChange(password=password, isHashed=True)
    return {"user": await _change(user_id, change, user, db)}


async def _change(user_id: int, given: UserChange, user: Principal, db: Db) -> dict[str, Any]:
    values = _columns(given)
    rights = sorted(values.keys() - {"display_name"})
    if rights:
        target = Target(Kind.USER, user_id)
        authorise(user, Action.ADMINISTER, target, f"change {', '.join(rights)} of")
    if given.password is not None:
        values["password_hash"] = await hash_password(given.password, given.isHashed)
    async with db.tx() as conn:
        await change_account(conn, user_id, values)
        return await get_user(conn, user_id)
