"""What programs keep for a user, such as the choices of a page."""

# Parameters are named as in the API.
# ruff: noqa: N815
from __future__ import annotations

from typing import Annotated, Any

import sqlalchemy as sa
from pydantic import BaseModel, Field
from sqlalchemy.dialects.postgresql import insert

from determined.common.wire import limits
from determined_registry.database.tables import user_settings
from determined_service.access.dependencies import UserReader, may
from determined_service.access.principal import Principal
from determined_service.access.rules import Action
from determined_service.access.targets import Kind
from determined_service.base.bounds import Name, Text
from determined_service.base.db import hold_name
from determined_service.base.errors import BadRequest
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
    rows = {
        (one.storagePath, one.key): {
            "user_id": user.user_id,
            "storage_path": one.storagePath,
            "key": one.key,
            "value": one.value,
        }
        for one in given.settings
    }
    if not rows:
        return {}
    statement = insert(user_settings).values(list(rows.values()))
    async with db.tx() as conn:
        await hold_name(conn, f"settings/{user.user_id}")
        await conn.execute(
            statement.on_conflict_do_update(
                index_elements=[_s.user_id, _s.storage_path, _s.key],
                set_={"value": statement.excluded.value},
            )
        )
        own = sa.select(sa.func.count()).where(_s.user_id == user.user_id)
        if int(await conn.scalar(own) or 0) > limits.USER_SETTINGS:
            raise BadRequest(
                f"a user has at most {limits.USER_SETTINGS} settings: nothing was stored; "
                "POST /api/v1/users/setting/reset deletes them all"
            )
    return {}


@router.post("/reset")
async def reset_settings(user: Changer, db: Db) -> dict[str, Any]:
    """Deletes the sender's settings."""
    async with db.tx() as conn:
        await conn.execute(sa.delete(user_settings).where(_s.user_id == user.user_id))
    return {}
