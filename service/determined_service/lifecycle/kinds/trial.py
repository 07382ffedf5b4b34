"""A trial: its experiment's code, one leg after the other, until its searcher is done with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from determined.common.wire.legs import ExitKind
from determined_registry.database.tables import trials
from determined_searchers import ExitReason
from determined_service.base import pages, topics
from determined_service.base.errors import NotFound
from determined_service.base.json import by_name
from determined_service.deleting.damage import checkpoint_facts
from determined_service.ingest import logs, missing_metric, past_target
from determined_service.lifecycle import experiments as experimenting
from determined_service.lifecycle import giving_up, log_actions, surroundings, trial_queue, unplaced
from determined_service.lifecycle import trials as trialing
from determined_service.lifecycle.exits import (
    ExitDecision,
    ExitFacts,
    LegExit,
    Next,
    decide_exit,
    wait_after_losses,
)
from determined_service.lifecycle.kinds.base import (
    CLOSED,
    MACHINE,
    WORKER_TYPE,
    LegEnd,
    SlotKind,
    TaskFacts,
    user_ports,
    variables_of,
)
from determined_service.lifecycle.trial_end import TrialIds, end_trial
from determined_service.state import prefect_states, states
from determined_service.state.change import Change
from determined_service.state.task_kinds import TRIAL as TRIAL_KIND

# A trial's former tasks have ended for good: their own rows say how.
_FACTS = sa.text(
    """
    SELECT x.task_id, x.id, x.state, x.reason, x.end_time, e.id AS experiment_id, e.name, e.project_id
    FROM (
        SELECT t.task_id, t.id, t.state, t.reason, t.end_time, t.experiment_id
        FROM trials t WHERE t.task_id = ANY(:ids)
        UNION ALL
        SELECT k.id, t.id, k.state, k.reason, k.end_time, t.experiment_id
        FROM tasks k JOIN trials t ON t.id = k.former_of WHERE k.id = ANY(:ids)
    ) x JOIN experiments e ON e.id = x.experiment_id
    """
)
_CONFIG = sa.text(
    """
    SELECT coalesce(k.config, e.config)
    FROM tasks k JOIN trials t ON t.id = k.former_of OR t.task_id = k.id
    JOIN experiments e ON e.id = t.experiment_id WHERE k.id = :id
    """
)
_IDS = sa.text(
    """
    SELECT t.id, t.experiment_id, k.former_of IS NOT NULL AS is_former
    FROM tasks k JOIN trials t ON t.id = k.former_of OR t.task_id = k.id WHERE k.id = :id
    """
)
_SPECS = sa.text(
    f"""
    SELECT a.id, a.task_id, t.experiment_id, t.id AS trial_id, a.run_id, a.resource_pool,
           a.nodes, coalesce(r.node, 0) AS node, coalesce(r.slot_ids, a.slot_ids) AS slot_ids,
           {MACHINE} AS machine, {CLOSED} AS closed,
           ARRAY(SELECT DISTINCT split_part(m.agent_id, '/', 2) FROM log_policy_matches m
                 WHERE m.trial_id = t.id AND m.action = 'exclude_node'
                   AND m.agent_id LIKE '%/%'
                   AND split_part(m.agent_id, '/', 1) = coalesce(r.agent_id, a.agent_id)
                 ORDER BY 1) AS avoid,
           a.token, a.agent_id, k.flow_run_id, t.hparams, t.seed,
           coalesce(t.latest_checkpoint, t.warm_start_checkpoint) AS checkpoint,
           -- Steps of a checkpoint of this trial; one taken from elsewhere starts from zero.
           CASE WHEN t.latest_checkpoint IS NULL THEN 0 ELSE coalesce(c.steps_completed, 0) END
               AS steps_completed,
           c.resources, c.checksums, c.storage,
           e.config, e.model_def_hash, u.username, u.admin AS is_administrator,
           coalesce(w.agent_user_group, u.agent_user_group) AS account,
           g.slot_type, {WORKER_TYPE} AS worker_type
    FROM allocations a
    JOIN tasks k ON k.id = a.task_id
    JOIN users u ON u.id = k.owner_id
    JOIN trials t ON t.task_id = k.id
    JOIN experiments e ON e.id = t.experiment_id
    JOIN projects p ON p.id = e.project_id
    JOIN workspaces w ON w.id = p.workspace_id
    LEFT JOIN allocation_resources r
        ON r.allocation_id = a.id AND r.agent_id = :agent_id AND a.nodes > 1
    LEFT JOIN agents g ON g.id = coalesce(r.agent_id, a.agent_id)
    LEFT JOIN checkpoints c ON c.uuid = coalesce(t.latest_checkpoint, t.warm_start_checkpoint)
    -- Without a token it has ended a moment ago.
    WHERE a.id = ANY(:ids) AND a.token IS NOT NULL
    """
)
# One statement locks in the order of the list after OF.
_LOCK = sa.text(
    """
    SELECT a.id, a.state, a.task_id, t.id AS trial_id, t.experiment_id, a.run_id, a.agent_id, a.nodes,
           a.resource_pool, a.started_at, a.preempt_requested_at, a.preempt_acked_at, a.kill_requested_at,
           a.stopping_for, a.leaving, a.start_id,
           (SELECT f.trial_id FROM allocations f WHERE f.id = a.stopping_for) AS stopping_for_trial,
           t.state AS trial_state, t.request_id, t.op_length, t.op_complete, t.closed, t.stop_requested,
           t.early_exit, t.restarts, e.state AS experiment_state,
           e.config -> 'searcher' AS searcher,
           coalesce((e.config ->> 'max_restarts')::int, 0) AS max_restarts
    FROM experiments e
    JOIN trials t ON t.experiment_id = e.id
    JOIN allocations a ON a.trial_id = t.id
    WHERE a.id = :id
    FOR NO KEY UPDATE OF e, t, a
    """
)


class TrialKind(SlotKind):
    """Its state is in ``trials``, its configuration and project in ``experiments``.

    A task that the trial had before its experiment was continued has ended as its own row says.
    """

    name = TRIAL_KIND
    order_rows = _SPECS

    async def facts(self, conn: AsyncConnection, task_ids: Sequence[str]) -> dict[str, TaskFacts]:
        found = await conn.execute(_FACTS, {"ids": list(task_ids)})
        return {
            row.task_id: TaskFacts(
                name=f"Trial {row.id} (Experiment {row.experiment_id}: {row.name})",
                state=row.state,
                reason=row.reason,
                end_time=row.end_time,
                project_id=row.project_id,
                topic=topics.trial(row.id),
                trial_id=row.id,
            )
            for row in found
        }

    async def config(self, conn: AsyncConnection, task_id: str) -> Mapping[str, Any] | None:
        """Its experiment's."""
        return (await conn.execute(_CONFIG, {"id": task_id})).scalar_one_or_none()

    async def hold(self, change: Change, task_id: str) -> None:
        """Locks the experiment: every change of a trial's state holds it."""
        trial = await self._find(change, task_id)
        await experimenting.lock_experiment(change, trial.experiment_id)

    async def kill(self, change: Change, task_id: str) -> None:
        """The search goes on without it."""
        trial = await self._find(change, task_id)
        if not trial.is_former:
            await trialing.kill(change, trial.id)

    async def _find(self, change: Change, task_id: str) -> sa.Row[Any]:
        row = (await change.conn.execute(_IDS, {"id": task_id})).first()
        if row is None:
            raise NotFound(f"task {task_id!r} does not exist")
        return row

    def order(self, row: sa.Row[Any]) -> dict[str, Any]:
        environment = row.config.get("environment") or {}
        return {
            "experiment_id": row.experiment_id,
            "trial_id": row.trial_id,
            "entrypoint": row.config.get("entrypoint"),
            "model_def_hash": row.model_def_hash,
            "config": {
                **row.config,
                "hyperparameters": by_name(row.config.get("hyperparameters") or {}),
            },
            "hparams": by_name(row.hparams),
            "trial_seed": row.seed,
            "latest_checkpoint": row.checkpoint and str(row.checkpoint),
            "steps_completed": row.steps_completed,
            "checkpoint": checkpoint_facts(row),
            "mlflow": pages.has_mlflow(),
            "environment_variables": variables_of(environment, row.slot_type or "cpu"),
            "ports": user_ports(environment),
            "avoid": row.avoid,
        }

    async def started(self, change: Change, leg: sa.Row[Any]) -> None:
        change.notify(topics.trial(leg.trial_id), topics.experiment(leg.experiment_id))
        if leg.run_id == 1:
            # At the top of its log, as the process has hardly begun.
            for words in await surroundings.remarks_on_trial(
                change.conn, leg.experiment_id, leg.resource_pool
            ):
                await logs.add_line(change.conn, leg.task_id, leg.id, words, "WARNING")

    async def lock_leg(self, change: Change, allocation_id: str) -> sa.Row[Any] | None:
        """Its experiment, itself, the allocation: as everywhere."""
        return (await change.conn.execute(_LOCK, {"id": allocation_id})).first()

    async def judge(self, change: Change, leg: sa.Row[Any], exit: LegExit) -> LegEnd:
        """By :func:`~determined_service.lifecycle.exits.decide_exit`."""
        ended = exit
        if exit.failed and exit.reason:
            about = await surroundings.of_failure(
                change.conn, leg.experiment_id, leg.resource_pool, exit.reason
            )
            if about is not None:
                ended = replace(exit, reason=f"{exit.reason} ({about})")
        decision = decide_exit(await _facts(change, leg, ended))

        async def go_on(change: Change) -> None:
            change.notify(topics.trial(leg.trial_id), topics.experiment(leg.experiment_id))
            await _go_on(change, leg, decision, exit)
            await experimenting.finish_if_quiet(change, leg.experiment_id, leg.experiment_state)

        return LegEnd(decision.outcome, decision.reason, go_on)


