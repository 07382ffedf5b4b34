"""The checkpoint that the trials of an experiment start from."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from determined_registry.tables import checkpoints, trials
from determined_service.errors import BadRequest


async def find_warm_start(conn: AsyncConnection, searcher: Mapping[str, Any]) -> uuid.UUID | None:
    """``source_checkpoint_uuid`` of the searcher section, or the latest of ``source_trial_id``.

    None: trials start from nothing. Raises BadRequest when what is named is not there.
    """
    trial_id = searcher.get("source_trial_id")
    if trial_id is not None:
        found = await conn.execute(
            sa.select(trials.c.latest_checkpoint).where(trials.c.id == trial_id)
        )
        row = found.first()
        if row is None:
            raise BadRequest(f"searcher.source_trial_id: trial {trial_id} does not exist")
        if row.latest_checkpoint is None:
            raise BadRequest(f"searcher.source_trial_id: trial {trial_id} has no checkpoint")
        return uuid.UUID(str(row.latest_checkpoint))
    given = searcher.get("source_checkpoint_uuid")
    if given is None:
        return None
    try:
        wanted = uuid.UUID(str(given))
    except ValueError as error:
        raise BadRequest(f"searcher.source_checkpoint_uuid: {given!r} is no UUID") from error
    complete = await conn.execute(
        sa.select(checkpoints.c.uuid).where(
            checkpoints.c.uuid == wanted, checkpoints.c.state == "COMPLETED"
        )
    )
    if complete.first() is None:
        raise BadRequest(f"searcher.source_checkpoint_uuid: no complete checkpoint {wanted}")
    return wanted
