"""Gives up checkpoints that are damaged: nothing starts from them any more."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from determined.common.wire.legs import CheckpointFacts, StartFrom
from determined_registry.database.tables import checkpoints, trials
from determined_service.base import topics
from determined_service.base.errors import Conflict, NotFound
from determined_service.ingest.values import replace_nul
from determined_service.state.change import Change

c = checkpoints.c

_LATEST = sa.text(
    """
    SELECT coalesce(t.latest_checkpoint, t.warm_start_checkpoint) AS uuid,
           CASE WHEN t.latest_checkpoint IS NULL THEN 0 ELSE coalesce(c.steps_completed, 0) END
               AS steps_completed,
           c.resources, c.checksums, c.storage
    FROM trials t
    LEFT JOIN checkpoints c ON c.uuid = coalesce(t.latest_checkpoint, t.warm_start_checkpoint)
    WHERE t.id = :id
    """
)


_STARTS_FROM = sa.text(
    """
    SELECT e.owner_id IS NOT DISTINCT FROM k.owner_id AS is_own FROM allocations a
    JOIN trials t ON t.id = a.trial_id
    JOIN tasks k ON k.id = a.task_id
    LEFT JOIN checkpoints c ON c.uuid = :uuid
    LEFT JOIN experiments e ON e.id = c.experiment_id
    WHERE a.id = :allocation_id AND a.state <> 'TERMINATED' AND t.id = :trial_id
      -- A report that is sent again is of a checkpoint that was given up already.
      AND (:uuid IN (t.latest_checkpoint, t.warm_start_checkpoint) OR c.state = 'ERROR')
    """
)


async def may_give_up(change: Change, allocation_id: str, trial_id: int, uuid: UUID) -> bool:
    """Whether the checkpoint belongs to the allocation's owner. A trial may start from another user's; its
    supervisor may lie.

    Raises Conflict unless the allocation is a leg of the trial that has not ended, and starts from this
    checkpoint, or would if it had not been given up.
    """
    given = {"allocation_id": allocation_id, "trial_id": trial_id, "uuid": uuid}
    found = (await change.conn.execute(_STARTS_FROM, given)).first()
    if found is None:
        raise Conflict(
            f"allocation {allocation_id} is not a running leg of trial {trial_id} that started from "
            f"checkpoint {uuid}"
        )
    return bool(found.is_own)


async def give_up_checkpoint(change: Change, trial_id: int, uuid: UUID, reason: str) -> StartFrom:
    """Mark the checkpoint as ERROR with the ``reason``; returns the checkpoint to start from instead.

    That is the checkpoint before it, else the trial's warm start (which may be ``uuid`` itself: there is no
    other), else nothing. May be repeated. Raises NotFound for an unknown trial.
    """
    await lock_users(change.conn, uuid)
    marked = await change.conn.execute(
        sa.update(checkpoints)
        .where(c.uuid == uuid, c.state.in_(("COMPLETED", "ERROR")))
        .values(state="ERROR", reason=replace_nul(reason))
        .returning(c.experiment_id)
    )
    experiment_id = marked.scalar_one_or_none()
    await forget_latest(change.conn, uuid)
    found = await start_from(change, trial_id)
    change.notify(topics.trial(trial_id))
    if experiment_id is not None:
        change.notify(topics.experiment(experiment_id))
    return found


async def start_from(change: Change, trial_id: int) -> StartFrom:
    """The trial's restore point. Raises NotFound."""
    row = (await change.conn.execute(_LATEST, {"id": trial_id})).first()
    if row is None:
        raise NotFound(f"trial {trial_id} does not exist")
    return StartFrom(
        latest_checkpoint=row.uuid and str(row.uuid),
        steps_completed=row.steps_completed,
        checkpoint=checkpoint_facts(row),
    )


async def lock_users(conn: AsyncConnection, *uuids: UUID, owners: bool = False) -> None:
    """Locks the trials whose latest checkpoint is one of these (``owners``: and those that have stored them):
    before the checkpoints' own rows, as everywhere."""
    which: sa.ColumnElement[bool] = trials.c.latest_checkpoint.in_(uuids)
    if owners:
        which |= trials.c.id.in_(sa.select(c.trial_id).where(c.uuid.in_(uuids)))
    await conn.execute(
        sa.select(trials.c.id).where(which).order_by(trials.c.id).with_for_update(key_share=True)
    )


async def forget_latest(conn: AsyncConnection, *uuids: UUID) -> None:
    """The next leg of a trial whose latest checkpoint was one of these starts from the one before."""
    before = (
        sa.select(c.uuid)
        .where(
            c.trial_id == trials.c.id,
            c.state == "COMPLETED",
            c.deletion_id.is_(None),
            c.uuid.not_in(uuids),
        )
        .order_by(c.report_time.desc(), c.steps_completed.desc())
        .limit(1)
        .scalar_subquery()
    )
    await conn.execute(
        sa.update(trials)
        .where(trials.c.latest_checkpoint.in_(uuids))
        .values(latest_checkpoint=before)
    )


def checkpoint_facts(row: sa.Row[Any]) -> CheckpointFacts | None:
    """The facts a leg needs to verify the checkpoint it starts from; None: the checkpoint has no row."""
    if row.resources is None:
        return None
    return CheckpointFacts(row.resources, row.checksums, row.storage)
