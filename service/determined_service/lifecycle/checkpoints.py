"""Checkpoints as training processes report them, and their metadata."""

from __future__ import annotations

import datetime
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import orjson
import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from determined.common.wire import limits
from determined_registry.database.tables import allocations, checkpoints, trials
from determined_service.access.principal import Principal, ended
from determined_service.base import topics
from determined_service.base.checks import check_bytes
from determined_service.base.errors import Conflict, NotFound
from determined_service.base.json import dumps
from determined_service.lifecycle import unmanaged
from determined_service.state.change import Change

STATES = frozenset({"ACTIVE", "COMPLETED", "ERROR", "DELETED", "PARTIALLY_DELETED"})
STORED = ("ACTIVE", "COMPLETED")

c = checkpoints.c
_USABLE = c.state.in_(STORED) & c.deletion_id.is_(None)


@dataclass(frozen=True, slots=True)
class CheckpointReport:
    """A checkpoint whose files are in storage. ``storage``: where, if not in the experiment's.
    ``executable``: those of the files that are programs."""

    uuid: UUID
    state: str
    steps_completed: int
    resources: Mapping[str, int]
    checksums: Mapping[str, str]
    metadata: Mapping[str, Any]
    executable: Sequence[str] = ()
    storage: Mapping[str, Any] | None = None
    report_time: datetime.datetime | None = None
    # The allocation that made it. One of an unmanaged trial has none, and is of a task.
    allocation_id: str | None = None
    task_id: str | None = None


async def report(change: Change, given: CheckpointReport, principal: Principal) -> None:
    """Stores the checkpoint; may be repeated. It becomes the trial's latest, from which the next leg starts.

    Raises NotFound; Conflict when the sender has ended, or the checkpoint is another experiment's, or no
    checkpoint.
    """
    conn = change.conn
    own = principal.allocation
    if own is not None and own.trial_id is not None:
        # Ending the allocation takes this lock too, so the facts read below stay true.
        await _lock_trial(conn, own.trial_id)
    sender = await _sender(conn, principal, given.allocation_id, given.task_id)
    if sender is not None and sender.state == "TERMINATED" and own is not None:
        raise ended(sender.id)
    trial_id = sender.trial_id if sender is not None else None
    experiment_id = sender.experiment_id if sender is not None else None
    values: dict[str, Any] = {
        "uuid": given.uuid,
        "state": given.state,
        "task_id": sender.task_id if sender is not None else given.task_id,
        "allocation_id": sender.id if sender is not None else None,
        "experiment_id": experiment_id,
        "trial_id": trial_id,
        "steps_completed": given.steps_completed,
        "resources": given.resources,
        "size": sum(given.resources.values()),
        "checksums": given.checksums,
        "executable": list(given.executable),
        "user_metadata": given.metadata,
        "storage": given.storage,
    }
    await _require_free(conn, given.uuid)
    values["storage_id"] = await storage_id(conn, given.storage, experiment_id)
    if given.report_time is not None:
        values["report_time"] = given.report_time
    if trial_id is not None and given.state == "COMPLETED":
        # Before the checkpoint's row: locks in the service's order.
        if own is None:
            await _lock_trial(conn, trial_id)
        await _make_latest(conn, trial_id, given)
    await _store(conn, values)
    if trial_id is not None and experiment_id is not None:
        change.notify(topics.trial(trial_id), topics.experiment(experiment_id))


async def _lock_trial(conn: AsyncConnection, trial_id: int) -> None:
    await conn.execute(
        sa.select(trials.c.id).where(trials.c.id == trial_id).with_for_update(key_share=True)
    )


async def _sender(
    conn: AsyncConnection, principal: Principal, allocation_id: str | None, task_id: str | None
) -> sa.Row[Any] | None:
    """The allocation of the trial that stores the checkpoint; None for an unmanaged trial, which has none.

    Raises NotFound, Conflict for an unmanaged trial whose script has started again since.
    """
    found = await conn.execute(
        sa.select(
            allocations.c.id,
            allocations.c.task_id,
            allocations.c.experiment_id,
            allocations.c.trial_id,
            allocations.c.state,
        ).where(allocations.c.id == allocation_id)
    )
    row: sa.Row[Any] | None = found.first()
    if row is None and task_id is not None:
        row = await unmanaged.find_sender(conn, task_id, principal)
    if row is None and allocation_id is not None:
        raise NotFound(f"allocation {allocation_id!r} does not exist")
    return row


async def _make_latest(conn: AsyncConnection, trial_id: int, given: CheckpointReport) -> None:
    given_up = sa.exists(sa.select(c.uuid).where(c.uuid == given.uuid, ~_USABLE))
    await conn.execute(
        sa.update(trials)
        .where(trials.c.id == trial_id, ~given_up)
        .values(latest_checkpoint=given.uuid, steps_completed=given.steps_completed)
    )


