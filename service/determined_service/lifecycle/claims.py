"""Assign a trial's waiting leg to a stock Prefect worker that executes the trial's flow run."""

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
    """Assign the trial's waiting allocation to ``agent_id`` and return the allocation's id.

    ``agent_id`` names the worker's process, not an agent. A repeated call returns the same allocation, so the
    name must be unique to one process. Raises NotFound for an unknown trial; BadRequest when ``flow_run_id``
    is not the trial's run; Conflict when no leg waits or another process has it.
    """
    conn = change.conn
    # Lock the trial first and read the join in a second statement: under READ COMMITTED a statement that
    # waits for a lock reads joined rows as of its start.
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
    """Send the trial's present state to Prefect again; the trial must exist.

    A worker that executed the trial's run in vain has changed the run's state in Prefect to Running, or has
    scheduled it again.
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
