"""Unmanaged experiments: their processes run outside of the platform and report by themselves.

A script creates experiment and trial (or finds them again by names of its own, the external ids), says
that it starts, reports like any training, gives a sign of life every minute, and says how it ends. There are
no allocations, no search is driven and nothing is told to Prefect. The experiment's state follows its
trials: ACTIVE while one is, then COMPLETED when one has completed, else ERROR or CANCELED.
"""

from __future__ import annotations

import uuid
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from determined.common.cluster_config import Quotas
from determined_registry.database.tables import experiments, searches, tasks, trials
from determined_service.access.principal import Principal, RunRef
from determined_service.base import topics
from determined_service.base.db import Database, as_asker, hold_name
from determined_service.base.errors import BadRequest, Conflict, NotFound
from determined_service.lifecycle.places import FIRST_PLACE, Place, hold
from determined_service.lifecycle.quotas import require_room
from determined_service.state import states
from determined_service.state.change import Change, changing, reader
from determined_service.state.task_kinds import TRIAL

SILENT_S = 300.0
"""So long without a sign of life, and the trial's process is taken for dead."""
MLFLOW_SILENT_S = 24 * 3600.0
"""The same for runs of MLflow's clients, which give a sign of life only when they log something."""
SILENT = "no sign of life of its process for 5 minutes"
"""The reason of such a trial; a heartbeat after all brings it back."""

_LOCK_EXPERIMENT = sa.text(
    "SELECT id, state, unmanaged, config, owner_id FROM experiments WHERE id = :id FOR NO KEY UPDATE"
)
_LOCK_TRIAL = sa.text(
    """
    SELECT t.id, t.experiment_id, t.state, t.reason, t.run_count, t.latest_checkpoint,
           t.steps_completed,
           (SELECT e.owner_id FROM experiments e WHERE e.id = t.experiment_id) AS owner_id
    FROM trials t WHERE t.id = :id FOR NO KEY UPDATE
    """
)
_FIND = sa.text("SELECT id, unmanaged, state FROM experiments WHERE external_id = :external_id")
# Past the table of moves, as `continue` does: a script that starts again leads out of an end.
_START = sa.text(
    """
    UPDATE trials
    SET state = 'ACTIVE', reason = NULL, end_time = NULL, early_exit = NULL, seen_at = now(),
        run_count = run_count + 1, progress = CASE WHEN :resume THEN progress ELSE 0 END
    WHERE id = :id RETURNING run_count
    """
)
_LEG_ENDS = sa.text(
    """
    UPDATE legs l SET state = :state, reason = :reason, end_time = now()
    FROM trials t WHERE t.id = :id AND l.task_id = t.task_id AND l.end_time IS NULL
    """
)
_LEG_BEGINS = sa.text(
    """
    INSERT INTO legs (task_id, run_id, state, start_time)
    SELECT task_id, :run_id, 'RUNNING', now() FROM trials WHERE id = :id
    """
)
_RUNS = sa.text("SELECT run_count FROM trials WHERE id = :id FOR NO KEY UPDATE")
_SEEN = sa.text("UPDATE trials SET seen_at = now() WHERE id = :id")
_REVIVE = sa.text(
    """
    WITH leg AS (
        UPDATE legs l SET state = 'RUNNING', reason = NULL, end_time = NULL
        FROM trials t WHERE t.id = :id AND l.task_id = t.task_id AND l.run_id = t.run_count
    )
    UPDATE trials SET state = 'ACTIVE', reason = NULL, end_time = NULL, seen_at = now()
    WHERE id = :id
    """
)
_END = sa.text(
    """
    UPDATE trials
    SET state = :state, reason = :reason, end_time = now(),
        progress = CASE WHEN :state = 'COMPLETED' THEN 1.0 ELSE progress END
    WHERE id = :id
    """
)
_FOLLOW = sa.text(
    """
    UPDATE experiments e
    SET state = f.state,
        reason = CASE WHEN f.state = 'ACTIVE' THEN NULL
                      WHEN f.state = 'COMPLETED' THEN 'its trials have ended' ELSE f.reason END,
        end_time = CASE WHEN f.state = 'ACTIVE' THEN NULL ELSE coalesce(e.end_time, now()) END,
        progress = CASE WHEN f.state = 'COMPLETED' THEN 1.0 ELSE e.progress END,
        trials_asked_for = e.trials_asked_for + :new
    FROM (
        SELECT CASE WHEN bool_or(state = 'ACTIVE') THEN 'ACTIVE'
                    WHEN bool_or(state = 'COMPLETED') THEN 'COMPLETED'
                    WHEN bool_or(state = 'ERROR') THEN 'ERROR'
                    ELSE 'CANCELED' END AS state,
               (array_agg(reason ORDER BY end_time DESC NULLS LAST))[1] AS reason
        FROM trials WHERE experiment_id = :id HAVING count(*) > 0
    ) f
    WHERE e.id = :id AND e.state NOT IN ('DELETING', 'DELETE_FAILED')
    """
)
_CANCEL = sa.text(
    "UPDATE experiments SET state = 'CANCELED', reason = :reason, end_time = now() WHERE id = :id"
)
_ACTIVE = sa.text(
    "SELECT id FROM trials WHERE experiment_id = :id AND state = 'ACTIVE' ORDER BY id"
)
_SILENT = sa.text(
    """
    SELECT t.id, t.experiment_id FROM trials t JOIN experiments e ON e.id = t.experiment_id
    LEFT JOIN mlflow_runs m ON m.trial_id = t.id AND m.native
    WHERE e.unmanaged AND t.state = 'ACTIVE'
      AND t.seen_at < now() - make_interval(secs => CASE WHEN m.native THEN :mlflow_silent ELSE :silent END)
    ORDER BY t.id
    """
)
_STILL_SILENT = sa.text(
    """
    SELECT 1 FROM trials t LEFT JOIN mlflow_runs m ON m.trial_id = t.id AND m.native
    WHERE t.id = :id AND t.state = 'ACTIVE'
      AND t.seen_at < now() - make_interval(secs => CASE WHEN m.native THEN :mlflow_silent ELSE :silent END)
    """
)
_ABANDONED = """e.unmanaged AND e.state = 'ACTIVE'
      AND e.start_time < now() - make_interval(secs => :silent)
      AND NOT EXISTS (SELECT FROM trials t WHERE t.experiment_id = e.id)
      AND NOT EXISTS (SELECT FROM mlflow_experiments x WHERE x.experiment_id = e.id AND x.name IS NOT NULL)"""
