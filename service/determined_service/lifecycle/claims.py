"""A trial whose flow run a stock Prefect worker executes: it takes the waiting leg itself."""

from __future__ import annotations

from uuid import UUID

import sqlalchemy as sa

from determined_registry.database.tables import allocations, tasks, trials
from determined_service.access.tokens import new_token, token_hash
from determined_service.base.errors import BadRequest, Conflict, NotFound
from determined_service.state import prefect_states, states
from determined_service.state.change import Change
from determined_service.state.states import ALLOCATION, transition


async def claim(change: Change, trial_id: int, flow_run_id: UUID, agent_id: str) -> str:
    """Assigns the trial's waiting allocation to ``agent_id``, which is no agent; returns its id.

    Asking again gives the same one, so ``agent_id`` must name one process. Raises NotFound;
    BadRequest when ``flow_run_id`` is not the trial's run; Conflict when no leg waits or another
    process has it.
    """
    conn = change.conn
    # What is joined is read by a second statement: the first would read it as it was before the wait.
    await conn.execute(
        sa.select(trials.c.id).where(trials.c.id == trial_id).with_for_update(key_share=True)
    )
    found = await conn.execute(
        sa.select(trials.c.task_id, tasks.c.flow_run_id)
        .join(tasks, tasks.c.id == trials.c.task_id)
        .where(trials.c.id == trial_id)
    )
    trial = found.first()
    if trial is None:
        raise NotFound(f"trial {trial_id} does not exist")
    if trial.flow_run_id != flow_run_id:
        raise BadRequest(
            f"run {flow_run_id} is not the run of trial {trial_id}: a trial's run is made by its experiment; "
            "to run something by hand, run the deployment `experiment` or use `det experiment create`"
        )
    waiting = await conn.execute(
        sa.select(allocations.c.id, allocations.c.state, allocations.c.agent_id)
        .where(
            allocations.c.task_id == trial.task_id,
            allocations.c.state.in_([states.REQUESTED, states.ASSIGNED]),
        )
        .with_for_update(key_share=True)
    )
    row = waiting.first()
    if row is None:
        raise Conflict(f"no leg of trial {trial_id} waits to be run")
    if row.state == states.ASSIGNED:
        if row.agent_id != agent_id:
            raise Conflict(f"agent {row.agent_id} runs the next leg of trial {trial_id}")
        return str(row.id)
    token = new_token()
    await transition(
        change,
        ALLOCATION,
        row.id,
        states.ASSIGNED,
        agent_id=agent_id,
        token=token,
        token_hash=token_hash(token),
    )
    return str(row.id)


async def correct_run(change: Change, trial_id: int) -> None:
    """Has Prefect show again what the (existing) trial is.

    Whoever began to execute the trial's run in vain has made it Running there, or made it run again.
    """
    found = await change.conn.execute(
        sa.select(trials.c.task_id, trials.c.state, trials.c.reason)
        .where(trials.c.id == trial_id)
        .with_for_update(key_share=True)
    )
    trial = found.one()
    if trial.state in states.TERMINAL:
        entity = prefect_states.task_entity(trial.task_id)
        prefect_states.ended(change, entity, trial.state, trial.reason, again=True)
    else:
        await prefect_states.tell_present(change, trial.task_id, trial.reason)
