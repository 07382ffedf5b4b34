"""Which state may follow which: the tables, and :func:`transition`, through which every move goes.

Rows are locked experiment → trial → allocation → search, so that no two changes wait for each
other. ``FOR NO KEY UPDATE`` is enough, and does not stop the inserts of rows that refer to them.
"""

from __future__ import annotations

import functools
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
DELETING = "DELETING"
DELETE_FAILED = "DELETE_FAILED"

REQUESTED = "REQUESTED"
ASSIGNED = "ASSIGNED"
RUNNING = "RUNNING"
TERMINATED = "TERMINATED"

RUNNABLE = frozenset({ACTIVE, PAUSED})
STOPPING = frozenset({STOPPING_COMPLETED, STOPPING_CANCELED, STOPPING_KILLED, STOPPING_ERROR})
TERMINAL = frozenset({COMPLETED, CANCELED, ERROR})
# Of an experiment only: it has ended, and is on its way out.
DELETION = frozenset({DELETING, DELETE_FAILED})
ENDED = TERMINAL | DELETION

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
EXPERIMENT = Machine(
    "experiment",
    experiments,
    {
        **_moves(OUTCOME),
        **{state: frozenset({DELETING}) for state in TERMINAL},
        DELETING: frozenset({DELETE_FAILED}),
        DELETE_FAILED: frozenset({DELETING}),
    },
)
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

MACHINES = {machine.noun: machine for machine in (EXPERIMENT, TRIAL, ALLOCATION)}

_TIMES: dict[tuple[str, str], str] = {
    **{("experiment", state): "end_time" for state in TERMINAL},
    **{("trial", state): "end_time" for state in TERMINAL},
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
        table = machine.table
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
    given = {"to": to, "sources": machine.sources(to), "ids": ids, **values}
    statement = _move(machine.noun, to, tuple(values), many=True)
    moved = sorted((await change.conn.execute(statement, given)).scalars())
    change.notify(*map(machine.topic, moved))
    return moved
