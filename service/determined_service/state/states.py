"""The allowed moves between states: the tables, and :func:`transition`, through which every move goes.

Rows are locked experiment → trial → allocation → search, so that no two changes wait for each
other. ``FOR NO KEY UPDATE`` is enough, and does not stop the inserts of rows that refer to them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from determined.common.wire.states import (
    ACTIVE,
    CANCELED,
    COMPLETED,
    DELETE_FAILED,
    DELETING,
    DELETION,
    ENDED,
    ERROR,
    PAUSED,
    RUNNABLE,
    STOPPING,
    STOPPING_CANCELED,
    STOPPING_COMPLETED,
    STOPPING_ERROR,
    STOPPING_KILLED,
    TERMINAL,
)
from determined_registry.database.tables import allocations, experiments, tasks, trials
from determined_service.base import topics
from determined_service.base.errors import Conflict, NotFound
from determined_service.state.change import Change

__all__ = [
    "ACTIVE",
    "ALLOCATION",
    "ASSIGNED",
    "CANCELED",
    "COMPLETED",
    "DELETE_FAILED",
    "DELETING",
    "DELETION",
    "ENDED",
    "ERROR",
    "EXPERIMENT",
    "MACHINES",
    "OUTCOME",
    "PAUSED",
    "REQUESTED",
    "RUNNABLE",
    "RUNNING",
    "STOPPING",
    "STOPPING_CANCELED",
    "STOPPING_COMPLETED",
    "STOPPING_ERROR",
    "STOPPING_KILLED",
    "TERMINAL",
    "TERMINATED",
    "TRIAL",
    "Machine",
    "transition",
    "transition_all",
]

# Of allocations.
REQUESTED = "REQUESTED"
ASSIGNED = "ASSIGNED"
RUNNING = "RUNNING"
TERMINATED = "TERMINATED"

OUTCOME: Mapping[str, str] = {
    STOPPING_COMPLETED: COMPLETED,
    STOPPING_CANCELED: CANCELED,
    STOPPING_KILLED: CANCELED,
    STOPPING_ERROR: ERROR,
}
"""The state in which each stopping state ends."""


@dataclass(frozen=True)
class Machine:
    """A noun, its table, the topic announced for a row, and the states that may follow each state."""

    noun: str
    table: sa.Table
    topic: Callable[[Any], str]
    moves: Mapping[str, frozenset[str]]

    def allows(self, old: str, new: str) -> bool:
        return new in self.moves[old]

    def sources(self, new: str) -> list[str]:
        """The states that ``new`` may follow."""
        return [old for old, following in self.moves.items() if new in following]


def _moves(stopping_to: Mapping[str, str]) -> dict[str, frozenset[str]]:
    # A stop may only become more severe: completed < canceled < error, killed.
    harder = {
        STOPPING_COMPLETED: {STOPPING_CANCELED, STOPPING_KILLED, STOPPING_ERROR},
        STOPPING_CANCELED: {STOPPING_KILLED, STOPPING_ERROR},
        STOPPING_KILLED: set[str](),
        STOPPING_ERROR: {STOPPING_KILLED},
    }
    moves = {
        ACTIVE: {PAUSED, *STOPPING, *TERMINAL},
        PAUSED: {ACTIVE, *STOPPING, *TERMINAL},
        **{state: {*harder[state], *TERMINAL} for state in STOPPING},
        **{state: set[str]() for state in TERMINAL},
    }
    for state, outcome in stopping_to.items():
        moves[state] = {*harder[state], outcome}
    return {state: frozenset(following) for state, following in moves.items()}


# An experiment that stops ends in the way its stopping state says; a trial that stops may still complete, be
# canceled or fail, depending on its process.
EXPERIMENT = Machine(
    "experiment",
    experiments,
    topics.experiment,
    {
        **_moves(OUTCOME),
        **{state: frozenset({DELETING}) for state in TERMINAL},
        DELETING: frozenset({DELETE_FAILED}),
        DELETE_FAILED: frozenset({DELETING}),
    },
)
TRIAL = Machine("trial", trials, topics.trial, _moves({}))
# Kinds of task without a separate table of states.
TASK = Machine("task", tasks, topics.task, _moves({}))
ALLOCATION = Machine(
    "allocation",
    allocations,
    topics.allocation,
    {
        REQUESTED: frozenset({ASSIGNED, TERMINATED}),
        ASSIGNED: frozenset({RUNNING, TERMINATED}),
        RUNNING: frozenset({TERMINATED}),
        TERMINATED: frozenset(),
    },
)

MACHINES = {machine.noun: machine for machine in (EXPERIMENT, TRIAL, TASK, ALLOCATION)}

_TIMES: dict[tuple[str, str], str] = {
    **{("experiment", state): "end_time" for state in TERMINAL},
    **{("trial", state): "end_time" for state in TERMINAL},
    **{("task", state): "end_time" for state in TERMINAL},
    ("allocation", ASSIGNED): "assigned_at",
    ("allocation", RUNNING): "started_at",
    ("allocation", TERMINATED): "ended_at",
}


# Text, not constructs: these are the hottest statements, and text needs no cache key each time.
@functools.cache
def _move(noun: str, to: str, names: tuple[str, ...], *, many: bool = False) -> sa.TextClause:
    table = MACHINES[noun].table
    changes = ["state = :to", *(f"{name} = :{name}" for name in names)]
    if (noun, to) in _TIMES:
        changes.append(f"{_TIMES[noun, to]} = now()")
    # Locks are taken in the order of the ids, as everywhere.
    chosen = (
        f"IN (SELECT id FROM {table.name} WHERE id = ANY(:ids) ORDER BY id FOR NO KEY UPDATE)"
        if many
        else "= :id"
    )
    typed = [sa.bindparam(name, type_=table.c[name].type) for name in names]
    return sa.text(
        f"UPDATE {table.name} SET {', '.join(changes)} "
        f"WHERE id {chosen} AND state = ANY(:sources) RETURNING id"
    ).bindparams(*typed)


async def transition(
    change: Change, machine: Machine, id: int | str, to: str, **values: Any
) -> bool:
    """Moves the row ``id`` to the state ``to``, sets ``values``, notes the time, announces it.

    False, and nothing changed, when the row is in that state already: a repeated request. Raises
    NotFound, or Conflict when the move is not in the machine's table.
    """
    given = {"to": to, "sources": machine.sources(to), "id": id, **values}
    statement = _move(machine.noun, to, tuple(values))
    if (await change.conn.execute(statement, given)).first() is None:
        await require_move_made(change, machine, id, to)
        return False
    change.notify(machine.topic(id))
    return True


async def require_move_made(change: Change, machine: Machine, id: int | str, to: str) -> None:
    """After a move to the state ``to`` that found no row: it has been made before.

    Raises NotFound, or Conflict when the move is not in the machine's table.
    """
    table = machine.table
    found = await change.conn.execute(sa.select(table.c.state).where(table.c.id == id))
    state = found.scalar_one_or_none()
    if state is None:
        raise NotFound(f"{machine.noun} {id} does not exist")
    if state != to:
        raise Conflict(f"{machine.noun} {id} is {state} and cannot become {to}")


async def transition_all(
    change: Change, machine: Machine, ids: list[Any], to: str, **values: Any
) -> list[Any]:
    """Moves those rows of ``ids`` (in that order) that may move to ``to``; returns which did."""
    if not ids:
        return []
    given = {"to": to, "sources": machine.sources(to), "ids": ids, **values}
    statement = _move(machine.noun, to, tuple(values), many=True)
    moved = sorted((await change.conn.execute(statement, given)).scalars())
    change.notify(*map(machine.topic, moved))
    return moved
