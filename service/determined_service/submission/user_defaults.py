"""The defaults of users: values for what their configurations and templates leave open."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson
import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from determined import expconf
from determined.common.wire import limits
from determined_registry.database.tables import user_defaults, users
from determined_service.base.aside import aside
from determined_service.base.db import as_asker
from determined_service.base.errors import BadRequest
from determined_service.submission import templates
from determined_service.submission.templates import Layer, Layers

d = user_defaults.c
# Made once: every submission asks.
_FIND = (
    sa.select(d.config, users.c.username)
    .join(users, users.c.id == d.user_id)
    .where(d.user_id == sa.bindparam("user_id"))
)


async def check(config: Mapping[str, Any]) -> None:
    """Raises BadRequest for values that cannot be a user's defaults."""
    size = len(orjson.dumps(config))
    if size > limits.USER_DEFAULTS_BYTES:
        raise BadRequest(
            f"defaults: {size} bytes found, at most {limits.USER_DEFAULTS_BYTES} are allowed"
        )
    try:
        await aside(size, expconf.check_defaults, config)
    except expconf.ConfigError as error:
        raise BadRequest(str(error)) from error


async def put(conn: AsyncConnection, user_id: int, config: Mapping[str, Any]) -> None:
    """Stores the (checked) defaults of a user in place of those before; empty ones are deleted."""
    if not config:
        await conn.execute(sa.delete(user_defaults).where(d.user_id == user_id))
        return
    values = {"config": dict(config)}
    await conn.execute(
        insert(user_defaults)
        .values(user_id=user_id, **values)
        .on_conflict_do_update(index_elements=[d.user_id], set_=values)
    )


async def find(conn: AsyncConnection, user_id: int) -> Layers:
    """The layer of the user's defaults; none if the user has no defaults."""
    row = (await conn.execute(_FIND, {"user_id": user_id})).first()
    if row is None:
        return ()
    return (Layer(f"the defaults of {row.username}", orjson.dumps(row.config)),)


async def layers(conn: AsyncConnection, template: str | None, user_id: int) -> Layers:
    """The layers beneath a configuration that names ``template`` (None, blank: none), which its sender must
    see. Raises BadRequest."""
    named = None
    if template:
        async with as_asker(conn):
            named = await templates.find(conn, template)
    own = await find(conn, user_id)
    return own if named is None else (named, *own)
