"""Registered checkpoints: a version of a model cannot be deleted."""

from __future__ import annotations

from collections.abc import Collection
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from determined_registry.database.tables import checkpoints
from determined_registry.models.holders import lock_checkpoints, select_holders
from determined_service.base.errors import Conflict

NAMED = 5
"""So many versions are named in a refusal."""


async def lock_unregistered(conn: AsyncConnection, uuids: Collection[UUID]) -> set[UUID]:
    """The uuids of ``uuids`` that are not versions of a model, and cannot become one in this transaction."""
    if not uuids:
        return set()
    of = checkpoints.c.uuid.in_(uuids)
    locked = set((await conn.execute(lock_checkpoints(of))).scalars())
    held = await conn.execute(select_holders(of))
    return locked - {row.uuid for row in held}


async def refuse_registered(conn: AsyncConnection, of: sa.ColumnElement[bool], what: str) -> None:
    """Raise Conflict if a checkpoint that meets ``of`` is a version of a model; until the transaction's end
    none can become one. ``what`` names the refused action."""
    await conn.execute(lock_checkpoints(of))
    held = (await conn.execute(select_holders(of).limit(NAMED + 1))).all()
    if not held:
        return
    named = "; ".join(
        f"checkpoint {row.uuid} is version {row.version} of model {row.model!r}"
        for row in held[:NAMED]
    )
    more = "; and more" if len(held) > NAMED else ""
    first = held[0]
    which = "the version" if len(held) == 1 else "each version"
    raise Conflict(
        f"{what}, because {named}{more}. Delete {which} first (det model delete-version "
        f"{first.model!r} {first.version}), or the whole model"
    )
