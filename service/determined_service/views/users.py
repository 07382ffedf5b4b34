"""Users: the JSON (``v1User``)."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from determined_registry.database.tables import user_sessions, users
from determined_service.base.errors import NotFound
from determined_service.views.values import moment

LAST_AUTH = (
    sa.select(sa.func.max(user_sessions.c.created_at))
    .where(user_sessions.c.user_id == users.c.id, ~user_sessions.c.is_access_token)
    .scalar_subquery()
)


def select_users() -> sa.Select[Any]:
    """Every column that :func:`user_json` reads."""
    return sa.select(users, LAST_AUTH.label("last_auth"))


def user_json(row: sa.Row[Any]) -> dict[str, Any]:
    """``v1User``; never the password."""
    last_auth = row._mapping.get("last_auth")
    return {
        "id": row.id,
        "username": row.username,
        "displayName": row.display_name or "",
        "admin": row.admin,
        "active": row.active,
        "remote": row.remote,
        "agentUserGroup": row.agent_user_group,
        "modifiedAt": moment(row.modified_at),
        "lastAuthAt": moment(last_auth),
    }


async def get_user(conn: AsyncConnection, user_id: int) -> dict[str, Any]:
    """One user's JSON; raises NotFound."""
    row = (await conn.execute(select_users().where(users.c.id == user_id))).first()
    if row is None:
        raise NotFound(f"user {user_id} does not exist")
    return user_json(row)
