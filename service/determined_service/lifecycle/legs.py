"""A leg, from the start of its process to its end: the same for every kind of task."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from determined.common.wire.legs import ExitKind
from determined_registry.database.tables import allocations, experiments, tasks
from determined_service.base import topics
from determined_service.base.errors import Conflict
from determined_service.ingest import logs
from determined_service.lifecycle import starts
from determined_service.lifecycle.exits import LegExit, last_line, of_gang
from determined_service.lifecycle.kinds.table import lock_leg, slot_kind
from determined_service.state import nodes, prefect_states, states
from determined_service.state.change import Change
from determined_service.state.states import ALLOCATION, require_move_made

# Both move the allocation and write the leg at once; the table of moves is asked for the states that each
# move may come from.
_BEGINS = sa.text(
    """
    WITH moved AS (
        UPDATE allocations a SET state = 'RUNNING', started_at = now(), pid = :pid, waits_for = NULL,
            start_id = CASE WHEN a.nodes = 1 THEN coalesce(a.start_id, :start_id) END
        FROM tasks k
        WHERE a.id = :id AND a.state = ANY(:sources) AND k.id = a.task_id
          AND coalesce(a.start_id = :start_id, true)
        RETURNING a.id, a.task_id, a.run_id, a.agent_id, a.nodes, a.started_at, a.trial_id,
                  a.experiment_id, a.resource_pool, k.kind
    ), written AS (
        INSERT INTO legs (task_id, run_id, allocation_id, state, start_time)
        SELECT task_id, run_id, id, 'RUNNING', started_at FROM moved
        ON CONFLICT DO NOTHING
    )
    SELECT * FROM moved
    """
)
_ENDS = sa.text(
    """
    WITH moved AS (
        UPDATE allocations
        SET state = 'TERMINATED', ended_at = now(), reason = :reason, exit_code = :exit_code,
            exit_signal = :exit_signal, token = NULL
        WHERE id = :id AND state = ANY(:sources)
        RETURNING id, task_id, run_id, reason, started_at, ended_at
    ), closed AS (
        DELETE FROM allocation_ports WHERE allocation_id = :id
    ), shut AS (
        DELETE FROM allocation_doors WHERE allocation_id = :id
    )
    INSERT INTO legs (task_id, run_id, allocation_id, state, reason, start_time, end_time)
    SELECT task_id, run_id, id, :outcome, reason, started_at, ended_at FROM moved
    ON CONFLICT (task_id, run_id)
    DO UPDATE SET state = excluded.state, reason = excluded.reason, end_time = excluded.end_time
    """
)


_NODE_BEGINS = sa.text(
    """
    UPDATE allocation_resources
    SET state = 'RUNNING', pid = :pid, started_at = coalesce(started_at, now()), waits_for = NULL,
        start_id = coalesce(start_id, :start_id)
    WHERE allocation_id = :id AND (node = :node OR cast(:node AS int) IS NULL AND agent_id = :agent_id)
      AND state <> 'TERMINATED' AND coalesce(start_id = :start_id, true) RETURNING id
    """
)
_NODE_ENDS = sa.text(
    """
    UPDATE allocation_resources
    SET state = 'TERMINATED', ended_at = clock_timestamp(), exit_kind = :kind, exit_code = :exit_code,
        exit_signal = :exit_signal, reason = :reason
    WHERE allocation_id = :id AND (node = :node OR cast(:node AS int) IS NULL AND agent_id = :agent_id)
      AND state = ANY(:sources) RETURNING id
    """
)
_NODES_END = sa.text(
    """
    UPDATE allocation_resources SET state = 'TERMINATED', ended_at = clock_timestamp(), reason = :reason
    WHERE allocation_id = :id AND state <> 'TERMINATED'
    """
)


_WAITS = sa.text(
    """
    WITH before AS (
        SELECT NOT EXISTS (SELECT FROM allocations WHERE id = :id AND waits_for IS NOT NULL)
           AND NOT EXISTS (SELECT FROM allocation_resources
                           WHERE allocation_id = :id AND waits_for IS NOT NULL) AS is_first
    ), alone AS (
        UPDATE allocations SET waits_for = :reason
        WHERE id = :id AND agent_id = :agent_id AND state = 'ASSIGNED' AND nodes = 1 RETURNING task_id
    ), node AS (
        UPDATE allocation_resources r SET waits_for = :reason FROM allocations a
        WHERE a.id = :id AND a.id = r.allocation_id AND r.node = :node AND r.state = 'ASSIGNED'
          AND r.agent_id = :agent_id
        RETURNING a.task_id
    )
    SELECT task_id, is_first FROM before, (SELECT * FROM alone UNION ALL SELECT * FROM node) AS changed
    """
)
LONGEST_WAIT = 1000
"""Characters of a reason that are kept."""


async def note_wait(
    change: Change, allocation_id: str, node: int, agent_id: str, reason: str | None
) -> None:
    """Notes what a leg that its agent has accepted waits for; None: for nothing (any more).

    Each reason is a line of the task's log, and the first is the message of its run in Prefect, where each
    costs a state. Nothing changes once the leg runs.
    """
    kind, _ = await lock_leg(change, allocation_id)
    reason = None if reason is None else reason[:LONGEST_WAIT]
    given = {"id": allocation_id, "agent_id": agent_id, "node": node, "reason": reason}
    found = (await change.conn.execute(_WAITS, given)).first()
    if found is None:
        return
    if reason is not None:
        words = f"agent {agent_id} cannot start it yet: {' '.join(reason.split())}"
        await logs.add_line(change.conn, found.task_id, allocation_id, words, "WARNING")
        if found.is_first and kind.mirrored:
            prefect_states.cannot_start(change, found.task_id, words)
    change.notify(topics.allocation(allocation_id))


def definition_of_leg(allocation_id: str, hash: str) -> sa.ScalarSelect[str]:
    """``hash`` if it is that of the model definition of this leg, which has not ended; else no row."""
    a, k, e = allocations.c, tasks.c, experiments.c
    own = sa.func.coalesce(k.model_def_hash, e.model_def_hash)
    found = sa.select(own).select_from(
        allocations.join(tasks, k.id == a.task_id).outerjoin(experiments, e.id == a.experiment_id)
    )
    return found.where(
        a.id == allocation_id, a.state != states.TERMINATED, own == hash
    ).scalar_subquery()


async def start_leg(
    change: Change,
    allocation_id: str,
    pid: int | None,
    agent_id: str | None = None,
    node: int | None = None,
    start_id: str = "",
) -> None:
    """The process runs; of a gang that of ``node``, and the leg begins with the first. None: of the node on
    ``agent_id``, as supervisors of the release before say.

    Raises NotFound; Conflict when the allocation, or the node, has ended meanwhile, or another start of it
    counts (:mod:`.starts`).
    """
    starts.require_id(start_id)
    given = {"id": allocation_id, "pid": pid, "start_id": start_id or None}
    await _start(change, given, node)
    if node is not None or agent_id is not None:
        given |= {"node": node, "agent_id": agent_id}
        if (await change.conn.execute(_NODE_BEGINS, given)).first() is None:
            await starts.require_current(change, allocation_id, node, start_id)
            which = f"on agent {agent_id}" if node is None else str(node)
            raise Conflict(f"allocation {allocation_id} has no node {which} any more")


async def _start(change: Change, given: dict[str, Any], node: int | None) -> None:
    allocation_id = given["id"]
    sources = ALLOCATION.sources(states.RUNNING)
    leg = (await change.conn.execute(_BEGINS, {**given, "sources": sources})).first()
    if leg is None:
        await starts.require_current(change, allocation_id, node, given["start_id"] or "")
        await require_move_made(change, ALLOCATION, allocation_id, states.RUNNING)
        return
    kind = slot_kind(leg.kind)
    change.notify(topics.allocation(allocation_id))
    if kind.mirrored:
        agents = [leg.agent_id] if leg.agent_id else []
        if leg.nodes > 1:
            agents = await _agents(change, allocation_id)
        prefect_states.running(change, leg.task_id, leg.run_id, agents)
    await kind.started(change, leg)


async def _agents(change: Change, allocation_id: str) -> list[str]:
    gangs = await nodes.of_allocations(change.conn, [allocation_id])
    return [one.agent_id for one in gangs.get(allocation_id, ()) if one.agent_id]


async def _end_node(
    change: Change,
    allocation_id: str,
    node: int | None,
    agent_id: str | None,
    exit: LegExit,
    only_in: str | None,
) -> LegExit | None:
    """Ends the node, or that on ``agent_id``, of a (locked) gang. The end of the gang if it was the last one;
    else None, and if it failed the others' agents are to kill them."""
    live = [states.ASSIGNED, states.RUNNING]
    given = {
        "id": allocation_id,
        "node": node,
        "agent_id": agent_id,
        "sources": live if only_in is None else [only_in],
        "kind": exit.kind,
        "exit_code": exit.exit_code,
        "exit_signal": exit.exit_signal,
        "reason": exit.reason,
    }
    if (await change.conn.execute(_NODE_ENDS, given)).first() is None:
        return None
    rows = (await nodes.of_allocations(change.conn, [allocation_id]))[allocation_id]
    if any(row.state in live for row in rows):
        if exit.failed:
            change.notify(*(topics.agent(row.agent_id) for row in rows))
        return None
    rows.sort(key=lambda row: row.ended_at)
    return of_gang(
        [
            (
                row.agent_id,
                LegExit(ExitKind(row.exit_kind), row.exit_code, row.exit_signal, row.reason),
            )
            for row in rows
        ]
    )


