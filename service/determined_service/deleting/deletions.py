"""Deletions from checkpoint storage: the requests and their progress.

The service does not reach the storage. It marks the checkpoints (from then on no trial starts from them), and
a run of the flow ``checkpoint-gc`` removes the files and reports this; then the rows follow. Everything here
may be repeated, and a run that was killed is started again (:mod:`determined_service.prefect.keeper`).

A deletion is a task of kind CHECKPOINT_GC: its owner, state, reason, start and end are in its task's row.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any
from uuid import UUID

import orjson
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from determined.common.wire.deletions import DONE, FAILED, REQUESTED, DeletionWork, StorageDeletions
from determined.common.wire.kinds import TaskKind
from determined_registry.database.tables import checkpoints, deletions, experiments, tasks, trials
from determined_service.base import topics
from determined_service.base.errors import Conflict, NotFound
from determined_service.base.settings import Settings
from determined_service.deleting import unknown_best
from determined_service.deleting.damage import forget_latest, lock_users
from determined_service.deleting.garbage import KeepPolicy, outside_policy
from determined_service.deleting.registered import lock_unregistered, refuse_registered
from determined_service.deleting.remains import values_of
from determined_service.state import run_records, states
from determined_service.state.change import Change
from determined_service.state.states import EXPERIMENT, TASK, transition
from determined_service.state.task_kinds import CHECKPOINT_GC, NOTEBOOK_MARK
from determined_service.state.trial_tasks import of_experiment

POLICY = "policy"
CHECKPOINTS = "checkpoints"
EXPERIMENT_WHOLE = "experiment"
TENSORBOARD = "tensorboard"
NOTEBOOKS = "notebooks"

SHOWN_STATE: Mapping[str, str] = {
    states.ACTIVE: REQUESTED,
    states.COMPLETED: DONE,
    states.ERROR: FAILED,
}
"""The name of a deletion's state in the flow and the API, by the task's state."""

c = checkpoints.c
d = deletions.c


def notebook_key(cluster_id: str, task_id: str) -> str:
    """The prefix of a notebook's files in the storage."""
    return f"{cluster_id}/notebook/{task_id}"


# The service cannot find files that a script's own storage manager stored.
_DELETABLE = sa.func.coalesce(c.storage["type"].astext, "") != "own"


async def collect_garbage(change: Change, experiment_id: int) -> int:
    """Order the deletion of checkpoints that the experiment's policy drops, in its owner's name; returns the
    deletion's id."""
    return await _request(change, POLICY, experiment_id, None)


async def delete_checkpoints(
    change: Change, uuids: Collection[UUID], globs: Sequence[str] | None = None, *, owner_id: int
) -> int | None:
    """Has the checkpoints deleted, or their files that match ``globs``; the deletion's id.

    No globs (an empty list): the run only lists their files, and updates their rows to match.

    ``owner_id``: the requesting user.

    None when all are deleted already. Raises NotFound, naming every one that does not exist; Conflict when an
    unfinished trial will start from one, or one is a version of a model.
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
    if globs is None or globs:
        await refuse_registered(change.conn, c.uuid.in_(there), "nothing was deleted")
    deletion_id = await _request(change, CHECKPOINTS, None, owner_id, globs)
    await _mark(change, deletion_id, there)
    return deletion_id


async def delete_experiment(change: Change, experiment_id: int, *, owner_id: int) -> int | None:
    """Has the ended experiment deleted with all it left; the deletion's id, None when it is under way.

    Raises NotFound; Conflict when it has not ended, an unfinished trial of another experiment will start from
    one of its checkpoints, or one of these is a version of a model.
    """
    if not await transition(change, EXPERIMENT, experiment_id, states.DELETING, reason=None):
        return None
    await _refuse_needed(change.conn, c.experiment_id == experiment_id, besides=experiment_id)
    of = c.experiment_id == experiment_id
    # Before the checkpoints' rows, as everywhere.
    await change.conn.execute(
        sa.select(trials.c.id)
        .where(trials.c.latest_checkpoint.in_(sa.select(c.uuid).where(of)))
        .order_by(trials.c.id)
        .with_for_update(key_share=True)
    )
    await refuse_registered(change.conn, of, f"experiment {experiment_id} cannot be deleted")
    deletion_id = await _request(change, EXPERIMENT_WHOLE, experiment_id, owner_id)
    found = await change.conn.execute(
        sa.select(c.uuid).where(c.experiment_id == experiment_id, c.state != "DELETED", _DELETABLE)
    )
    await _mark(change, deletion_id, set(found.scalars()))
    return deletion_id


async def delete_tensorboard_files(change: Change, experiment_id: int, *, owner_id: int) -> int:
    """Has the TensorBoard files of the (ended) experiment's trials deleted; the deletion's id."""
    return await _request(change, TENSORBOARD, experiment_id, owner_id)


async def delete_notebook_files(change: Change, task_ids: Sequence[str], *, owner_id: int) -> int:
    """Has the files that these ended notebooks left deleted; the deletion's id."""
    deletion_id = await _request(change, NOTEBOOKS, None, owner_id)
    await change.conn.execute(_MARK_NOTEBOOKS, {"ids": list(task_ids), "mark": str(deletion_id)})
    return deletion_id