async def _facts(change: Change, row: sa.Row[Any], exit: LegExit) -> ExitFacts:
    lost = 0
    no_restart = None
    if exit.kind is ExitKind.INFRASTRUCTURE:
        lost, _ = await trial_queue.lost_legs(change.conn, row.task_id)
    elif exit.exit_code or exit.exit_signal:
        no_restart = await log_actions.no_restart(change.conn, row.trial_id, row.run_id)
    reports_form = trial_queue.is_reports_form(row.searcher)
    came, unit = None, None
    if not (exit.failed or reports_form or (row.op_complete and row.closed)):
        came, unit = await past_target.farthest(change.conn, row.trial_id, row.searcher)
    return ExitFacts(
        exit_code=exit.exit_code,
        exit_signal=exit.exit_signal,
        kind=exit.kind,
        reason=exit.reason,
        preempt_requested=row.preempt_requested_at is not None,
        preempt_acked=row.preempt_acked_at is not None,
        preempted_for=_for_whom(row),
        leaving=row.leaving,
        kill_requested=row.kill_requested_at is not None,
        experiment_state=row.experiment_state,
        trial_state=row.trial_state,
        reports_form=reports_form,
        target=row.op_length,
        came=came,
        unit=unit,
        op_complete=row.op_complete,
        closed=row.closed,
        stop_requested=row.stop_requested,
        early_exit=row.early_exit,
        restarts=row.restarts,
        max_restarts=row.max_restarts,
        lost_in_a_row=lost,
        no_restart=no_restart,
    )