_FIND_ABANDONED = sa.text(f"SELECT e.id FROM experiments e WHERE {_ABANDONED} ORDER BY e.id")
# Of the locked experiment: its first trial may have come meanwhile.
_END_ABANDONED = sa.text(
    f"""
    UPDATE experiments e
    SET state = 'ERROR', reason = 'its script has started no trial', end_time = now()
    WHERE e.id = :id AND {_ABANDONED}
    """
)
_TASK = sa.text(
    """
    SELECT NULL AS id, t.task_id, e.id AS experiment_id, t.id AS trial_id, t.state
    FROM trials t JOIN experiments e ON e.id = t.experiment_id
    WHERE e.unmanaged AND t.task_id = :task_id
    """
)


async def put_experiment(
    change: Change,
    config: dict[str, Any],
    original_config: str,
    owner_id: int,
    external_id: str | None,
    quotas: Quotas,
    place: Place = FIRST_PLACE,
    submitted_by: str | None = None,
) -> int:
    """The id of the experiment with the external id, of a new one when there is none.

    Raises Conflict when that one is being deleted, or is a managed one; OverQuota.
    """
    conn = change.conn
    if external_id is not None:
        # Two scripts that start at once make one experiment: the second waits here, then sees it.
        await hold_name(conn, f"experiment {external_id}")
        known = (await conn.execute(_FIND, {"external_id": external_id})).first()
        if known is not None:
            async with as_asker(conn):
                if (await conn.execute(_FIND, {"external_id": external_id})).first() is None:
                    raise Conflict(
                        f"externalExperimentId: {external_id!r} is taken: choose another name"
                    )
            if known.state in states.DELETION:
                raise Conflict(f"experiment {known.id} ({external_id!r}) is being deleted")
            return int(known.id)
    await hold(conn, place)
    found = await conn.execute(
        sa.insert(experiments)
        .values(
            state=states.ACTIVE,
            name=config["name"],
            description=config.get("description") or "",
            labels=list(config.get("labels") or []),
            config=config,
            original_config=original_config,
            owner_id=owner_id,
            submitted_by=submitted_by,
            project_id=place.project_id,
            unmanaged=True,
            external_id=external_id,
        )
        .returning(experiments.c.id)
    )
    experiment_id: int = found.scalar_one()
    await conn.execute(sa.insert(searches).values(experiment_id=experiment_id))
    change.notify(topics.experiment(experiment_id))
    await require_room(conn, quotas, owner_id, "experiments", "stored_experiments", "metric_bytes")
    return experiment_id


