"""Explains an experiment in words: how each leg ended, and what the experiment waits for.

Reads only. Why a request has no slots is what the scheduler itself answers, decided for a snapshot
of this moment and put into words by :func:`~.wording.in_words`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from determined.common.wire.times import UNMANAGED_HEARTBEAT_S
from determined_registry.database.tables import allocations, experiments, legs, searches, trials
from determined_service.base.db import Database, seeing
from determined_service.base.errors import NotFound
from determined_service.lifecycle import unmanaged
from determined_service.scheduling.reading import SnapshotReader
from determined_service.scheduling.scheduler import Decision, Scheduler
from determined_service.scheduling.snapshot import Snapshot
from determined_service.scheduling.wording import in_words
from determined_service.state import nodes, run_records, states
from determined_service.state.change import reader
from determined_service.state.trial_tasks import TRIAL_TASKS
from determined_service.views.trials import legs_json
from determined_service.views.values import moment


async def explain(
    db: Database,
    conn: AsyncConnection,
    experiment_id: int,
    snapshots: SnapshotReader,
    limit: int | None = None,
) -> dict[str, Any]:
    """``{"legs": […], "waiting": […], "waitingTotal": n}``.

    ``limit``: the legs of so many trials, the newest, and so many of what waits, the first; None: all.

    Each leg has ``trialId``, ``runId``, ``state``, ``reason``, ``agentId``, ``slotIds``, ``exitCode``, its
    times and, of a gang, ``nodes``. What waits has ``trialId`` (null: the experiment itself), ``since``,
    ``reason`` in words, and where slots are wanted ``resourcePool``, ``slotsWanted``, ``slotsFree``.

    Raises NotFound.
    """
    row = (
        await conn.execute(
            sa.select(
                experiments.c.state,
                experiments.c.reason,
                experiments.c.start_time,
                experiments.c.unmanaged,
                run_records.r.flow_run_id,
                run_records.r.seen_at,
                searches.c.driver,
                sa.extract("epoch", sa.func.now() - run_records.r.seen_at).label("silent_s"),
            )
            .outerjoin(searches, searches.c.experiment_id == experiments.c.id)
            .outerjoin(run_records.kept_runs, experiments.c.id == run_records.EXPERIMENT)
            .where(experiments.c.id == experiment_id)
        )
    ).first()
    if row is None:
        raise NotFound(f"experiment {experiment_id} does not exist")
    waiting = _of_experiment(row)
    if row.unmanaged:
        more, total = await _of_scripts(conn, experiment_id, limit)
    else:
        more, total = await _of_trials(db, conn, experiment_id, snapshots, limit)
    return {
        "legs": await _legs(conn, experiment_id, limit),
        "waiting": waiting + more,
        "waitingTotal": len(waiting) + total,
    }


async def _legs(
    conn: AsyncConnection, experiment_id: int, limit: int | None
) -> list[dict[str, Any]]:
    a = allocations.c
    newest = (
        sa.select(trials.c.id)
        .where(trials.c.experiment_id == experiment_id)
        .order_by(trials.c.id.desc())
        .limit(limit)
        .subquery()
    )
    found = await conn.execute(
        sa.select(
            legs,
            trials.c.id.label("trial_id"),
            a.agent_id,
            a.slot_ids,
            a.machine,
            a.nodes,
            a.exit_code,
        )
        .join(TRIAL_TASKS, TRIAL_TASKS.c.task_id == legs.c.task_id)
        .join(trials, trials.c.id == TRIAL_TASKS.c.trial_id)
        .outerjoin(allocations, a.id == legs.c.allocation_id)
        .where(
            trials.c.experiment_id == experiment_id
            if limit is None
            else trials.c.id.in_(sa.select(newest.c.id))
        )
        .order_by(trials.c.id, legs.c.run_id)
    )
    rows = found.all()
    told = await legs_json(conn, rows)
    return [{"trialId": row.trial_id, **leg} for row, leg in zip(rows, told, strict=True)]


def _waits(trial_id: int | None, since: Any, reason: str, **more: Any) -> dict[str, Any]:
    return {"trialId": trial_id, "since": moment(since), "reason": reason, **more}


def _of_experiment(row: sa.Row[Any]) -> list[dict[str, Any]]:
    if row.state == states.PAUSED:
        return [_waits(None, None, row.reason or "it was created paused")]
    if row.state != states.ACTIVE or row.unmanaged:
        return []
    if row.driver is None:
        if row.flow_run_id is None:
            return [_waits(None, row.start_time, "Prefect has not been given its run yet")]
        reason = "no flow drives its search yet: its run waits in Prefect for an agent to start it"
        return [_waits(None, row.start_time, reason)]
    if row.silent_s > run_records.QUIET_S:
        reason = (
            f"the flow that drives its search has not been heard of for {row.silent_s:.0f} s;"
            " running trials go on, but the searcher decides nothing"
        )
        return [_waits(None, row.seen_at, reason)]
    return []


_TRIALS = sa.text(
    """
    SELECT w.*,
           coalesce((SELECT json_agg(json_build_object('agent', r.agent_id, 'state', r.state,
                                                       'address', r.address,
                                                       'waits_for', r.waits_for) ORDER BY r.node)
                     FROM allocation_resources r WHERE r.allocation_id = w.id AND w.nodes > 1), '[]') AS gang,
           (SELECT f.trial_id FROM allocations f
            WHERE f.id = w.stopped_for AND f.id <> w.id) AS stopping_for,
           greatest(
               (SELECT max(l.end_time) FROM legs l WHERE l.task_id = w.task_id),
               (SELECT max(l.end_time) FROM tasks k JOIN legs l ON l.task_id = k.id
                WHERE k.former_of = w.trial_id)) AS last_end
    FROM (
        SELECT t.id AS trial_id, t.task_id, a.id, a.state, a.agent_id, a.requested_at,
               a.assigned_at, a.resource_pool, a.slots, a.preempt_requested_at, a.kill_requested_at,
               a.stopping_for AS stopped_for, a.nodes, a.waits_for, count(*) OVER () AS total
        FROM trials t LEFT JOIN allocations a ON a.task_id = t.task_id AND a.state <> 'TERMINATED'
        WHERE t.experiment_id = :id AND t.state NOT IN ('COMPLETED', 'CANCELED', 'ERROR')
          AND CASE WHEN a.id IS NULL THEN t.op_complete AND NOT t.closed
                   ELSE a.state <> 'RUNNING' OR a.preempt_requested_at IS NOT NULL
                        OR a.kill_requested_at IS NOT NULL
                        OR a.nodes > 1 AND EXISTS (
                            SELECT FROM allocation_resources r WHERE r.allocation_id = a.id
                            AND (r.state = 'TERMINATED' OR r.address IS NULL)) END
        ORDER BY t.id LIMIT :limit
    ) w
    ORDER BY w.trial_id
    """
)


_SCRIPTS = sa.text(
    """
    SELECT id, seen_at, count(*) OVER () AS total FROM trials
    WHERE experiment_id = :id AND state = 'ACTIVE'
      AND seen_at < now() - make_interval(secs => :quiet)
    ORDER BY id LIMIT :limit
    """
)


async def _of_scripts(
    conn: AsyncConnection, experiment_id: int, limit: int | None
) -> tuple[list[dict[str, Any]], int]:
    """Unmanaged trials wait only for their scripts, when these have been silent. Also how many do."""
    given = {"id": experiment_id, "quiet": 1.5 * UNMANAGED_HEARTBEAT_S, "limit": limit}
    reason = (
        "its script has sent no heartbeat, though one is due every minute: the trial is set to ERROR "
        f"after {unmanaged.SILENT_S / 60:.0f} minutes without a heartbeat"
    )
    rows = list(await conn.execute(_SCRIPTS, given))
    total = rows[0].total if rows else 0
    return [_waits(row.id, row.seen_at, reason) for row in rows], total


async def _of_trials(
    db: Database,
    conn: AsyncConnection,
    experiment_id: int,
    snapshots: SnapshotReader,
    limit: int | None,
) -> tuple[list[dict[str, Any]], int]:
    found = []
    rows = list(await conn.execute(_TRIALS, {"id": experiment_id, "limit": limit}))
    queued = [row.id for row in rows if row.state == states.REQUESTED]
    why, free_in = dict[str, str](), dict[str, int]()
    if queued:
        # What others want counts too, and the snapshot's parts are kept for all readers.
        with seeing(None):
            async with reader(db).connect() as wide:
                snapshot = await snapshots.read(wide)
        decision = await snapshots.schedulers.decide_beside(snapshot)
        why = _why(decision, queued)
        pools = {row.resource_pool for row in rows if row.state == states.REQUESTED}
        free_in = {pool: free_slots(snapshot, pool) for pool in pools}
    for row in rows:
        if row.state == states.REQUESTED:
            found.append(
                _waits(
                    row.trial_id,
                    row.requested_at,
                    why[row.id],
                    resourcePool=row.resource_pool,
                    slotsWanted=row.slots,
                    slotsFree=free_in[row.resource_pool],
                )
            )
        elif row.kill_requested_at is not None:
            names = _named(row, "RUNNING", "ASSIGNED")
            reason = f"its process is being killed by {names}"
            found.append(_waits(row.trial_id, row.kill_requested_at, reason))
        elif row.preempt_requested_at is not None:
            whom = f", so that trial {row.stopping_for} gets its slots" if row.stopping_for else ""
            reason = (
                f"its process was asked to save a checkpoint and exit{whom}, and has not exited yet"
            )
            found.append(_waits(row.trial_id, row.preempt_requested_at, reason))
        elif row.state == states.ASSIGNED:
            found.append(_waits(row.trial_id, row.assigned_at, _starting(row)))
        elif row.state == states.RUNNING and (late := _late(row)) is not None:
            found.append(_waits(row.trial_id, row.assigned_at, late))
        else:
            reason = (
                "it has trained as far as it was asked to: the searcher decides whether it goes on"
            )
            found.append(_waits(row.trial_id, row.last_end, reason))
    return found, rows[0].total if rows else 0


def _named(row: sa.Row[Any], *states_: str) -> str:
    """The trial's agent, or those of its gang whose nodes are in one of the states."""
    names = [one["agent"] for one in row.gang if one["state"] in states_] or [row.agent_id]
    return nodes.agents_in_words(names, len(names))


