"""Ends or restarts everything that would otherwise stay stuck. Every pass may run twice.

* agents without a sign of life: their legs end as lost;
* processes that do not exit in time after a preemption, or linger after calling their hyperparameters
  invalid: killed;
* experiments of pipelines that were cancelled by a process that died: killed;
* allocations that their agent does not start: they go back into the queue;
* agents that are gone for a week: forgotten;
* experiments whose pool has no slots for them: they go to a fallback pool;
* unmanaged trials without a heartbeat: set to ERROR;
* deletions that ended a week ago: forgotten;
* workspaces and projects that are being deleted: what is in them goes (`loops.places`);
* runs that a user cancels in Prefect's UI, or that are stuck there (`prefect.watch`);
* runs that wait for slots: Prefect is told why (`prefect.waiting_runs`).
"""

from __future__ import annotations

import datetime
import logging
import time
from typing import Any

import sqlalchemy as sa

from determined.common.wire.times import UNMANAGED_HEARTBEAT_S
from determined_service.base.db import Database
from determined_service.deleting import deletions
from determined_service.lifecycle import allocations as allocating
from determined_service.lifecycle import experiments as experimenting
from determined_service.lifecycle import gone_agents, idle, task_files, trial_queue, unmanaged
from determined_service.lifecycle.exits import ExitKind, LegExit, wait_after_losses
from determined_service.lifecycle.kinds.table import launched_kinds
from determined_service.lifecycle.legs import end_leg
from determined_service.loops import places
from determined_service.pipelines import people as pipelines
from determined_service.prefect.gateway import Gateway
from determined_service.prefect.waiting_runs import WaitingRuns
from determined_service.prefect.watch import PrefectWatch
from determined_service.scheduling.fallback import fall_back
from determined_service.scheduling.pools import PoolSchedulers
from determined_service.scheduling.queue import Queue
from determined_service.scheduling.reading import SnapshotReader
from determined_service.state import presence, states
from determined_service.state.change import changing, reader
from determined_service.state.nodes import NODES
from determined_service.state.prefect_states import TASK_ENTITY

logger = logging.getLogger(__name__)

PASS_S = 5.0
GAP_S = 0.5
"""Least time between two passes, however often something is announced."""
PREEMPTION_TIMEOUT_S = 3600
MOST_PREEMPTION_TIMEOUT_S = 100 * 365 * 86400
"""Experiments of earlier releases may hold more than an interval of Postgres' does: one such row would end
every pass."""
INVALID_HP_GRACE_S = 10.0
FORGET_S = 600.0
FORGET_AGENTS_S = 7 * 86400.0

_TO_KILL = sa.text(
    """
    SELECT a.id FROM allocations a
    JOIN tasks k ON k.id = a.task_id
    LEFT JOIN trials t ON t.task_id = k.id LEFT JOIN experiments e ON e.id = t.experiment_id
    WHERE a.state IN ('ASSIGNED', 'RUNNING') AND a.kill_requested_at IS NULL
      AND a.preempt_requested_at IS NOT NULL
      AND a.preempt_requested_at + make_interval(secs => least(:most, coalesce(
            (coalesce(k.config, e.config) ->> 'preemption_timeout')::numeric, :default))::float8) < now()
    ORDER BY a.id
    """
)
_INVALID = sa.text(
    """
    SELECT a.id FROM allocations a JOIN trials t ON t.task_id = a.task_id
    WHERE a.state IN ('ASSIGNED', 'RUNNING') AND a.kill_requested_at IS NULL
      AND t.early_exit IN ('INVALID_HP', 'INIT_INVALID_HP')
    ORDER BY a.id
    """
)
_UNSTARTED = sa.text(
    f"""
    SELECT n.id, n.node, n.agent_id, n.waits_for,
           extract(epoch FROM now() - n.assigned_at)::float8 AS waited_s,
           g.away IS NOT DISTINCT FROM '{presence.ENDED}' AS agent_ended
    FROM {NODES} AS n LEFT JOIN agents g ON g.id = n.agent_id
    WHERE n.state = 'ASSIGNED'
      AND (g.away = '{presence.ENDED}' OR n.assigned_at < now() - make_interval(secs => :timeout))
    ORDER BY n.id, n.node
    """
)
_QUIETLY_STOPPING = sa.text(
    """
    SELECT e.id FROM experiments e
    WHERE e.state LIKE 'STOPPING%' AND NOT EXISTS (
        SELECT FROM allocations a WHERE a.experiment_id = e.id AND a.state <> 'TERMINATED')
    """
)
# Trials that wait after the platform has lost several legs (exits.LOST_WAITS_S). No other change leaves a
# trial in this state; if one did, the experiment would wait for ever.
_STRANDED = sa.text(
    """
    SELECT t.id, t.task_id, t.experiment_id, t.op_complete, t.closed, e.config -> 'searcher' AS searcher
    FROM trials t JOIN experiments e ON e.id = t.experiment_id
    WHERE t.state = 'ACTIVE' AND e.state = 'ACTIVE' AND NOT e.unmanaged AND NOT EXISTS (
        SELECT FROM allocations a WHERE a.task_id = t.task_id AND a.state <> 'TERMINATED')
    """
)
_DROP_ORPHANS = sa.text(
    f"""
    DELETE FROM prefect_outbox o
    USING tasks k LEFT JOIN trials t ON t.task_id = k.id
                  LEFT JOIN experiments e ON e.id = t.experiment_id
    WHERE o.entity = '{TASK_ENTITY}' || k.id AND k.flow_run_id IS NULL
      AND coalesce(k.end_time, e.end_time) < now() - make_interval(secs => :forget)
    """
)