async def put_trial(
    change: Change,
    experiment_id: int,
    hparams: dict[str, Any],
    external_id: str | None,
    quotas: Quotas,
) -> int:
    """The id of the trial with the external id, of a new one when there is none.

    Raises NotFound, BadRequest for a managed experiment, Conflict for one that is being deleted, OverQuota.
    """
    row = await _lock_experiment(change, experiment_id)
    conn = change.conn
    if external_id is not None:
        known = await conn.execute(
            sa.select(trials.c.id).where(
                trials.c.experiment_id == experiment_id, trials.c.external_id == external_id
            )
        )
        trial_id = known.scalar_one_or_none()
        if trial_id is not None:
            return int(trial_id)
    seed = (row.config.get("reproducibility") or {}).get("experiment_seed") or 0
    request_id = str(uuid.uuid4())
    task_id = f"{experiment_id}.{request_id}"
    await conn.execute(sa.insert(tasks).values(id=task_id, kind=TRIAL, owner_id=row.owner_id))
    found = await conn.execute(
        sa.insert(trials)
        .values(
            experiment_id=experiment_id,
            request_id=request_id,
            task_id=task_id,
            state=states.ACTIVE,
            hparams=hparams,
            seed=seed,
            external_id=external_id,
            seen_at=sa.func.now(),
        )
        .returning(trials.c.id)
    )
    trial_id = found.scalar_one()
    await _follow(change, experiment_id, trial_id, new=1)
    counted = ("experiments", "trials", "stored_trials", "metric_bytes")
    await require_room(conn, quotas, row.owner_id, *counted)
    return int(trial_id)


async def start(change: Change, trial_id: int, resume: bool, quotas: Quotas) -> dict[str, Any]:
    """The trial's process starts, maybe again; ``v1StartTrialResponse``.

    Raises NotFound, BadRequest, Conflict as :func:`put_trial`.
    """
    row = await _lock_trial(change, trial_id)
    run = await change.conn.execute(_START, {"id": trial_id, "resume": resume})
    run_id = run.scalar_one()
    ended = {"id": trial_id, "state": "LOST", "reason": "its script has started again"}
    await change.conn.execute(_LEG_ENDS, ended)
    await change.conn.execute(_LEG_BEGINS, {"id": trial_id, "run_id": run_id})
    await _follow(change, row.experiment_id, trial_id)
    if row.state != states.ACTIVE:
        await require_room(change.conn, quotas, row.owner_id, "experiments", "trials")
    checkpoint = row.latest_checkpoint if resume else None
    return {
        "trialRunId": run_id,
        "latestCheckpoint": str(checkpoint) if checkpoint else None,
        "stepsCompleted": row.steps_completed if checkpoint else 0,
    }


async def heard_of(
    change: Change, trial_id: int, state: str | None, run: RunRef | None = None
) -> RunRef:
    """Record a sign of life, or the ``state`` that the process reports: ACTIVE, COMPLETED, ERROR, CANCELED.

    ``run``: the process' own; None: it does not say. Returns the trial's last one. Raises NotFound,
    BadRequest for a managed trial; Conflict when a user has ended the trial, or its script has started
    again, so that its process ends, too.
    """
    row = await _lock_trial(change, trial_id)
    if run is not None:
        run.require_last(row.run_count)
    last = RunRef(trial_id, row.run_count)
    if row.state == states.ACTIVE or row.reason == SILENT:
        if state in states.TERMINAL:
            assert state is not None
            words = {states.COMPLETED: "its script has ended", states.ERROR: "its script failed"}
            await _end(change, trial_id, state, words.get(state, "its script was canceled"))
        elif row.state == states.ACTIVE:
            await change.conn.execute(_SEEN, {"id": trial_id})
            return last
        else:
            await change.conn.execute(_REVIVE, {"id": trial_id})
        await _follow(change, row.experiment_id, trial_id)
    elif row.state == states.CANCELED and state not in states.TERMINAL:
        raise Conflict(f"trial {trial_id} has ended: {row.reason}")
    return last


async def reopen_or_end(change: Change, trial_id: int, state: str, quotas: Quotas) -> None:
    """Set the ``state`` of a run that an MLflow client reports: ACTIVE, COMPLETED, ERROR, CANCELED.

    Unlike a script of ours it may go on with what has ended, in the same run. Raises NotFound, BadRequest
    for a managed trial, OverQuota.
    """
    row = await _lock_trial(change, trial_id)
    reopens = False
    if state in states.TERMINAL:
        words = {states.COMPLETED: "its run has finished", states.ERROR: "its run failed"}
        await _end(change, trial_id, state, words.get(state, "its run was killed"))
    elif row.state == states.ACTIVE:
        await change.conn.execute(_SEEN, {"id": trial_id})
        return
    else:
        await change.conn.execute(_REVIVE, {"id": trial_id})
        reopens = True
    await _follow(change, row.experiment_id, trial_id)
    if reopens:
        await require_room(change.conn, quotas, row.owner_id, "experiments", "trials")


