"""What a scheduler sees: the requests that wait, the agents that may be given work, what is held."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from determined_service.base.records import record
from determined_service.base.spread import Spread
from determined_service.base.units import names_of

MAX_ZERO_SLOT_TASKS = 100
"""Allocations without slots that one agent runs at a time, where its pool says nothing else."""


class Part(NamedTuple):
    """``slot_ids`` of one agent."""

    agent_id: str
    slot_ids: tuple[int, ...]


@record
class Constraint:
    """Which agents a request may run on: one of ``agents``, if there are any, that has one of the values of
    each of ``labels``."""

    agents: frozenset[str] = frozenset()
    labels: tuple[tuple[str, frozenset[str]], ...] = ()

    def admits(self, agent_id: str, labels: Mapping[str, str]) -> bool:
        """Whether an agent, or a unit, of that name and with these labels will do."""
        return (not self.agents or not self.agents.isdisjoint(names_of(agent_id))) and all(
            labels.get(key) in values for key, values in self.labels
        )


@record
class Request:
    """An allocation that waits.

    ``group`` is the experiment, which has one pool, and whose slots ``max_slots`` limits. The
    request must not run on the agents in ``excluded``, and only on those that ``constraint`` admits.
    ``priority``: a lower number is more important, also in pools where users mean it the other way round.
    ``position``: the experiment's place in line, when it was submitted in seconds since 1970 unless somebody
    moved it. ``requested``: when the allocation came to wait, in seconds since 1970; of one that was stopped
    for another and waits again, when it first did. ``spread``: for when it is wider than every agent.
    """

    id: str
    pool: str
    slots: int
    group: int | None = None
    max_slots: int | None = None
    excluded: frozenset[str] = frozenset()
    priority: int = 42
    weight: float = 1.0
    position: float = 0.0
    preemptible: bool = True
    requested: float = 0.0
    constraint: Constraint | None = None
    spread: Spread = Spread.EVEN


@record
class Resting:
    """A request that is not to be served before ``until``, in seconds since 1970: its agent's cluster had no
    room for the leg before, for the reason in ``words``."""

    request: Request
    until: float
    words: str


@record
class AgentInfo:
    """An agent that may be given work, or a unit of one (:mod:`determined_service.base.units`), which is what
    every name of an agent in a snapshot means. ``slots``: ids of all its enabled slots. ``used``: slots
    that are held, which may include some that were disabled meanwhile. ``max_zero_slot_tasks``: how many
    allocations without slots it runs at a time."""

    id: str
    pool: str
    slots: tuple[int, ...]
    used: frozenset[int] = frozenset()
    zero_slot_tasks: int = 0
    max_zero_slot_tasks: int = MAX_ZERO_SLOT_TASKS
    labels: Mapping[str, str] = field(default_factory=dict)

    def free(self) -> list[int]:
        """The enabled slots that nobody holds, in the agent's order."""
        return [slot for slot in self.slots if slot not in self.used]


@record
class Occupant:
    """An allocation that holds ``slot_ids`` of an agent; of a gang, ``others`` are on more agents.

    ``group``, ``max_slots``, ``priority``, ``weight``, ``position``, ``preemptible`` and
    ``requested``: as of the :class:`Request` that it was.
    ``stopping``: it was asked to stop and has not ended; ``stopping_for``: the request for which a
    scheduler asked it to (itself: it was above its group's ``max_slots``), None when somebody else did (a
    pause, for example).
    """

    id: str
    agent_id: str
    slot_ids: tuple[int, ...]
    group: int | None = None
    max_slots: int | None = None
    priority: int = 42
    weight: float = 1.0
    position: float = 0.0
    preemptible: bool = True
    requested: float = 0.0
    stopping: bool = False
    stopping_for: str | None = None
    others: tuple[Part, ...] = ()

    @property
    def parts(self) -> tuple[Part, ...]:
        """What it holds, by agent."""
        return (Part(self.agent_id, self.slot_ids), *self.others)

    @property
    def width(self) -> int:
        """How many slots it holds."""
        if not self.others:
            return len(self.slot_ids)
        return sum(len(one.slot_ids) for one in self.parts)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """``requests`` in the order in which they came, a search's runner before the search's trials;
    ``used_by_group``: slots held, by experiment; ``running``: what holds slots, in the order in which it was
    placed, also on agents that may not be given work; ``resting``: what is not served at ``moment``, in
    seconds since 1970 (0: nothing rests)."""

    requests: tuple[Request, ...]
    agents: tuple[AgentInfo, ...]
    used_by_group: Mapping[int, int] = field(default_factory=dict)
    running: tuple[Occupant, ...] = ()
    resting: tuple[Resting, ...] = ()
    moment: float = 0.0
