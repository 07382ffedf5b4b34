"""Who gets which slots: :func:`place`, a pure function of a snapshot.

First in, first out, per resource pool. A request that does not fit yet holds back the later ones
of its pool (or a wide one would starve), except where waiting cannot help: it is wider than any
agent of the pool, or its experiment has all the slots it may have (``resources.max_slots``).
Requests for no slots need not wait for anybody.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

MAX_ZERO_SLOT_TASKS = 100
"""Allocations without slots that one agent runs at a time."""


@dataclass(frozen=True, slots=True)
class Request:
    """An allocation that waits. ``group``: the experiment, whose slots ``max_slots`` limits.
    ``excluded``: agents that it must not run on."""

    id: str
    pool: str
    slots: int
    group: int | None = None
    max_slots: int | None = None
    excluded: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Agent:
    """An agent that may be given work. ``slots``: ids of all its enabled slots."""

    id: str
    pool: str
    slots: tuple[int, ...]
    used: frozenset[int] = frozenset()
    zero_slot_tasks: int = 0


@dataclass(frozen=True, slots=True)
class Snapshot:
    """``requests`` in the order in which they came; ``used_by_group``: slots held, by experiment."""

    requests: tuple[Request, ...]
    agents: tuple[Agent, ...]
    used_by_group: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Placement:
    """The allocation ``id`` gets ``slot_ids`` of ``agent_id``."""

    id: str
    agent_id: str
    slot_ids: tuple[int, ...]


def place(snapshot: Snapshot) -> list[Placement]:
    """The placements to make now, in the order of the requests."""
    free = {
        agent.id: [slot for slot in agent.slots if slot not in agent.used]
        for agent in snapshot.agents
    }
    tasks = {agent.id: agent.zero_slot_tasks for agent in snapshot.agents}
    used = Counter(snapshot.used_by_group)
    blocked: set[str] = set()
    placements = []
    for request in snapshot.requests:
        pool = [
            agent
            for agent in snapshot.agents
            if agent.pool == request.pool and agent.id not in request.excluded
        ]
        if request.slots == 0:
            chosen = _least_busy(pool, tasks)
            if chosen is not None:
                tasks[chosen] += 1
                placements.append(Placement(request.id, chosen, ()))
            continue
        if request.pool in blocked or _over_limit(request, used):
            continue
        chosen = _best_fit(pool, free, request.slots)
        if chosen is None:
            if any(len(agent.slots) >= request.slots for agent in pool):
                blocked.add(request.pool)
            continue
        taken = tuple(free[chosen][: request.slots])
        free[chosen] = free[chosen][request.slots :]
        if request.group is not None:
            used[request.group] += request.slots
        placements.append(Placement(request.id, chosen, taken))
    return placements


def _over_limit(request: Request, used: Mapping[int, int]) -> bool:
    if request.max_slots is None or request.group is None:
        return False
    return used.get(request.group, 0) + request.slots > request.max_slots


def _best_fit(pool: list[Agent], free: Mapping[str, list[int]], slots: int) -> str | None:
    """The agent that keeps the fewest free slots; the first by id among equals."""
    fitting = [(len(free[agent.id]), agent.id) for agent in pool if len(free[agent.id]) >= slots]
    return min(fitting)[1] if fitting else None


def _least_busy(pool: list[Agent], tasks: Mapping[str, int]) -> str | None:
    open_ = [(tasks[agent.id], agent.id) for agent in pool if tasks[agent.id] < MAX_ZERO_SLOT_TASKS]
    return min(open_)[1] if open_ else None