async def cancel(change: Change, experiment_id: int, reason: str) -> None:
    """Ends the locked experiment and its trials here; their processes hear of it by their heartbeats."""
    found = await change.conn.execute(_ACTIVE, {"id": experiment_id})
    ids = list(found.scalars())
    await end(change, experiment_id, ids, reason)
    state = await change.conn.execute(
        sa.select(experiments.c.state).where(experiments.c.id == experiment_id)
    )
    if ids or state.scalar_one() == states.ACTIVE:
        await change.conn.execute(_CANCEL, {"id": experiment_id, "reason": reason})
        change.notify(topics.experiment(experiment_id))


async def end(change: Change, experiment_id: int, trial_ids: list[int], reason: str) -> None:
    """Cancels trials of the locked experiment."""
    for trial_id in trial_ids:
        await _end(change, trial_id, states.CANCELED, reason)
    await _follow(change, experiment_id, *trial_ids)


async def give_up_silent(db: Database, silent_s: float = SILENT_S) -> list[int]:
    """Trials without a sign of life for that long, now in error; experiments without a trial, too."""
    async with reader(db).connect() as conn:
        given = {"silent": silent_s, "mlflow_silent": max(silent_s, MLFLOW_SILENT_S)}
        found = list(await conn.execute(_SILENT, given))
        abandoned = list((await conn.execute(_FIND_ABANDONED, {"silent": silent_s})).scalars())
    for experiment_id in abandoned:
        async with changing(db) as change:
            await change.conn.execute(_LOCK_EXPERIMENT, {"id": experiment_id})
            await change.conn.execute(_END_ABANDONED, {"id": experiment_id, "silent": silent_s})
    given_up = []
    for row in found:
        async with changing(db) as change:
            await _lock_experiment(change, row.experiment_id)
            still = await change.conn.execute(_STILL_SILENT, {"id": row.id, **given})
            if still.first() is None:
                continue
            await _end(change, row.id, states.ERROR, SILENT)
            await _follow(change, row.experiment_id, row.id)
        given_up.append(row.id)
    return given_up


async def find_sender(
    conn: AsyncConnection, task_id: str, principal: Principal
) -> sa.Row[Any] | None:
    """The unmanaged trial of a task: what a report of a checkpoint needs of its sender.

    Raises Conflict when that is not the trial's last run; until the transaction ends no other begins.
    """
    row = (await conn.execute(_TASK, {"task_id": task_id})).first()
    run = None if row is None else principal.run_of(row.trial_id)
    if run is not None:
        run.require_last((await conn.execute(_RUNS, {"id": run.trial_id})).scalar_one())
    return row


async def _lock_experiment(change: Change, experiment_id: int) -> sa.Row[Any]:
    row = (await change.conn.execute(_LOCK_EXPERIMENT, {"id": experiment_id})).first()
    if row is None:
        raise NotFound(f"experiment {experiment_id} does not exist")
    if not row.unmanaged:
        raise BadRequest(
            f"experiment {experiment_id} is not unmanaged: the cluster runs its trials"
        )
    if row.state in states.DELETION:
        raise Conflict(f"experiment {experiment_id} is being deleted")
    return row


async def _lock_trial(change: Change, trial_id: int) -> sa.Row[Any]:
    found = await change.conn.execute(
        sa.select(trials.c.experiment_id).where(trials.c.id == trial_id)
    )
    experiment_id = found.scalar_one_or_none()
    if experiment_id is None:
        raise NotFound(f"trial {trial_id} does not exist")
    await _lock_experiment(change, experiment_id)
    return (await change.conn.execute(_LOCK_TRIAL, {"id": trial_id})).one()


async def _end(change: Change, trial_id: int, state: str, reason: str) -> None:
    await change.conn.execute(_END, {"id": trial_id, "state": state, "reason": reason})
    outcome = "LOST" if reason == SILENT else state
    await change.conn.execute(_LEG_ENDS, {"id": trial_id, "state": outcome, "reason": reason})


async def _follow(change: Change, experiment_id: int, *trial_ids: int, new: int = 0) -> None:
    """Derive the experiment's state from those of its trials, of which ``new`` have just been added."""
    await change.conn.execute(_FOLLOW, {"id": experiment_id, "new": new})
    change.notify(
        topics.experiment(experiment_id), *(topics.trial(trial_id) for trial_id in trial_ids)
    )