class Reconciler:
    """One per cluster (the leader's). ``gateway`` None: without Prefect.

    ``start_timeout_s``: seconds within which an agent must start its assignments. ``stuck_run_s``: how long a
    run may be Cancelling or Pending in Prefect. ``schedulers``: who says why a request waits.
    """

    def __init__(
        self,
        db: Database,
        gateway: Gateway | None,
        agent_timeout_s: float,
        *,
        start_timeout_s: float = 300.0,
        stuck_run_s: float = 300.0,
        schedulers: PoolSchedulers | None = None,
    ) -> None:
        self._db = db
        self._start_timeout_s = start_timeout_s
        self._schedulers = schedulers or PoolSchedulers()
        self._watch: PrefectWatch | None = None
        if gateway is not None:
            snapshots = SnapshotReader(self._schedulers, agent_timeout_s)
            self._watch = PrefectWatch(db, gateway, stuck_run_s, snapshots)
            self._waiting_runs = WaitingRuns(db, gateway, Queue(db, snapshots))
        self._agent_timeout_s = agent_timeout_s
        self._began = time.monotonic()
        self._invalid_since: dict[str, float] = {}
        self._warned: set[tuple[str, datetime.datetime]] = set()

    async def run_pass(self) -> None:
        """Looks at everything once."""
        await self._end_lost_agents()
        await self._end_unstarted()
        await self._fall_back()
        await self._kill_overdue()
        await self._kill_invalid()
        await self._finish_stuck()
        await self._give_up_unmanaged()
        await self._end_idle()
        async with self._db.tx() as conn:
            await task_files.drop_old(conn)
            await deletions.forget_old(conn)
        await pipelines.stop_all(self._db)
        await places.remove(self._db)
        if self._watch is not None:
            await self._watch.look()
            await self._waiting_runs.look()

    async def _end_lost_agents(self) -> None:
        # Agents could not show themselves while no service ran.
        if time.monotonic() - self._began < self._agent_timeout_s:
            return
        for lost in await gone_agents.end_lost(
            self._db, self._agent_timeout_s, self._schedulers.cluster.reconnect_waits()
        ):
            logger.warning("allocation %s ended: its agent is lost", lost)
        for gone in await gone_agents.forget(self._db, FORGET_AGENTS_S):
            logger.info("agent %s is forgotten: nothing was heard of it for a week", gone)

    async def _give_up_unmanaged(self) -> None:
        # Their processes could not show themselves while no service ran.
        if time.monotonic() - self._began < UNMANAGED_HEARTBEAT_S:
            return
        for trial_id in await unmanaged.give_up_silent(self._db):
            logger.warning("unmanaged trial %s ended: %s", trial_id, unmanaged.SILENT)

    async def _end_idle(self) -> None:
        # No use could be reported while no service ran.
        if time.monotonic() - self._began < self._agent_timeout_s:
            return
        async with reader(self._db).connect() as conn:
            found = await idle.idle_tasks(conn, list(launched_kinds()))
        self._warned &= {(row.id, row.idle_since) for row in found}
        for row in found:
            async with changing(self._db) as change:
                if row.idle_s >= row.idle_timeout_s:
                    if await idle.end_if_idle(change, row):
                        logger.info("task %s ends: nobody uses it", row.id)
                elif (row.id, row.idle_since) not in self._warned:
                    await idle.warn(change, row)
                    self._warned.add((row.id, row.idle_since))

    async def _end_unstarted(self) -> None:
        early = time.monotonic() - self._began < self._agent_timeout_s
        for row in await self._select(_UNSTARTED, timeout=self._start_timeout_s):
            reason = f"agent {row.agent_id} did not start it within {row.waited_s:.0f} s"
            if row.waits_for is not None:
                reason += f": {row.waits_for}"
            if row.agent_ended:
                reason = f"agent {row.agent_id} ended before it started it"
            elif early:  # Agents could start nothing while no service told them to.
                continue
            logger.warning("allocation %s goes back into the queue: %s", row.id, reason)
            async with changing(self._db) as change:
                # Its agent is told to kill it, should it be about to start it.
                await end_leg(
                    change,
                    row.id,
                    LegExit(ExitKind.INFRASTRUCTURE, reason=reason),
                    node=row.node,
                    only_in=states.ASSIGNED,
                )

    async def _fall_back(self) -> None:
        # Agents could not show themselves while no service ran.
        if time.monotonic() - self._began < self._agent_timeout_s:
            return
        await fall_back(self._db, self._schedulers, self._agent_timeout_s)

    async def _select(self, statement: sa.Executable, **parameters: Any) -> list[sa.Row[Any]]:
        async with reader(self._db).connect() as conn:
            return list(await conn.execute(statement, parameters))

    async def _kill_overdue(self) -> None:
        rows = await self._select(
            _TO_KILL, default=PREEMPTION_TIMEOUT_S, most=MOST_PREEMPTION_TIMEOUT_S
        )
        for row in rows:
            logger.warning("allocation %s did not exit in time after its preemption", row.id)
            async with changing(self._db) as change:
                await allocating.kill(change, row.id)

    async def _kill_invalid(self) -> None:
        now = time.monotonic()
        found = {row.id for row in await self._select(_INVALID)}
        self._invalid_since = {key: self._invalid_since.get(key, now) for key in found}
        for key, since in self._invalid_since.items():
            if now - since >= INVALID_HP_GRACE_S:
                async with changing(self._db) as change:
                    await allocating.kill(change, key)

    async def _finish_stuck(self) -> None:
        for row in await self._select(_QUIETLY_STOPPING):
            async with changing(self._db) as change:
                experiment = await experimenting.lock_experiment(change, row.id)
                await experimenting.finish_if_quiet(change, row.id, experiment.state)
        for row in await self._select(_STRANDED):
            reports = trial_queue.is_reports_form(row.searcher)
            if trial_queue.wants_slots(reports, row.op_complete, row.closed):
                await self._queue_again(row)
        async with reader(self._db).connect() as conn:
            await conn.execute(_DROP_ORPHANS, {"forget": FORGET_S})

    async def _queue_again(self, row: sa.Row[Any]) -> None:
        async with changing(self._db) as change:
            await experimenting.lock_experiment(change, row.experiment_id)
            trials = await experimenting.live_trials(change, row.experiment_id)
            active = {trial.id for trial in trials if trial.state == states.ACTIVE}
            live = await allocating.live_of_task(change, row.task_id)
            if live is not None or row.id not in active:
                return
            lost, ended_s = await trial_queue.lost_legs(change.conn, row.task_id)
            if ended_s < wait_after_losses(lost):
                return
            if not wait_after_losses(lost):
                logger.warning("trial %s had no place in the queue: it queues again", row.id)
            await trial_queue.request(change, [row.id])
