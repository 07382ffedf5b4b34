"""Which state may follow which: the tables, and :func:`transition`, through which every move goes.

Rows are locked experiment → trial → allocation → search, so that no two changes wait for each
other. ``FOR NO KEY UPDATE`` is enough, and does not stop the inserts of rows that refer to them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from determined_registry.tables import allocations, experiments, trials
from determined_service.control.change import Change
from determined_service.errors import Conflict, NotFound

ACTIVE = "ACTIVE"
PAUSED = "PAUSED"
STOPPING_COMPLETED = "STOPPING_COMPLETED"
STOPPING_CANCELED = "STOPPING_CANCELED"
STOPPING_KILLED = "STOPPING_KILLED"
STOPPING_ERROR = "STOPPING_ERROR"
COMPLETED = "COMPLETED"
CANCELED = "CANCELED"
ERROR = "ERROR"

REQUESTED = "REQUESTED"
ASSIGNED = "ASSIGNED"
RUNNING = "RUNNING"
TERMINATED = "TERMINATED"

RUNNABLE = frozenset({ACTIVE, PAUSED})
STOPPING = frozenset({STOPPING_COMPLETED, STOPPING_CANCELED, STOPPING_KILLED, STOPPING_ERROR})
TERMINAL = frozenset({COMPLETED, CANCELED, ERROR})

OUTCOME: Mapping[str, str] = {
    STOPPING_COMPLETED: COMPLETED,
    STOPPING_CANCELED: CANCELED,
    STOPPING_KILLED: CANCELED,
    STOPPING_ERROR: ERROR,
}
"""The state in which each stopping state ends."""


@dataclass(frozen=True)
class Machine:
    """A noun, its table, and for each state the states that may follow it."""

    noun: str
    table: sa.Table
    moves: Mapping[str, frozenset[str]]

    def allows(self, old: str, new: str) -> bool:
        return new in self.moves[old]

    def sources(self, new: str) -> list[str]:
        """The states that ``new`` may follow."""
        return [old for old, following in self.moves.items() if new in following]

    def topic(self, id: int | str) -> str:
        return f"{self.noun}:{id}"


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


# An experiment that stops ends the way its stopping state says; a trial that stops may still
# complete, be canceled or err, whatever its process did last.
EXPERIMENT = Machine("experiment", experiments, _moves(OUTCOME))
TRIAL = Machine("trial", trials, _moves({}))
ALLOCATION = Machine(
    "allocation",
    allocations,
    {
        REQUESTED: frozenset({ASSIGNED, TERMINATED}),
        ASSIGNED: frozenset({RUNNING, TERMINATED}),
        RUNNING: frozenset({TERMINATED}),
        TERMINATED: frozenset(),
    },
)

_TIMES: dict[tuple[str, str], str] = {
    **{("experiment", state): "end_time" for state in TERMINAL},
    **{("trial", state): "end_time" for state in TERMINAL},
    ("allocation", ASSIGNED): "assigned_at",
    ("allocation", RUNNING): "started_at",
    ("allocation", TERMINATED): "ended_at",
}


def _statement(machine: Machine, to: str, values: Mapping[str, Any]) -> sa.Update:
    changes: dict[str, Any] = {"state": to, **values}
    time = _TIMES.get((machine.noun, to))
    if time is not None:
        changes[time] = sa.func.now()
    table = machine.table
    return (
        sa.update(table)
        .where(table.c.state.in_(machine.sources(to)))
        .values(changes)
        .returning(table.c.id)
    )


async def transition(
    change: Change, machine: Machine, id: int | str, to: str, **values: Any
) -> bool:
    """Moves the row ``id`` to the state ``to``, sets ``values``, notes the time, announces it.

    False, and nothing changed, when the row is in that state already: a repeated request. Raises
    NotFound, or Conflict when the move is not in the machine's table.
    """
    table = machine.table
    statement = _statement(machine, to, values).where(table.c.id == id)
    if (await change.conn.execute(statement)).first() is None:
        found = await change.conn.execute(sa.select(table.c.state).where(table.c.id == id))
        state = found.scalar_one_or_none()
        if state is None:
            raise NotFound(f"{machine.noun} {id} does not exist")
        if state == to:
            return False
        raise Conflict(f"{machine.noun} {id} is {state} and cannot become {to}")
    change.notify(machine.topic(id))
    return True


async def transition_all(
    change: Change, machine: Machine, ids: list[Any], to: str, **values: Any
) -> list[Any]:
    """Moves those rows of ``ids`` (in that order) that may move to ``to``; returns which did."""
    if not ids:
        return []
    table = machine.table
    # Locks are taken in the order of the ids, as everywhere.
    locked = (
        sa.select(table.c.id)
        .where(table.c.id.in_(ids))
        .order_by(table.c.id)
        .with_for_update(key_share=True)
        .cte("locked")
    )
    statement = _statement(machine, to, values).where(table.c.id == locked.c.id)
    moved = sorted((await change.conn.execute(statement)).scalars())
    change.notify(*map(machine.topic, moved))
    return moved
