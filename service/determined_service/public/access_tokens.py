"""Access tokens: docs/operate/users.md."""

# Parameters and fields are named as in the API.
# ruff: noqa: N803, N815
from __future__ import annotations

from typing import Annotated, Any

import sqlalchemy as sa
from fastapi import Query
from pydantic import BaseModel, Field

from determined.common.cluster_config import Security
from determined_registry.database.tables import user_sessions, users, workspaces
from determined_service.access import access_tokens
from determined_service.access.dependencies import may
from determined_service.access.principal import Principal
from determined_service.access.rules import Action, authorise
from determined_service.access.targets import Kind, Target
from determined_service.base.bounds import Id, ManyIds, Name, Text
from determined_service.base.errors import BadRequest, Forbidden, NotFound
from determined_service.base.settings import Settings
from determined_service.state.change import changing
from determined_service.views.paging import Limit, Offset, OrderBy, fetch_page, ordered
from determined_service.views.values import moment
from determined_service.views.workspaces import get_workspace
from determined_service.web.router import Router
from determined_service.web.state import Db, SettingsOf

router = Router("Access tokens", "/api/v1/tokens")
Reader = Annotated[Principal, may(Action.READ, Kind.ACCESS_TOKEN)]
Creator = Annotated[Principal, may(Action.CREATE, Kind.ACCESS_TOKEN)]
Changer = Annotated[Principal, may(Action.CHANGE, Kind.ACCESS_TOKEN)]
_s = user_sessions.c
_SELECT = (
    sa.select(
        _s.id,
        _s.user_id,
        _s.created_at,
        _s.expires_at,
        _s.description,
        _s.revoked_at,
        _s.read_only,
        _s.seen_at,
        _s.workspace_id,
        users.c.username,
        workspaces.c.name.label("workspace_name"),
    )
    .join(users, users.c.id == _s.user_id)
    .outerjoin(workspaces, workspaces.c.id == _s.workspace_id)
    .where(_s.is_access_token)
)
_SORT_KEYS: dict[str, sa.ColumnElement[Any]] = {
    "UNSPECIFIED": _s.id,
    "USER_ID": _s.user_id,
    "EXPIRY": _s.expires_at,
    "CREATED_AT": _s.created_at,
    "TOKEN_TYPE": _s.id,
    "REVOKED": _s.revoked_at.is_not(None),
    "DESCRIPTION": _s.description,
}


def _json(row: sa.Row[Any]) -> dict[str, Any]:
    """``v1TokenInfo``, and ours: ``username``, ``readOnly``, ``lastUsedAt`` (to the hour), ``workspaceId``,
    ``workspaceName``."""
    return {
        "id": row.id,
        "userId": row.user_id,
        "username": row.username,
        "createdAt": moment(row.created_at),
        "expiry": moment(row.expires_at),
        "revoked": row.revoked_at is not None,
        "tokenType": "TOKEN_TYPE_ACCESS_TOKEN",
        "description": row.description,
        "readOnly": row.read_only,
        "workspaceId": row.workspace_id,
        "workspaceName": row.workspace_name,
        "lastUsedAt": moment(row.seen_at) if row.seen_at > row.created_at else None,
    }


@router.get("")
async def list_tokens(
    user: Reader,
    db: Db,
    tokenIds: Annotated[ManyIds, Query(default_factory=list)],
    username: Name = "",
    showInactive: bool = False,
    sortBy: str = "SORT_BY_UNSPECIFIED",
    orderBy: OrderBy = "ORDER_BY_ASC",
    offset: Offset = 0,
    limit: Limit = 0,
) -> dict[str, Any]:
    """Your access tokens; an administrator gets those of all users, or of `username`.

    Those that have expired or were revoked are shown for 30 days, with `showInactive` or by `tokenIds`.
    """
    statement = _SELECT.order_by(*ordered(_SORT_KEYS, sortBy, orderBy, _s.id))
    if tokenIds:
        statement = statement.where(_s.id.in_(tokenIds))
    elif not showInactive:
        statement = statement.where(access_tokens.IS_GOOD)
    if not user.admin:
        statement = statement.where(_s.user_id == user.user_id)
    if user.workspace_id is not None:
        statement = statement.where(_s.workspace_id == user.workspace_id)
    async with db.tx() as conn:
        if username:
            asked = sa.select(users.c.id).where(users.c.username == username)
            owner = (await conn.execute(asked)).scalar_one_or_none()
            if owner is None:
                raise NotFound(f"user {username!r} does not exist")
            if owner != user.user_id and not user.admin:
                raise Forbidden(
                    f"only {username} or an administrator may list the tokens of {username}"
                )
            statement = statement.where(_s.user_id == owner)
        rows, pages = await fetch_page(conn, statement, offset, limit)
    return {"tokenInfo": [_json(row) for row in rows], "pagination": pages}