def _starting(row: sa.Row[Any]) -> str:
    """What an accepted leg waits for, as its agents say, in words."""
    alone = {"agent": row.agent_id, "waits_for": row.waits_for}
    waits = [
        f"agent {one['agent']} cannot start it yet: {one['waits_for']}"
        for one in row.gang or [alone]
        if one["waits_for"] is not None
    ]
    if waits:
        return "; ".join(waits)
    names = _named(row, "ASSIGNED")
    several = names.startswith("agents ")
    return f"{names} {'are' if several else 'is'} starting its process{'es' if several else ''}"


def _late(row: sa.Row[Any]) -> str | None:
    """Whom a gang waits for that has begun on some of its agents, in words."""
    failed = [one["agent"] for one in row.gang if one["state"] == states.TERMINATED]
    left = [one["agent"] for one in row.gang if one["state"] != states.TERMINATED]
    if failed:
        of = nodes.agents_in_words(failed, len(failed))
        others = nodes.agents_in_words(left, len(left))
        return f"its process on {of} has ended, and the leg ends when that on {others} has"
    missing = [one["agent"] for one in row.gang if one["address"] is None]
    if not missing:
        return None
    names = nodes.agents_in_words(missing, len(missing))
    return f"its processes meet; not there yet: that on {names}"


def why_queued(
    scheduler: Scheduler, snapshot: Snapshot, allocation_ids: Iterable[str]
) -> dict[str, str]:
    """Why these allocations have no slots, by their ids."""
    return _why(scheduler.decide(snapshot), allocation_ids)


def _why(decision: Decision, allocation_ids: Iterable[str]) -> dict[str, str]:
    found = dict.fromkeys(allocation_ids, "it is being given slots now")
    for one in decision.waiting:
        if one.request.id in found:
            found[one.request.id] = in_words(one)
    return found


def free_slots(snapshot: Snapshot, pool: str) -> int:
    """Slots of ``pool`` that nobody holds, on agents that may be given work."""
    return sum(len(agent.free()) for agent in snapshot.agents if agent.pool == pool)
