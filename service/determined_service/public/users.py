"""Users."""

# Parameters are named as in the API.
# ruff: noqa: N803, N815
from __future__ import annotations

import secrets
from typing import Annotated, Any, Self

import sqlalchemy as sa
from fastapi import Depends, Request
from pydantic import BaseModel, Field, ValidationError, model_validator

from determined.common.wire import limits
from determined_registry.database.tables import users
from determined_service.access.accounts import (
    Proof,
    change_account,
    create_account,
    hash_password,
    require_proof,
)
from determined_service.access.dependencies import Admission, UserReader, may, may_named
from determined_service.access.display_names import require_own_name
from determined_service.access.principal import USER, Principal
from determined_service.access.rules import Action, authorise
from determined_service.access.targets import Kind, Target
from determined_service.access.tokens import bearer_token
from determined_service.base import passwords
from determined_service.base.addresses import client_address
from determined_service.base.bounds import Id, ManyIds, Name, Password
from determined_service.base.checks import check_text
from determined_service.base.errors import BadRequest, NotFound
from determined_service.lifecycle import owners
from determined_service.state.change import changing
from determined_service.views.paging import Limit, Offset, OrderBy, fetch_page, ordered
from determined_service.views.users import LAST_AUTH, get_user, select_users, user_json
from determined_service.web.request import body, json_example
from determined_service.web.router import Router
from determined_service.web.state import Db, SettingsOf, Throttle

router = Router("Users", "/api/v1/users")

# The largest id of an account in Linux; 2**32 - 1 means none.
_MAX_ID = 2**32 - 2
_ACCOUNT = r"^[A-Za-z0-9_][A-Za-z0-9_.@\\-]{0,63}\$?$"

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


class AgentUserGroup(BaseModel):
    """The account on agents that a user is linked with: all four fields, or none to unlink."""

    agentUid: int | None = Field(default=None, ge=0, le=_MAX_ID)
    agentGid: int | None = Field(default=None, ge=0, le=_MAX_ID)
    agentUser: str | None = Field(default=None, pattern=_ACCOUNT)
    agentGroup: str | None = Field(default=None, pattern=_ACCOUNT)

    @model_validator(mode="after")
    def _all_or_none(self) -> Self:
        missing = [name for name, value in self if value is None]
        if missing and len(missing) < 4:
            raise ValueError(
                f"{', '.join(missing)} missing: give all four fields, or omit all four to unlink the user"
            )
        return self

    def column(self) -> dict[str, Any] | None:
        """The value to store; None: linked with no account."""
        return self.model_dump() if self.agentUid is not None else None


class _Given(BaseModel):
    username: Name | None = None
    displayName: Name | None = None
    admin: bool | None = None
    active: bool | None = None
    remote: bool | None = None
    agentUserGroup: AgentUserGroup | None = None


class NewUser(BaseModel):
    """A new user's data. ``password`` as typed, or as clients hash it when ``isHashed``."""

    user: _Given
    password: Password | None = None
    isHashed: bool = False


class UserChange(_Given):
    """Changes of a user. Fields that are left out stay as they are. ``currentPassword``: the old one, of a
    user who changes its own password."""

    password: Password | None = None
    currentPassword: Password | None = None
    isHashed: bool = False


class NewPassword(BaseModel):
    """A password, and the old one of a user who changes its own. Both as typed, or as clients hash them when
    ``isHashed``."""

    password: Password
    currentPassword: Password | None = None
    isHashed: bool = False


def _columns(given: _Given) -> dict[str, Any]:
    values: dict[str, Any] = {
        "username": given.username,
        "display_name": given.displayName,
        "admin": given.admin,
        "active": given.active,
        "remote": given.remote,
    }
    found = {name: value for name, value in values.items() if value is not None}
    if given.agentUserGroup is not None:
        found["agent_user_group"] = given.agentUserGroup.column()
    return found


class Activation(BaseModel):
    """Users to activate or deactivate: those of ``userIds``."""

    userIds: ManyIds
    activate: bool


Creator = Annotated[Principal, may(Action.CREATE, Kind.USER)]
Activator = Annotated[Admission, may_named(Action.ADMINISTER, Kind.USER, "activate or deactivate")]
Changer = Annotated[Principal, may(Action.CHANGE, Kind.USER)]