_MARK_NOTEBOOKS = sa.text(
    f"""
    UPDATE tasks
    SET data = coalesce(data, '{{}}') || jsonb_build_object('{NOTEBOOK_MARK}', cast(:mark AS text))
    WHERE id = ANY(:ids)
    """
)
_MARKED_NOTEBOOKS = sa.text(
    f"SELECT id FROM tasks WHERE kind = '{TaskKind.NOTEBOOK.name}' AND data ->> '{NOTEBOOK_MARK}' = :mark"
    " ORDER BY id"
)
_UNMARK_NOTEBOOKS = sa.text(
    f"UPDATE tasks SET data = data - '{NOTEBOOK_MARK}'"
    f" WHERE kind = '{TaskKind.NOTEBOOK.name}' AND data ->> '{NOTEBOOK_MARK}' = :mark"
)

_REQUEST = sa.text(
    """
    WITH deletion AS (
        INSERT INTO deletions (kind, experiment_id, globs)
        VALUES (:kind, :experiment_id, cast(:globs AS jsonb))
        RETURNING id, task_id, experiment_id
    ), task AS (
        INSERT INTO tasks (id, kind, owner_id, state, name)
        SELECT d.task_id, :task_kind, coalesce(cast(:owner_id AS integer), e.owner_id), :state,
               'Checkpoint deletion' || coalesce(' of experiment ' || e.id, '') || ' #' || d.id
        FROM deletion d LEFT JOIN experiments e ON e.id = d.experiment_id
    )
    SELECT id FROM deletion
    """
)


async def _request(
    change: Change,
    kind: str,
    experiment_id: int | None,
    owner_id: int | None,
    globs: Sequence[str] | None = None,
) -> int:
    """``owner_id`` None: the experiment's owner."""
    found = await change.conn.execute(
        _REQUEST,
        {
            "kind": kind,
            "experiment_id": experiment_id,
            "globs": None if globs is None else orjson.dumps(list(globs)).decode(),
            "owner_id": owner_id,
            "task_kind": CHECKPOINT_GC,
            "state": states.ACTIVE,
        },
    )
    deletion_id = int(found.scalar_one())
    await run_records.want(change, run_records.DELETION, deletion_id)
    return deletion_id


