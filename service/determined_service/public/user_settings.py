"""What programs keep for a user, such as the choices of a page."""

# Parameters are named as in the API.
# ruff: noqa: N815
from __future__ import annotations

from typing import Annotated, Any

import sqlalchemy as sa
from pydantic import BaseModel, Field

from determined.common.wire import limits
from determined_registry.database.tables import user_settings
from determined_service.access import accounts
from determined_service.access.dependencies import UserReader, may
from determined_service.access.principal import Principal
from determined_service.access.rules import Action
from determined_service.access.targets import Kind
from determined_service.base.bounds import Name, Text
from determined_service.web.router import Router
from determined_service.web.state import Db

router = Router("Users", "/api/v1/users/setting")

_s = user_settings.c
Changer = Annotated[Principal, may(Action.CHANGE, Kind.SETTING)]


class Setting(BaseModel):
    """``storagePath``: the part of a program that it belongs to; there a key is unique."""

    key: Annotated[Name, Field(min_length=1)]
    storagePath: Name = ""
    value: Text = ""


class Given(BaseModel):
    """Settings to store; others stay as they are."""

    settings: Annotated[list[Setting], Field(max_length=limits.USER_SETTINGS)]


@router.get("")
async def read_settings(user: UserReader, db: Db) -> dict[str, Any]:
    """The sender's settings."""
    statement = sa.select(_s.key, _s.storage_path, _s.value).where(_s.user_id == user.user_id)
    async with db.tx() as conn:
        rows = await conn.execute(statement.order_by(_s.storage_path, _s.key))
    return {
        "settings": [
            {"key": row.key, "storagePath": row.storage_path, "value": row.value} for row in rows
        ]
    }


@router.post("")
async def store_settings(given: Given, user: Changer, db: Db) -> dict[str, Any]:
    """Stores settings of the sender's, each in place of the one with its key and path."""
    async with db.tx() as conn:
        wanted = {(one.storagePath, one.key): one.value for one in given.settings}
        await accounts.store_settings(conn, user.user_id, wanted)
    return {}


@router.post("/reset")
async def reset_settings(user: Changer, db: Db) -> dict[str, Any]:
    """Deletes the sender's settings."""
    async with db.tx() as conn:
        await accounts.reset_settings(conn, user.user_id)
    return {}
