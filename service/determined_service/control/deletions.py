"""Deleting from checkpoint storage: who asked for what, and what has been done of it.

The service does not reach the storage. It marks the checkpoints (from then on nothing starts from
them), and a run of the flow ``checkpoint-gc`` removes the files and says so; then the rows follow.
Everything here may be repeated, and a run that was killed is followed by another
(:mod:`determined_service.control.deletion_runs`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any
from uuid import UUID

import orjson
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from determined_registry.tables import checkpoints, deletions, experiments, trials
from determined_service.control import lifecycle as states
from determined_service.control.change import Change
from determined_service.control.damage import forget_latest, lock_users
from determined_service.control.garbage import Policy, outside_policy
from determined_service.control.lifecycle import EXPERIMENT, transition
from determined_service.errors import Conflict, NotFound

TOPIC = "deletions"

POLICY = "policy"
CHECKPOINTS = "checkpoints"
EXPERIMENT_WHOLE = "experiment"
TENSORBOARD = "tensorboard"

REQUESTED = "REQUESTED"
DONE = "DONE"
FAILED = "FAILED"

c = checkpoints.c
d = deletions.c

# What a storage manager of the script's own has stored, nobody else finds.
_DELETABLE = sa.func.coalesce(c.storage["type"].astext, "") != "own"


async def collect_garbage(change: Change, experiment_id: int) -> int:
    """Has what the experiment's policy does not keep deleted; the deletion's id."""
    return await _request(change, POLICY, experiment_id)


async def delete_checkpoints(
    change: Change, uuids: Collection[UUID], globs: Sequence[str] | None = None
) -> int | None:
    """Has the checkpoints deleted, or their files that match ``globs``; the deletion's id.

    None when all of them are deleted already. Raises NotFound, naming every one that does not exist;
    Conflict when a trial that has not ended is to start from one.
    """
    wanted = set(uuids)
    await lock_users(change.conn, *wanted)
    found = await change.conn.execute(sa.select(c.uuid, c.state).where(c.uuid.in_(wanted)))
    known = {row.uuid: row.state for row in found}
    missing = sorted(map(str, wanted - known.keys()))
    if missing:
        raise NotFound(f"no such checkpoint: {', '.join(missing)}")
    there = {uuid for uuid, state in known.items() if state != "DELETED"}
    if not there:
        return None
    await _refuse_foreign(change.conn, there)
    await _refuse_needed(change.conn, c.uuid.in_(there))
    deletion_id = await _request(change, CHECKPOINTS, None, globs)
    await _mark(change, deletion_id, there)
    return deletion_id


async def delete_experiment(change: Change, experiment_id: int) -> int | None:
    """Has the ended experiment deleted with all it left; the deletion's id, None when it is under way.

    Raises NotFound; Conflict when it has not ended, or a trial of another experiment that has not
    ended is to start from one of its checkpoints.
    """
    if not await transition(change, EXPERIMENT, experiment_id, states.DELETING, reason=None):
        return None
    await _refuse_needed(change.conn, c.experiment_id == experiment_id, besides=experiment_id)
    deletion_id = await _request(change, EXPERIMENT_WHOLE, experiment_id)
    found = await change.conn.execute(
        sa.select(c.uuid).where(c.experiment_id == experiment_id, c.state != "DELETED", _DELETABLE)
    )
    await _mark(change, deletion_id, set(found.scalars()))
    return deletion_id


async def delete_tensorboard_files(change: Change, experiment_id: int) -> int:
    """Has the TensorBoard files of the (ended) experiment's trials deleted; the deletion's id."""
    return await _request(change, TENSORBOARD, experiment_id)


async def _request(
    change: Change, kind: str, experiment_id: int | None, globs: Sequence[str] | None = None
) -> int:
    found = await change.conn.execute(
        sa.insert(deletions)
        .values(
            kind=kind,
            experiment_id=experiment_id,
            globs=None if globs is None else list(globs),
        )
        .returning(d.id)
    )
    change.notify(TOPIC)
    return int(found.scalar_one())


async def _refuse_foreign(conn: AsyncConnection, uuids: Collection[UUID]) -> None:
    found = await conn.execute(sa.select(c.uuid).where(c.uuid.in_(uuids), ~_DELETABLE).limit(1))
    foreign = found.scalar_one_or_none()
    if foreign is not None:
        raise Conflict(
            f"checkpoint {foreign} was stored by a storage manager of the training code's own: only "
            f"that can delete it (core_context.checkpoint.delete())"
        )


async def _refuse_needed(
    conn: AsyncConnection, of: sa.ColumnElement[bool], besides: int | None = None
) -> None:
    # A live trial's own latest checkpoint may go: it starts from the one before then.
    live: list[sa.ColumnElement[bool]] = [
        trials.c.state.not_in(states.TERMINAL),
        trials.c.latest_checkpoint.is_(None),
    ]
    if besides is not None:
        live.append(trials.c.experiment_id != besides)
    found = await conn.execute(
        sa.select(c.uuid, trials.c.id, trials.c.experiment_id)
        .join(trials, trials.c.warm_start_checkpoint == c.uuid)
        .where(of, *live)
        .limit(1)
    )
    row = found.first()
    if row is not None:
        raise Conflict(
            f"checkpoint {row.uuid} is where trial {row.id} of experiment {row.experiment_id} is to "
            f"start from: wait until that has ended, or kill it"
        )


async def _mark(change: Change, deletion_id: int, uuids: Collection[UUID]) -> None:
    """Nothing starts from these checkpoints any more."""
    if not uuids:
        return
    await lock_users(change.conn, *uuids)
    await change.conn.execute(
        sa.update(checkpoints).where(c.uuid.in_(uuids)).values(deletion_id=deletion_id)
    )
    await forget_latest(change.conn, *uuids)


async def prepare(change: Change, deletion_id: int) -> bool:
    """Before its first run: whether there is anything to do in the storage.

    Of kind "policy" this is where the checkpoints are chosen.
    """
    row = await _lock(change, deletion_id)
    if row.state != REQUESTED:
        return False
    if row.kind == POLICY:
        storage = await change.conn.execute(
            sa.select(experiments.c.config["checkpoint_storage"]).where(
                experiments.c.id == row.experiment_id
            )
        )
        policy = Policy.of(storage.scalar_one() or {})
        await _mark(
            change, deletion_id, await outside_policy(change.conn, row.experiment_id, policy)
        )
    found = await change.conn.execute(_TO_DO, {"id": deletion_id})
    return bool(found.scalar_one())


# A leg that did not end by itself may have left something behind, and a whole experiment leaves
# TensorBoard files.
_TO_DO = sa.text(
    """
    SELECT d.kind = 'tensorboard' OR EXISTS (SELECT FROM checkpoints WHERE deletion_id = d.id)
      OR EXISTS (
        SELECT FROM legs l JOIN trials t ON t.id = l.trial_id
        WHERE t.experiment_id = d.experiment_id
          AND (d.kind = 'experiment' OR l.state NOT IN ('COMPLETED', 'PREEMPTED')))
    FROM deletions d WHERE d.id = :id
    """
)


async def _lock(change: Change, deletion_id: int) -> sa.Row[Any]:
    """The deletion, locked after its experiment. Raises NotFound."""
    await change.conn.execute(
        sa.text(
            "SELECT FROM experiments WHERE id = (SELECT experiment_id FROM deletions WHERE id = :id)"
            " FOR NO KEY UPDATE"
        ),
        {"id": deletion_id},
    )
    found = await change.conn.execute(
        sa.select(deletions).where(d.id == deletion_id).with_for_update(key_share=True)
    )
    row = found.first()
    if row is None:
        raise NotFound(f"deletion {deletion_id} does not exist")
    return row


_WORK = sa.text(
    """
    SELECT c.uuid, coalesce(c.storage, e.config -> 'checkpoint_storage') AS storage
    FROM checkpoints c LEFT JOIN experiments e ON e.id = c.experiment_id
    WHERE c.deletion_id = :id
    ORDER BY c.uuid
    """
)


async def work(conn: AsyncConnection, deletion_id: int, cluster_id: str) -> dict[str, Any]:
    """What a run has to do: per storage the checkpoints, and what else is to go. Raises NotFound.

    ``unfinished_of``: owners of checkpoints that were never finished or reported, as a beginning of
    their names; their processes are gone, or the service refuses to hear of them. ``discard``: paths.
    """
    row = (
        await conn.execute(
            sa.select(
                deletions,
                experiments.c.config["checkpoint_storage"].label("storage"),
                experiments.c.state.label("experiment_state"),
            )
            .outerjoin(experiments, experiments.c.id == d.experiment_id)
            .where(d.id == deletion_id)
        )
    ).first()
    if row is None:
        raise NotFound(f"deletion {deletion_id} does not exist")
    places: dict[bytes, dict[str, Any]] = {}

    def place(storage: Mapping[str, Any]) -> dict[str, Any]:
        key = orjson.dumps(storage, option=orjson.OPT_SORT_KEYS)
        return places.setdefault(
            key, {"storage": storage, "checkpoints": [], "unfinished_of": None, "discard": []}
        )

    if row.state == REQUESTED:
        if row.storage is not None:
            place(row.storage)
        for item in await conn.execute(_WORK, {"id": deletion_id}):
            place(item.storage or {})["checkpoints"].append(str(item.uuid))
        for found in places.values() if row.experiment_id is not None else ():
            found["unfinished_of"] = f"{cluster_id}.{row.experiment_id}."
            if row.kind in (EXPERIMENT_WHOLE, TENSORBOARD):
                found["discard"] = [f"{cluster_id}/tensorboard/experiment/{row.experiment_id}"]
    return {
        "kind": row.kind,
        "state": row.state,
        "experiment_id": row.experiment_id,
        "experiment_has_ended": row.experiment_state in states.ENDED,
        "globs": row.globs,
        "places": list(places.values()),
    }


async def note_deleted(
    change: Change, deletion_id: int, left: Mapping[UUID, Mapping[str, int]]
) -> None:
    """Files are gone: by checkpoint, the resources that are left. May be repeated. Raises NotFound."""
    await _lock(change, deletion_id)
    await lock_users(change.conn, *left)
    found = await change.conn.execute(
        sa.select(c.uuid, c.state, c.resources, c.experiment_id)
        .where(c.uuid.in_(left))
        .order_by(c.uuid)
        .with_for_update()
    )
    for row in list(found):
        resources = dict(left[row.uuid])
        state = row.state
        if not resources:
            state = "DELETED"
        elif resources.keys() < row.resources.keys():
            state = "PARTIALLY_DELETED"
        await change.conn.execute(
            sa.update(checkpoints)
            .where(c.uuid == row.uuid)
            .values(
                state=state,
                resources=resources,
                size=sum(resources.values()),
                checksums=sa.case(
                    (sa.literal(state) == "DELETED", sa.cast({}, checkpoints.c.checksums.type)),
                    else_=c.checksums,
                ),
                deletion_id=None,
            )
        )
        if state == "COMPLETED":
            await change.conn.execute(_LATEST_AGAIN, {"uuid": row.uuid})
        change.notify(f"experiment:{row.experiment_id}")
    await change.conn.execute(
        sa.update(deletions).where(d.id == deletion_id).values(seen_at=sa.func.now())
    )


# Its globs matched nothing: it is what it was.
_LATEST_AGAIN = sa.text(
    """
    UPDATE trials t SET latest_checkpoint = c.uuid
    FROM checkpoints c LEFT JOIN trials own ON own.id = c.trial_id
         LEFT JOIN checkpoints now ON now.uuid = own.latest_checkpoint
    WHERE c.uuid = :uuid AND t.id = c.trial_id
      AND (now.uuid IS NULL OR now.report_time < c.report_time)
    """
)


async def end(change: Change, deletion_id: int, error: str | None) -> None:
    """Every file that can be removed is gone; ``error``: some could not. May be repeated.

    Raises NotFound; Conflict when some are left, without an error.
    """
    row = await _lock(change, deletion_id)
    if row.state != REQUESTED:
        return
    if error is not None:
        await _fail(change, row, error)
        return
    left = await change.conn.execute(sa.select(c.uuid).where(c.deletion_id == deletion_id).limit(1))
    if left.first() is not None:
        raise Conflict(f"deletion {deletion_id} still has checkpoints to delete")
    await change.conn.execute(
        sa.update(deletions)
        .where(d.id == deletion_id)
        .values(state=DONE, reason=None, ended_at=sa.func.now())
    )
    change.notify(TOPIC, f"deletion:{deletion_id}")


async def _fail(change: Change, row: sa.Row[Any], reason: str) -> None:
    """Gives the locked deletion up; an experiment that was to be deleted says why it was not."""
    await change.conn.execute(
        sa.update(deletions)
        .where(d.id == row.id)
        .values(state=FAILED, reason=reason, ended_at=sa.func.now())
    )
    if row.kind == EXPERIMENT_WHOLE:
        await transition(change, EXPERIMENT, row.experiment_id, states.DELETE_FAILED, reason=reason)
    change.notify(TOPIC, f"deletion:{row.id}")


async def known_checkpoints(conn: AsyncConnection, uuids: Iterable[UUID]) -> set[UUID]:
    """Those of ``uuids`` that there are rows of, whatever their state."""
    found = await conn.execute(sa.select(c.uuid).where(c.uuid.in_(list(uuids))))
    return set(found.scalars())
