"""The checkpoint that a trial starts from: the experiment's, or another trial's latest."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from determined_registry.database.tables import checkpoints, trials
from determined_service.base.errors import BadRequest


async def find_warm_start(conn: AsyncConnection, searcher: Mapping[str, Any]) -> uuid.UUID | None:
    """``source_checkpoint_uuid`` of the searcher section, or the latest of ``source_trial_id``.

    None: trials start from nothing. Raises BadRequest when the named source does not exist.
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
    if not await complete_checkpoints(conn, {wanted}):
        raise BadRequest(f"searcher.source_checkpoint_uuid: no complete checkpoint {wanted}")
    return wanted


async def complete_checkpoints(
    conn: AsyncConnection, wanted: Collection[uuid.UUID]
) -> set[uuid.UUID]:
    """The checkpoints of ``wanted`` that are stored completely."""
    if not wanted:
        return set()
    found = await conn.execute(
        sa.select(checkpoints.c.uuid).where(
            checkpoints.c.uuid.in_(wanted),
            checkpoints.c.state == "COMPLETED",
            checkpoints.c.deletion_id.is_(None),
        )
    )
    return {uuid.UUID(str(checkpoint)) for checkpoint in found.scalars()}


async def latest_checkpoints(
    conn: AsyncConnection, experiment_id: int, request_ids: Collection[str]
) -> dict[str, uuid.UUID]:
    """The latest checkpoint of each of these trials, by request id.

    Raises BadRequest when a trial has none, or the experiment has no such trial.
    """
    if not request_ids:
        return {}
    found = await conn.execute(
        sa.select(trials.c.id, trials.c.request_id, trials.c.latest_checkpoint).where(
            trials.c.experiment_id == experiment_id, trials.c.request_id.in_(request_ids)
        )
    )
    rows = {row.request_id: row for row in found}
    missing = set(request_ids) - set(rows)
    if missing:
        raise BadRequest(f"no such trial to start from: {', '.join(sorted(missing))}")
    for row in rows.values():
        if row.latest_checkpoint is None:
            raise BadRequest(
                f"trial {row.id} has no checkpoint, and the searcher makes another trial start from "
                f"it: the training code must save a checkpoint before it reports to the searcher"
            )
    return {name: uuid.UUID(str(row.latest_checkpoint)) for name, row in rows.items()}
