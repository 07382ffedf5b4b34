"""An experiment as a whole: pause, activate, cancel, kill, archive, and its end."""

from __future__ import annotations

import datetime
from typing import Any

import sqlalchemy as sa

from determined_registry.database.tables import allocations, experiments, searches, trials
from determined_service.base import topics
from determined_service.base.errors import Conflict, NotFound
from determined_service.deleting import deletions
from determined_service.lifecycle import allocations as allocating
from determined_service.lifecycle import trial_queue, unmanaged
from determined_service.state import prefect_states, run_records, states
from determined_service.state.change import Change
from determined_service.state.states import EXPERIMENT, TRIAL, transition, transition_all

_LOCK = sa.text(
    """
    SELECT id, state, reason, name, owner_id, resource_pool, unmanaged,
           config -> 'searcher' AS searcher
    FROM experiments WHERE id = :id FOR NO KEY UPDATE
    """
)


async def lock_experiment(change: Change, experiment_id: int) -> sa.Row[Any]:
    """The experiment, locked: what control looks at of its row. Raises NotFound."""
    row = (await change.conn.execute(_LOCK, {"id": experiment_id})).first()
    if row is None:
        raise NotFound(f"experiment {experiment_id} does not exist")
    return row


async def live_trials(change: Change, experiment_id: int) -> list[sa.Row[Any]]:
    """The trials that have not ended, locked, in order."""
    found = await change.conn.execute(
        sa.select(trials)
        .where(trials.c.experiment_id == experiment_id, trials.c.state.not_in(states.TERMINAL))
        .order_by(trials.c.id)
        .with_for_update(key_share=True)
    )
    return list(found)


def _announce(change: Change, experiment_id: int) -> None:
    change.notify(
        topics.experiment(experiment_id),
        topics.search(experiment_id),
        topics.committed(experiment_id),
    )


async def pause(change: Change, experiment_id: int, by: str = "the user") -> None:
    """Running trials get the preemption signal; waiting ones lose their place in the queue.

    Its reason names the user who paused it (``by``) and the time, until it is activated.

    Raises NotFound, Conflict when the experiment stops or has ended.
    """
    _require_managed(await lock_experiment(change, experiment_id))
    when = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    reason = f"paused by {by} at {when}"
    if not await transition(change, EXPERIMENT, experiment_id, states.PAUSED, reason=reason):
        return
    _announce(change, experiment_id)
    rows = await live_trials(change, experiment_id)
    await transition_all(change, TRIAL, [row.id for row in rows], states.PAUSED)
    live = await trial_queue.live_of_experiment(change, experiment_id)
    held = set()
    for row in live:
        if row.state == states.REQUESTED:
            await allocating.withdraw(change, row.id, "the experiment was paused")
        else:
            held.add(row.task_id)
            await allocating.preempt(change, row.id)
    for row in rows:
        if row.task_id not in held:
            prefect_states.paused(change, row.task_id, "the experiment is paused")


async def activate(change: Change, experiment_id: int) -> None:
    """Trials that have something to do queue for slots again.

    Raises NotFound, Conflict when the experiment stops or has ended.
    """
    experiment = await lock_experiment(change, experiment_id)
    _require_managed(experiment)
    if not await transition(change, EXPERIMENT, experiment_id, states.ACTIVE, reason=None):
        return
    _announce(change, experiment_id)
    await run_records.want(change, run_records.EXPERIMENT, experiment_id)
    rows = await live_trials(change, experiment_id)
    await transition_all(change, TRIAL, [row.id for row in rows], states.ACTIVE)
    live = await trial_queue.live_of_experiment(change, experiment_id)
    held = {row.task_id for row in live}
    reports = trial_queue.is_reports_form(experiment.searcher)
    wanting = [
        row.id
        for row in rows
        if row.task_id not in held and trial_queue.wants_slots(reports, row.op_complete, row.closed)
    ]
    await trial_queue.request(change, wanting)
    for row in rows:
        if row.task_id not in held:
            prefect_states.awaiting_slots(change, row.task_id, "the experiment was activated")


def run_name(name: str, experiment_id: int) -> str:
    """The name of an experiment's run in Prefect."""
    return f"{name} #{experiment_id}"


async def cancel(change: Change, experiment_id: int) -> None:
    """Trials may save a checkpoint and exit; those that have not started end now."""
    experiment = await lock_experiment(change, experiment_id)
    if experiment.unmanaged:
        await unmanaged.cancel(change, experiment_id, "canceled by the user")
    elif experiment.state in states.RUNNABLE or experiment.state == states.STOPPING_COMPLETED:
        await stop(change, experiment_id, states.STOPPING_CANCELED, "canceled by the user")