def _for_whom(row: sa.Row[Any]) -> str | None:
    """The work for which a scheduler stopped it, in words."""
    if row.stopping_for is None:
        return None
    if row.stopping_for == row.id:
        return "its experiment's max_slots or resource pool was changed"
    if row.stopping_for_trial is None:
        return "for something more important"
    return f"for trial {row.stopping_for_trial}"


async def _go_on(change: Change, row: sa.Row[Any], decision: ExitDecision, exit: LegExit) -> None:
    trial = TrialIds(row.trial_id, row.experiment_id, row.request_id, row.task_id)
    if decision.log is not None:
        await logs.add_line(change.conn, row.task_id, row.id, decision.log)
    nowhere = None
    if decision.next in (Next.REQUEUE, Next.LATER, Next.REST):
        for line in await log_actions.exclusions(change.conn, row.trial_id, row.run_id):
            await logs.add_line(change.conn, row.task_id, row.id, line)
        nowhere = await log_actions.no_agent_left(change.conn, row.trial_id)
    if decision.counts:
        await change.conn.execute(
            sa.update(trials)
            .where(trials.c.id == row.trial_id)
            .values(restarts=trials.c.restarts + 1)
        )
        # Why it failed, and the end of its log, before the next leg begins.
        prefect_states.show_page(change, prefect_states.task_entity(row.task_id))
    match decision.next:
        case Next.END:
            assert decision.trial_state is not None
            if decision.trial_state == states.COMPLETED:
                await missing_metric.note_no_validation(
                    change.conn, row.trial_id, row.id, row.task_id
                )
            await end_trial(change, trial, decision.trial_state, decision.reason, decision.event)
            if decision.trial_state == states.ERROR:
                await giving_up.give_up_if_hopeless(change, trial.experiment_id, trial.id)
        case Next.REQUEUE | Next.LATER | Next.REST if nowhere is not None:
            reason = f"{decision.reason}; {nowhere}"
            await end_trial(change, trial, states.ERROR, reason, ExitReason.ERRORED)
            await giving_up.give_up_if_hopeless(change, trial.experiment_id, trial.id)
        case Next.LATER:
            lost, _ = await trial_queue.lost_legs(change.conn, row.task_id)
            seconds = wait_after_losses(lost)
            wait = f"the platform has lost {lost} legs in a row; the next one starts in {seconds:.0f} s"
            await logs.add_line(change.conn, row.task_id, row.id, wait, "WARNING")
            prefect_states.awaiting_slots(change, row.task_id, f"{decision.reason}; {wait}")
        case Next.REST:
            await trial_queue.request(change, [row.trial_id])
            await unplaced.rest(change, row.task_id, row.id, exit.reason)
        case Next.REQUEUE:
            keep = row.stopping_for is not None or row.leaving is not None
            await trial_queue.request(change, [row.trial_id], keep_place=keep)
            prefect_states.awaiting_slots(change, row.task_id, decision.reason)
        case Next.WAIT if row.experiment_state == states.PAUSED:
            prefect_states.paused(change, row.task_id, decision.reason)
        case Next.WAIT:
            prefect_states.paused(change, row.task_id, "waits for the searcher's next operation")
