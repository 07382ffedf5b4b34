"""What programs keep for a user, such as the choices of a page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from determined.common.wire import limits
from determined_registry.database.tables import user_settings
from determined_service.base.db import hold_name
from determined_service.base.errors import BadRequest

_s = user_settings.c


async def store(conn: AsyncConnection, user_id: int, rows: Sequence[dict[str, Any]]) -> None:
    """Writes settings (``storage_path``, ``key``, ``value``), each in place of the one with its key and path.

    Raises BadRequest if the user would have too many.
    """
    if not rows:
        return
    statement = insert(user_settings).values([{"user_id": user_id, **row} for row in rows])
    await hold_name(conn, f"settings/{user_id}")
    await conn.execute(
        statement.on_conflict_do_update(
            index_elements=[_s.user_id, _s.storage_path, _s.key],
            set_={"value": statement.excluded.value},
        )
    )
    own = sa.select(sa.func.count()).where(_s.user_id == user_id)
    if int(await conn.scalar(own) or 0) > limits.USER_SETTINGS:
        raise BadRequest(
            f"a user has at most {limits.USER_SETTINGS} settings: nothing was stored; "
            "POST /api/v1/users/setting/reset deletes them all"
        )


async def reset(conn: AsyncConnection, user_id: int) -> None:
    """Deletes all settings of the user."""
    await conn.execute(sa.delete(user_settings).where(_s.user_id == user_id))