async def kill(change: Change, experiment_id: int) -> None:
    """Every process of the experiment is killed now."""
    experiment = await lock_experiment(change, experiment_id)
    if experiment.unmanaged:
        await unmanaged.cancel(change, experiment_id, "killed by the user")
    elif experiment.state not in states.ENDED:
        await stop(change, experiment_id, states.STOPPING_KILLED, "killed by the user")


async def fail(change: Change, experiment_id: int, reason: str) -> None:
    """The search cannot go on: everything stops, and the experiment ends in error."""
    experiment = await lock_experiment(change, experiment_id)
    if experiment.state in states.RUNNABLE or experiment.state == states.STOPPING_COMPLETED:
        await stop(change, experiment_id, states.STOPPING_ERROR, reason)


def _require_managed(experiment: sa.Row[Any]) -> None:
    if experiment.unmanaged:
        raise Conflict(
            f"experiment {experiment.id} is unmanaged: its processes run outside of the cluster, which "
            f"can neither pause nor start them"
        )


async def stop(change: Change, experiment_id: int, to: str, reason: str) -> None:
    """The locked experiment begins to stop; it ends at once when no process of it is left."""
    await transition(change, EXPERIMENT, experiment_id, to, reason=reason)
    _announce(change, experiment_id)
    hard = to in (states.STOPPING_KILLED, states.STOPPING_ERROR)
    rows = await live_trials(change, experiment_id)
    live = await trial_queue.live_of_experiment(change, experiment_id)
    held = set()
    for row in live:
        if row.state == states.REQUESTED:
            await allocating.withdraw(change, row.id, reason)
            continue
        held.add(row.task_id)
        # A process that has not begun has nothing to save.
        if hard or row.state == states.ASSIGNED:
            await allocating.kill(change, row.id)
        else:
            await allocating.preempt(change, row.id)
    stopping = [row.id for row in rows if row.task_id in held]
    await transition_all(change, TRIAL, stopping, to)
    await _end_trials(change, [row for row in rows if row.task_id not in held], to, reason)
    if not held:
        await _end(change, experiment_id, to)


async def _end_trials(change: Change, rows: list[sa.Row[Any]], stopping: str, reason: str) -> None:
    completed = stopping == states.STOPPING_COMPLETED
    to = states.COMPLETED if completed else states.CANCELED
    task_ids = {row.id: row.task_id for row in rows}
    for trial_id in await transition_all(change, TRIAL, list(task_ids), to, reason=reason):
        prefect_states.ended(change, prefect_states.task_entity(task_ids[trial_id]), to, reason)


async def finish_if_quiet(change: Change, experiment_id: int, state: str) -> None:
    """Ends the locked experiment if it is stopping and holds no slots any more."""
    if state not in states.STOPPING:
        return
    live = await change.conn.execute(
        sa.select(allocations.c.id)
        .where(
            allocations.c.experiment_id == experiment_id,
            allocations.c.state != states.TERMINATED,
        )
        .limit(1)
    )
    if live.first() is not None:
        return
    rows = await live_trials(change, experiment_id)
    await _end_trials(change, rows, state, "the experiment has ended")
    await _end(change, experiment_id, state)


async def _end(change: Change, experiment_id: int, stopping: str) -> None:
    to = states.OUTCOME[stopping]
    values = {"progress": 1.0} if to == states.COMPLETED else {}
    await transition(change, EXPERIMENT, experiment_id, to, **values)
    _announce(change, experiment_id)
    await deletions.collect_garbage(change, experiment_id)
    prefect_states.show_page(change, prefect_states.experiment_entity(experiment_id))
    found = await change.conn.execute(
        sa.select(searches.c.driver).where(searches.c.experiment_id == experiment_id)
    )
    if found.scalar_one() is None:
        # No flow drives the search, so no flow sets the end of its run.
        await run_records.ended(change, run_records.EXPERIMENT, experiment_id)


async def archive(
    change: Change, experiment_id: int, archived: bool, *, unended: bool = False
) -> None:
    """Hides an ended experiment from lists, or shows it again; ``unended``: one that has not ended, too.
    Raises Conflict, NotFound."""
    experiment = await lock_experiment(change, experiment_id)
    if experiment.state not in states.TERMINAL and not unended:
        raise Conflict(
            f"experiment {experiment_id} is {experiment.state}: only an experiment that has "
            f"ended can be archived"
        )
    await change.conn.execute(
        sa.update(experiments).where(experiments.c.id == experiment_id).values(archived=archived)
    )
    change.notify(topics.experiment(experiment_id))
