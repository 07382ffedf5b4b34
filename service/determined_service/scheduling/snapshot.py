"""What a scheduler sees: the requests that wait, the agents that may be given work, what is held."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

MAX_ZERO_SLOT_TASKS = 100
"""Allocations without slots that one agent runs at a time."""


@dataclass(frozen=True, slots=True)
class Request:
    """An allocation that waits.

    ``group`` is the experiment, which has one pool, and whose slots ``max_slots`` limits. The
    request must not run on the agents in ``excluded``. ``priority`` (a lower number is more
    important), ``weight``, ``submitted`` (when the experiment was submitted, in seconds since 1970)
    and ``preemptible`` are as stored: a scheduler may order by them, and first in, first out does not.
    """

    id: str
    pool: str
    slots: int
    group: int | None = None
    max_slots: int | None = None
    excluded: frozenset[str] = frozenset()
    priority: int = 42
    weight: float = 1.0
    submitted: float = 0.0
    preemptible: bool = True


@dataclass(frozen=True, slots=True)
class Agent:
    """An agent that may be given work. ``slots``: ids of all its enabled slots. ``used``: slots
    that are held, which may include some that were disabled meanwhile."""

    id: str
    pool: str
    slots: tuple[int, ...]
    used: frozenset[int] = frozenset()
    zero_slot_tasks: int = 0

    def free(self) -> list[int]:
        """The enabled slots that nobody holds, in the agent's order."""
        return [slot for slot in self.slots if slot not in self.used]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """``requests`` in the order in which they came, a search's runner before the search's trials;
    ``used_by_group``: slots held, by experiment."""

    requests: tuple[Request, ...]
    agents: tuple[Agent, ...]
    used_by_group: Mapping[int, int] = field(default_factory=dict)