async def _refuse_foreign(conn: AsyncConnection, uuids: Collection[UUID]) -> None:
    found = await conn.execute(sa.select(c.uuid).where(c.uuid.in_(uuids), ~_DELETABLE).limit(1))
    foreign = found.scalar_one_or_none()
    if foreign is not None:
        raise Conflict(
            f"checkpoint {foreign} was stored by the training code's own storage manager: only the "
            "training code can delete it (core_context.checkpoint.delete())"
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
            f"trial {row.id} of experiment {row.experiment_id} will start from checkpoint {row.uuid}: "
            "wait until that trial has ended, or kill it"
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
    if row.state != states.ACTIVE:
        return False
    if row.kind == POLICY:
        storage = await change.conn.execute(
            sa.select(experiments.c.config["checkpoint_storage"]).where(
                experiments.c.id == row.experiment_id
            )
        )
        policy = KeepPolicy.of(storage.scalar_one() or {})
        choice = await outside_policy(change.conn, row.experiment_id, policy)
        await lock_users(change.conn, *choice.doomed)
        # One may have been registered since it was chosen.
        await _mark(change, deletion_id, await lock_unregistered(change.conn, choice.doomed))
        await unknown_best.warn(change.conn, choice.unknown)
    found = await change.conn.execute(_TO_DO, {"id": deletion_id})
    return bool(found.scalar_one())


# A leg that did not end by itself may have left something behind, and a whole experiment leaves
# TensorBoard files.
_TO_DO = sa.text(
    f"""
    SELECT d.kind IN ('tensorboard', 'notebooks') OR EXISTS (SELECT FROM checkpoints WHERE deletion_id = d.id)
      OR EXISTS (
        SELECT FROM legs l WHERE l.task_id IN ({of_experiment("d.experiment_id")})
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
        sa.select(deletions, tasks.c.state)
        .join(tasks, tasks.c.id == d.task_id)
        .where(d.id == deletion_id)
        .with_for_update(key_share=True)
    )
    row = found.first()
    if row is None:
        raise NotFound(f"deletion {deletion_id} does not exist")
    return row


async def task_of_deletion(conn: AsyncConnection, deletion_id: int) -> str:
    """The task that the deletion is. Raises NotFound."""
    found = await conn.execute(sa.select(d.task_id).where(d.id == deletion_id))
    task_id = found.scalar_one_or_none()
    if task_id is None:
        raise NotFound(f"deletion {deletion_id} does not exist")
    return str(task_id)


_WORK = sa.text(
    """
    SELECT c.uuid, coalesce(c.storage, e.config -> 'checkpoint_storage') AS storage
    FROM checkpoints c LEFT JOIN experiments e ON e.id = c.experiment_id
    WHERE c.deletion_id = :id
    ORDER BY c.uuid
    """
)


async def work(conn: AsyncConnection, deletion_id: int, settings: Settings) -> DeletionWork:
    """The work of a run: per storage the checkpoints and other files to delete. Raises NotFound.

    The processes of unfinished checkpoints are gone, or the service refuses their reports.
    """
    row = (
        await conn.execute(
            sa.select(
                deletions,
                tasks.c.state,
                experiments.c.config["checkpoint_storage"].label("storage"),
                experiments.c.state.label("experiment_state"),
            )
            .join(tasks, tasks.c.id == d.task_id)
            .outerjoin(experiments, experiments.c.id == d.experiment_id)
            .where(d.id == deletion_id)
        )
    ).first()
    if row is None:
        raise NotFound(f"deletion {deletion_id} does not exist")
    cluster_id = str(settings.cluster_id)
    unfinished_of: str | None = None
    discard: list[str] = []
    storage = row.storage
    if row.kind == NOTEBOOKS:
        storage = settings.checkpoint_storage
        marked = await conn.execute(_MARKED_NOTEBOOKS, {"mark": str(deletion_id)})
        discard = [notebook_key(cluster_id, task_id) for task_id in marked.scalars()]
    if row.experiment_id is not None:
        unfinished_of = f"{cluster_id}.{row.experiment_id}."
        if row.kind in (EXPERIMENT_WHOLE, TENSORBOARD):
            discard = [f"{cluster_id}/tensorboard/experiment/{row.experiment_id}"]
        if row.kind == EXPERIMENT_WHOLE:
            # Files that MLflow's clients have logged (determined_registry.mlflow.artifacts).
            discard.append(f"{cluster_id}/mlflow/experiment/{row.experiment_id}")
    places: dict[bytes, StorageDeletions] = {}

    def place(storage: dict[str, Any]) -> StorageDeletions:
        key = orjson.dumps(storage, option=orjson.OPT_SORT_KEYS)
        return places.setdefault(key, StorageDeletions(storage, [], unfinished_of, discard))

    if row.state == states.ACTIVE:
        if storage is not None:
            place(storage)
        for item in await conn.execute(_WORK, {"id": deletion_id}):
            place(item.storage or {}).checkpoints.append(str(item.uuid))
    return DeletionWork(
        kind=row.kind,
        state=SHOWN_STATE[row.state],
        experiment_id=row.experiment_id,
        experiment_has_ended=row.experiment_state in states.ENDED,
        globs=row.globs,
        places=list(places.values()),
        task_id=row.task_id,
    )


async def note_deleted(
    change: Change, deletion_id: int, left: Mapping[UUID, Mapping[str, int]]
) -> None:
    """Files are gone: by checkpoint, the resources that are left. May be repeated. Raises NotFound.

    A checkpoint that another deletion has marked since stays marked.
    """
    deletion = await _lock(change, deletion_id)
    await lock_users(change.conn, *left, owners=True)
    found = await change.conn.execute(
        sa.select(c.uuid, c.state, c.resources, c.experiment_id, c.deletion_id)
        .where(c.uuid.in_(left))
        .order_by(c.uuid)
        .with_for_update()
    )
    for row in list(found):
        values = values_of(row, left[row.uuid], looked=deletion.globs == [])
        if values["state"] == "DELETED":
            values |= {"checksums": {}, "executable": []}
        # Another deletion, which was requested since, has its part still to do.
        is_last = row.deletion_id in (None, deletion_id)
        if is_last:
            values["deletion_id"] = None
        await change.conn.execute(sa.update(checkpoints).where(c.uuid == row.uuid).values(values))
        if is_last and values["state"] == "COMPLETED":
            await change.conn.execute(_LATEST_AGAIN, {"uuid": row.uuid})
        change.notify(topics.experiment(row.experiment_id))
    await run_records.seen(change.conn, run_records.DELETION, deletion_id)


# Its globs matched nothing, so the row stays as it was.
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
    if row.state != states.ACTIVE:
        return
    if error is not None:
        await _fail(change, row, error)
        return
    left = await change.conn.execute(sa.select(c.uuid).where(c.deletion_id == deletion_id).limit(1))
    if left.first() is not None:
        raise Conflict(f"deletion {deletion_id} still has checkpoints to delete")
    await transition(change, TASK, row.task_id, states.COMPLETED, reason=None)
    await _ended(change, row.id)


async def _fail(change: Change, row: sa.Row[Any], reason: str) -> None:
    """Give the locked deletion up; its experiment, if any, gets the reason."""
    await transition(change, TASK, row.task_id, states.ERROR, reason=reason)
    if row.kind == NOTEBOOKS:
        # The files still exist, and may be deleted later.
        await change.conn.execute(_UNMARK_NOTEBOOKS, {"mark": str(row.id)})
    if row.kind == EXPERIMENT_WHOLE:
        await transition(change, EXPERIMENT, row.experiment_id, states.DELETE_FAILED, reason=reason)
    await _ended(change, row.id)


async def _ended(change: Change, deletion_id: int) -> None:
    await run_records.ended(change, run_records.DELETION, deletion_id)
    change.notify(topics.DELETIONS)


async def forget_old(conn: AsyncConnection) -> None:
    """Forgets deletions that ended long ago; one of an experiment is kept as long as the experiment."""
    await conn.execute(_FORGET, {"days": FORGET_DAYS})


FORGET_DAYS = 7
_FORGET = sa.text(
    """
    WITH gone AS (
        DELETE FROM tasks k USING deletions d
        WHERE d.task_id = k.id AND d.experiment_id IS NULL AND k.state = 'COMPLETED'
          AND k.end_time < now() - make_interval(days => :days)
        RETURNING k.id
    )
    DELETE FROM task_logs l USING gone WHERE l.task_id = gone.id
    """
)


async def known_checkpoints(conn: AsyncConnection, uuids: Iterable[UUID]) -> set[UUID]:
    """The uuids of ``uuids`` that have rows, in any state."""
    found = await conn.execute(sa.select(c.uuid).where(c.uuid.in_(list(uuids))))
    return set(found.scalars())