async def end_leg(
    change: Change,
    allocation_id: str,
    exit: LegExit,
    *,
    node: int | None = None,
    agent_id: str | None = None,
    only_in: str | None = None,
    start_id: str = "",
) -> None:
    """Ends the allocation; its kind of task decides what follows. A repeated report changes nothing.

    ``node``: of a gang, whose process ended; None: that on ``agent_id``, as supervisors of the release before
    say. A gang ends with its last node, and one that fails ends the others; without node and agent all nodes
    are given up. ``only_in``: nothing changes either when the allocation, or the gang's node, is not in this
    state (any more). Raises NotFound; Conflict when another start than ``start_id`` counts.
    """
    kind, leg = await lock_leg(change, allocation_id)
    if leg.state == states.TERMINATED:
        return
    starts.require_same(allocation_id, leg.start_id, start_id)
    whole = told = exit.knowing(leg.leaving)
    if leg.nodes > 1 and (node is not None or agent_id is not None):
        if start_id:
            await starts.require_current(change, allocation_id, node, start_id)
        last = await _end_node(change, allocation_id, node, agent_id, told, only_in)
        if last is None:
            return
        whole = last
    elif only_in not in (None, leg.state):
        return
    elif leg.nodes > 1:
        await change.conn.execute(_NODES_END, {"id": allocation_id, "reason": told.reason})
    end = await kind.judge(change, leg, whole)
    await change.conn.execute(
        _ENDS,
        {
            "id": allocation_id,
            "sources": ALLOCATION.sources(states.TERMINATED),
            "reason": end.reason,
            "exit_code": whole.exit_code,
            "exit_signal": whole.exit_signal,
            "outcome": end.outcome,
        },
    )
    if leg.kill_requested_at is None or not whole.failed:  # Who kills a task knows how it ends.
        level = "ERROR" if whole.failed else "INFO"
        if whole.kind is ExitKind.UNPLACED:
            level = "WARNING"
        await logs.add_line(change.conn, leg.task_id, allocation_id, last_line(whole), level)
    change.notify(topics.SCHEDULER, topics.allocation(allocation_id))
    if leg.nodes > 1:
        change.notify(*map(topics.agent, await _agents(change, allocation_id)))
    elif leg.agent_id and whole.kind is ExitKind.INFRASTRUCTURE:
        # Perhaps it was not the agent that said so.
        change.notify(topics.agent(leg.agent_id))
    await end.go_on(change)