class NewToken(BaseModel):
    """``v1PostAccessTokenRequest``, and ours: ``readOnly``, ``workspaceId``."""

    userId: Id = Field(description="The user whose token it is.")
    lifespan: Name | None = Field(
        default=None,
        description="How long it is good: a duration such as `720h`, or `-1` for ever. Default: "
        "`security.token.default_lifespan_days` of the cluster configuration, which also limits it.",
    )
    description: Text | None = None
    readOnly: bool = Field(default=False, description="Nothing can be changed by the token.")
    workspaceId: Id | None = Field(
        default=None,
        description="The token, which must be `readOnly`, shows this workspace alone. The cluster must have "
        "roles.",
    )


@router.post("")
async def create_token(
    given: NewToken, user: Creator, db: Db, settings: SettingsOf
) -> dict[str, Any]:
    """Makes an access token, and shows it, this once. Administrators make tokens for other users, too.

    A user has `quotas.access_tokens` of them. Who sends an access token makes no other one: it would be good
    for longer.
    """
    if user.by_access_token:
        raise Forbidden(
            f"this is an access token, and makes no other one: log in as {user.username} (det user login)"
        )
    if given.userId != user.user_id:
        other = Target(Kind.USER, given.userId)
        authorise(user, Action.ADMINISTER, other, "make access tokens of")
    allowed = (settings.cluster.security or Security()).token
    life = access_tokens.expiry(given.lifespan, allowed)
    workspace_id = given.workspaceId or None
    if workspace_id is not None:
        _require_limits(given, settings)
    wanted = access_tokens.TokenRequest(
        given.userId, life, given.description or "", given.readOnly, workspace_id
    )
    async with changing(db) as change:
        if workspace_id is not None:
            await get_workspace(change.conn, workspace_id, user)
        known = sa.select(users.c.id).where(users.c.id == given.userId)
        if await change.conn.scalar(known) is None:
            raise NotFound(f"user {given.userId} does not exist")
        token_id, token = await access_tokens.create(
            change.conn, wanted, settings.cluster.quotas.access_tokens
        )
    return {"token": token, "tokenId": token_id}


def _require_limits(given: NewToken, settings: Settings) -> None:
    """Raises BadRequest where a token could not be kept within a workspace."""
    if not settings.cluster.has_roles:
        raise BadRequest(
            "workspaceId: this cluster has no roles, so that every token shows all workspaces: ask an "
            "administrator for security.authz.type: rbac, or leave the workspace out"
        )
    if not given.readOnly:
        # What it launched would ask with all its user's rights.
        raise BadRequest(
            "readOnly: a token of one workspace is for reading alone: send readOnly: true, or leave the "
            "workspace out"
        )


class TokenChange(BaseModel):
    """``v1PatchAccessTokenRequest``; its ``tokenId`` is the address's."""

    description: Text | None = None
    setRevoked: bool = False


@router.patch("/{token_id}")
async def change_token(token_id: Id, given: TokenChange, user: Changer, db: Db) -> dict[str, Any]:
    """Describes the token anew; `setRevoked` ends it at once and for good."""
    async with changing(db) as change:
        await access_tokens.change(
            change.conn, token_id, given.description, revoke=given.setRevoked
        )
        row = (await change.conn.execute(_SELECT.where(_s.id == token_id))).one()
        return {"tokenInfo": _json(row)}