_DIGEST = """
    encode(sha256(convert_to(
        ((coalesce(cast(:storage AS jsonb), e.config -> 'checkpoint_storage')
          - ARRAY['save_experiment_best', 'save_trial_best', 'save_trial_latest'])::text), 'UTF8')), 'hex')
    FROM (SELECT) AS one LEFT JOIN experiments e ON e.id = :experiment_id
"""
_STORAGE = sa.text(f"SELECT id FROM storages WHERE digest = (SELECT {_DIGEST})")
_NEW_STORAGE = sa.text(
    f"""
    INSERT INTO storages (digest)
    SELECT digest FROM (SELECT {_DIGEST}) AS given (digest) WHERE digest IS NOT NULL
    ON CONFLICT DO NOTHING
    """
)


async def storage_id(
    conn: AsyncConnection, storage: Mapping[str, Any] | None, experiment_id: int | None
) -> int | None:
    """The number of the ``storage`` (None: the experiment's); None: it has none."""
    section = None if storage is None else orjson.dumps(storage).decode()
    given = {"storage": section, "experiment_id": experiment_id}
    found = (await conn.execute(_STORAGE, given)).scalar_one_or_none()
    if found is None:
        await conn.execute(_NEW_STORAGE, given)
        found = (await conn.execute(_STORAGE, given)).scalar_one_or_none()
    return None if found is None else int(found)


# In a storage and on agents each of these ids may be the name of a folder.
_TAKEN = sa.text(
    """
    SELECT 'this cluster' AS what FROM cluster WHERE id = :uuid
    UNION ALL SELECT 'a ' || lower(kind) || ' task' FROM tasks WHERE id = cast(:uuid AS text)
    UNION ALL SELECT 'an allocation' FROM allocations WHERE id = cast(:uuid AS text)
    UNION ALL SELECT 'the job of a task' FROM tasks WHERE job_id = :uuid
    UNION ALL SELECT 'the job of experiment ' || id FROM experiments WHERE job_id = :uuid
    LIMIT 1
    """
).bindparams(sa.bindparam("uuid", type_=sa.Uuid()))


async def _require_free(conn: AsyncConnection, uuid: UUID) -> None:
    """Raises Conflict where the id is another thing's: what the cluster keeps by it would be read, and
    deleted, as the checkpoint's files."""
    taken = (await conn.execute(_TAKEN, {"uuid": uuid})).scalar_one_or_none()
    if taken is not None:
        raise Conflict(
            f"{uuid} is the id of {taken}, and so no checkpoint's: make a new one (uuid.uuid4())"
        )


async def _store(conn: AsyncConnection, values: Mapping[str, Any]) -> None:
    columns = {c[name]: value for name, value in values.items()}
    made = await conn.execute(
        insert(checkpoints).values(columns).on_conflict_do_nothing().returning(c.uuid)
    )
    if made.first() is not None:
        return
    of = c.uuid == values["uuid"]
    found = await conn.execute(
        sa.select(c.experiment_id, c.user_metadata, _USABLE.label("usable"))
        .where(of)
        .with_for_update(key_share=True)
    )
    row = found.first()
    if row is not None and row.experiment_id != values["experiment_id"]:
        raise Conflict(f"there is a checkpoint {values['uuid']} already, of another experiment")
    if row is None or not row.usable:
        # A late repetition brings nothing back that was found damaged or deleted.
        return
    # What was noted since the report before stays.
    metadata = _of_metadata_size({**row.user_metadata, **values["user_metadata"]})
    del columns[c.uuid]
    await conn.execute(
        sa.update(checkpoints).where(of).values({**columns, c.user_metadata: metadata})
    )


def _of_metadata_size(metadata: dict[str, Any]) -> dict[str, Any]:
    check_bytes(len(dumps(metadata)), limits.METADATA_BYTES, "metadata")
    return metadata


async def replace_metadata(change: Change, uuid: UUID, metadata: Mapping[str, Any]) -> None:
    """Replace the checkpoint's metadata by ``metadata``, even if others have changed it meanwhile."""
    await change.conn.execute(
        sa.update(checkpoints).where(c.uuid == uuid).values({c.user_metadata: metadata})
    )


async def change_metadata(
    change: Change, uuid: UUID, given: Mapping[str, Any], remove: Collection[str]
) -> None:
    """Sets these keys of the checkpoint's metadata, removes those, and keeps the others. Raises NotFound;
    BadRequest for what is too large."""
    both = {**await lock_metadata(change, uuid), **given}
    after = {key: value for key, value in both.items() if key not in remove}
    await store_metadata(change, uuid, after)


async def lock_metadata(change: Change, uuid: UUID) -> dict[str, Any]:
    """The checkpoint's metadata, which nobody else changes before the change ends. Raises NotFound."""
    found = await change.conn.execute(
        sa.select(c.user_metadata).where(c.uuid == uuid).with_for_update(key_share=True)
    )
    metadata: dict[str, Any] | None = found.scalar_one_or_none()
    if metadata is None:
        raise NotFound(f"checkpoint {uuid} does not exist")
    return metadata


async def store_metadata(change: Change, uuid: UUID, metadata: dict[str, Any]) -> None:
    """Of a checkpoint whose metadata is locked. Raises BadRequest for what is too large."""
    await replace_metadata(change, uuid, _of_metadata_size(metadata))