@router.post("")
async def create_user(
    given: NewUser, user: Creator, db: Db, settings: SettingsOf
) -> dict[str, Any]:
    """Creates a user. Only administrators may do this. Where other machines reach the service, a password is
    needed. A `remote` user has none: it never logs in by a password."""
    if given.user.remote:
        if given.password:
            raise BadRequest("password: a remote user has none; leave it out, or leave remote out")
        given = given.model_copy(update={"password": secrets.token_urlsafe(32), "isHashed": True})
    if not given.user.username:
        raise BadRequest("username is missing: a user needs a name")
    values = _columns(given.user) | {
        "password_hash": await hash_password(given.password or "", given.isHashed, settings),
        "active": given.user.active is not False,
    }
    async with db.tx() as conn:
        user_id = await create_account(conn, given.user.username, values)
        return {"user": await get_user(conn, user_id)}


class Changes:
    """Carries out a change of a user in the sender's name."""

    def __init__(
        self, request: Request, user: Changer, db: Db, settings: SettingsOf, throttle: Throttle
    ) -> None:
        self._request, self._user, self._db = request, user, db
        self._settings, self._throttle = settings, throttle

    async def __call__(self, user_id: int, given: UserChange) -> dict[str, Any]:
        values = _columns(given)
        rights = sorted(values.keys() - {"display_name"})
        if rights:
            target = Target(Kind.USER, user_id)
            authorise(self._user, Action.ADMINISTER, target, f"change {', '.join(rights)} of")
        token = None
        if given.password is not None:
            if self._user.kind == USER and self._user.user_id == user_id:
                token = bearer_token(self._request.headers)
                await self._prove(user_id, token, given)
            values["password_hash"] = await hash_password(
                given.password, given.isHashed, self._settings
            )
        async with changing(self._db) as change:
            conn = change.conn
            if given.displayName is not None and not self._user.admin:
                await require_own_name(conn, user_id, given.displayName)
            await change_account(conn, user_id, values, token)
            answer: dict[str, Any] = {"user": await get_user(conn, user_id)}
            if given.active is False:
                answer["stillRunning"] = await owners.leave(change, user_id)
            return answer

    async def _prove(self, user_id: int, token: str, given: UserChange) -> None:
        old = given.currentPassword
        if old is not None and not given.isHashed:
            old = passwords.as_sent(old)
        proof = Proof(token, old, client_address(self._request))
        await require_proof(self._db, self._throttle, user_id, proof)


Change = Annotated[Changes, Depends()]


@router.patch("")
async def activate_users(given: Activation, admission: Activator, db: Db) -> dict[str, Any]:
    """Activates or deactivates many users; of each that it cannot, `error` says why. Only administrators may
    do this."""
    await admission.admit()
    results = []
    for user_id in dict.fromkeys(given.userIds):
        error = ""
        try:
            async with changing(db) as change:
                await change_account(change.conn, user_id, {"active": given.activate})
                if not given.activate:
                    await owners.leave(change, user_id)
        except NotFound as refusal:
            error = refusal.message
        results.append({"id": user_id, "error": error})
    return {"results": results}


@router.patch("/{user_id}")
async def patch_user(user_id: Id, given: UserChange, change: Change) -> dict[str, Any]:
    """Changes a user. Users may change their own display name and password; administrators may change any
    field of any user.

    A user who changes its own password sends the old one as `currentPassword`, or has logged in within the
    last ten minutes. The user's other sessions end.

    A user who is deactivated has no sessions any more; its shells and notebooks end at once. `stillRunning`
    has the ids of the user's `experiments` and `tasks` that go on.
    """
    return await change(user_id, given)


@router.post(
    "/{user_id}/password",
    openapi_extra=json_example({"password": "…", "currentPassword": "…", "isHashed": True}),
)
async def set_password(user_id: Id, request: Request, change: Change) -> dict[str, Any]:
    """Sets a user's password. The body is the password, a JSON string, as Determined's clients hash and send
    it; or an object with `password`, `currentPassword` and `isHashed`. Of the old password, see the route
    before."""
    given = await body(request)
    if isinstance(given, str):
        check_text(given, "password", limits.PASSWORD_CHARS)
        return await change(user_id, UserChange(password=given, isHashed=True))
    try:
        read = NewPassword.model_validate(given)
    except ValidationError as error:
        raise BadRequest(
            "the body must be the password, a JSON string, or {password, currentPassword, isHashed}"
        ) from error
    return await change(user_id, UserChange(**read.model_dump()))
