"""What is free while a scheduler decides: agents found by their free slots, without a scan."""

from __future__ import annotations

import bisect
import heapq
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from enum import StrEnum

from determined_service.base import spread
from determined_service.base.spread import Spread
from determined_service.scheduling.snapshot import AgentInfo, Constraint, Request, Snapshot

Places = Sequence[tuple[str, int]]
"""Agents, and how many slots of each."""

ByWidth = Mapping[int, Set[str]]
"""Agents by how many slots they have."""


class Fit(StrEnum):
    """Which of the agents that have enough free slots a request gets."""

    BEST = "best"  # the one that keeps the fewest: wide requests find whole agents
    WORST = "worst"  # the one that keeps the most: work is spread over the agents


class Ranking:
    """Agents by a number that changes; equal ones by id."""

    def __init__(self, numbers: Mapping[str, int]) -> None:
        self._number = dict(numbers)
        # Ids of the agents with that number. An id whose number has changed is left behind, and
        # dropped when it comes up. What is sorted is a heap.
        self._heaps: dict[int, list[str]] = {}
        for agent_id in sorted(numbers):
            self._heaps.setdefault(numbers[agent_id], []).append(agent_id)
        self._numbers = sorted(self._heaps)

    def __getitem__(self, agent_id: str) -> int:
        return self._number[agent_id]

    def put(self, agent_id: str, number: int) -> None:
        """Sets the agent's number."""
        if self._number.get(agent_id) == number:
            return
        self._number[agent_id] = number
        heap = self._heaps.get(number)
        if heap is None:
            heap = self._heaps[number] = []
            bisect.insort(self._numbers, number)
        heapq.heappush(heap, agent_id)

    def least(self, at_least: int, excluded: Set[str]) -> str | None:
        """The agent with the least number that is ``at_least`` this."""
        for number in self._numbers[bisect.bisect_left(self._numbers, at_least) :]:
            if (found := self._first(number, excluded)) is not None:
                return found
        return None

    def greatest(self, at_least: int, excluded: Set[str]) -> str | None:
        """The agent with the largest number that is ``at_least`` this."""
        for number in reversed(self._numbers):
            if number < at_least:
                return None
            if (found := self._first(number, excluded)) is not None:
                return found
        return None

    def most(self, excluded: Set[str]) -> int:
        """The largest number; 0 without agents."""
        found = self.greatest(0, excluded)
        return 0 if found is None else self._number[found]

    def _first(self, number: int, excluded: Set[str]) -> str | None:
        heap = self._heaps[number]
        if heap and self._number[heap[0]] == number and heap[0] not in excluded:
            return heap[0]
        aside = []
        while heap and (self._number[heap[0]] != number or heap[0] in excluded):
            agent_id = heapq.heappop(heap)
            if self._number[agent_id] == number:
                aside.append(agent_id)
        found = heap[0] if heap else None
        for agent_id in aside:
            heapq.heappush(heap, agent_id)
        return found


class PoolSlots:
    """The slots of one pool's agents. ``excluded``: agents that the asker must not run on.

    :meth:`of` and :meth:`part` give the slots of some of the agents, kept up to date with what is taken and
    kept here; nothing is to be taken there.
    """

    def __init__(self, agents: Iterable[AgentInfo], fit: Fit = Fit.BEST) -> None:
        self._fit = fit
        # Free slots that are kept for a request which waits for more of the same agent.
        self._kept: dict[str, int] = {}
        self._agents = {agent.id: agent for agent in agents}
        self.names = frozenset(self._agents)
        self._matching: dict[Constraint, PoolSlots] = {}
        self._parts: dict[frozenset[str], PoolSlots] = {}
        self._parts_of: dict[str, list[PoolSlots]] = {}
        self._free = {agent.id: agent.free() for agent in self._agents.values()}
        self._by_free = Ranking({name: len(free) for name, free in self._free.items()})
        self._by_width = Ranking({one.id: len(one.slots) for one in self._agents.values()})
        # How many more it may run, negated, so that the least is the agent with the most room.
        self._by_tasks = Ranking(
            {one.id: one.zero_slot_tasks - one.max_zero_slot_tasks for one in self._agents.values()}
        )
        self._free_count = sum(map(len, self._free.values()))
        self._slot_count = sum(len(agent.slots) for agent in self._agents.values())
        self._width = {agent.id: len(agent.slots) for agent in self._agents.values()}
        self._widths = Counter(self._width.values())
        # Agents of which every slot is free and not kept, by their slots.
        self._idle: dict[int, set[str]] = {width: set() for width in self._widths}
        for one, free in self._free.items():
            if len(free) == self._width[one]:
                self._idle[len(free)].add(one)
        # Whether requests of so many slots could be held, if all were free.
        self._could_hold: dict[tuple[int, Spread], bool] = {}
        self._widest = max(self._widths, default=0)
        self._as_wide = self._widths[self._widest]
        # Of one agent; a pool's agents have the same.
        self.zero_slot_limit = max(
            (one.max_zero_slot_tasks for one in self._agents.values()), default=0
        )

    def of(self, constraint: Constraint | None) -> PoolSlots:
        """The slots of the agents that the constraint admits."""
        if constraint is None:
            return self
        found = self._matching.get(constraint)
        if found is None:
            admitted = (
                one.id for one in self._agents.values() if constraint.admits(one.id, one.labels)
            )
            found = self._matching[constraint] = self.part(frozenset(admitted))
        return found

    def part(self, names: frozenset[str]) -> PoolSlots:
        """The slots of these agents, which are some of this pool's."""
        if len(names) == len(self.names):
            return self
        found = self._parts.get(names)
        if found is None:
            found = PoolSlots((self._agents[one] for one in sorted(names)), self._fit)
            for one in names:
                found._put(one, self._free[one], self._kept.get(one, 0), self._by_tasks[one])
                self._parts_of.setdefault(one, []).append(found)
            self._parts[names] = found
        return found

    def _put(self, agent_id: str, free: list[int], kept: int, tasks: int) -> None:
        self._free_count += len(free) - len(self._free[agent_id])
        self._free[agent_id] = free
        if kept or agent_id in self._kept:
            self._kept[agent_id] = kept
        self._by_free.put(agent_id, len(free) - kept)
        width = self._width[agent_id]
        if len(free) - kept == width:
            self._idle[width].add(agent_id)
        else:
            self._idle[width].discard(agent_id)
        self._by_tasks.put(agent_id, tasks)
        for part in self._parts_of.get(agent_id, ()):
            part._put(agent_id, free, kept, tasks)

    def labels(self) -> list[str]:
        """Every label of the agents, as ``key=value``."""
        return sorted(
            {f"{key}={value}" for one in self._agents.values() for key, value in one.labels.items()}
        )

    def agents(self, excluded: Set[str] = frozenset()) -> int:
        """How many agents there are."""
        return len(self._agents) - sum(1 for _ in self._mine(excluded))

    def free(self, excluded: Set[str] = frozenset()) -> int:
        """How many slots nobody holds."""
        if not excluded:
            return self._free_count
        return self._free_count - sum(len(self._free[one]) for one in self._mine(excluded))

    def total(self, excluded: Set[str] = frozenset()) -> int:
        """How many slots there are, free or not."""
        if not excluded:
            return self._slot_count
        mine = self._mine(excluded)
        return self._slot_count - sum(len(self._agents[one].slots) for one in mine)

    def widest(self, excluded: Set[str] = frozenset()) -> int:
        """The most slots, free or not, of one agent."""
        if len(excluded) < self._as_wide or not excluded:
            return self._widest
        return self._by_width.most(excluded)

    def most_free(self, excluded: Set[str] = frozenset()) -> int:
        """The most free slots of one agent, kept ones included."""
        if any(self._kept.values()):
            return max(
                (len(free) for one, free in self._free.items() if one not in excluded), default=0
            )
        return self._by_free.most(excluded)

    def ids(self) -> Iterable[str]:
        """Of every agent."""
        return self._agents.keys()

    def agent(self, agent_id: str) -> AgentInfo:
        """As the snapshot has it. Raises KeyError."""
        return self._agents[agent_id]

    def __contains__(self, agent_id: object) -> bool:
        return agent_id in self._agents

    def idle(self) -> ByWidth:
        """The agents of which every slot is open."""
        return self._idle

    def open_of(self, agent_id: str) -> int:
        """The agent's slots that nobody holds and that are not kept."""
        return self._by_free[agent_id]

    def keep(self, agent_id: str, slots: int) -> None:
        """Keeps ``slots`` more of the agent's free slots from :meth:`fitting`; fewer when negative."""
        kept = self._kept.get(agent_id, 0) + slots
        self._put(agent_id, self._free[agent_id], kept, self._by_tasks[agent_id])

    def fitting(self, slots: int, excluded: Set[str] = frozenset()) -> str | None:
        """The agent that a request for ``slots`` gets; the first by id among equals."""
        if self._fit is Fit.WORST:
            return self._by_free.greatest(slots, excluded)
        return self._by_free.least(slots, excluded)

    # Requests that are wider than every agent

    def width(self, agent_id: str) -> int:
        """How many slots the agent has, free or not."""
        return self._width[agent_id]

    def could_hold(self, request: Request) -> bool:
        """Whether the request would fit, on one agent or several, if all slots were free."""
        slots, excluded = request.slots, request.excluded
        if slots <= self.widest(excluded):
            return True
        if excluded:
            widths = self._widths - Counter(self._width[one] for one in self._mine(excluded))
            return spread.most(slots, widths, request.spread) >= slots
        asked = (slots, request.spread)
        found = self._could_hold.get(asked)
        if found is None:
            found = spread.most(slots, self._widths, request.spread) >= slots
            self._could_hold[asked] = found
        return found

    def most_whole(self, request: Request) -> int:
        """The most slots that it could use of agents that are free as a whole, kept slots included."""
        whole = (
            self._width[one]
            for one, free in self._free.items()
            if len(free) == self._width[one] and one not in request.excluded
        )
        return spread.most(request.slots, Counter(whole), request.spread)

    def whole(
        self,
        request: Request,
        ready: ByWidth | None = None,
        gain: Mapping[str, int] | None = None,
    ) -> Places | None:
        """The agents that the request gets as a whole; None: not enough of them are free.

        ``ready``: agents of the pool all of whose slots can be had, if those are not the ones that are open
        now; of these slots' agents or more. ``gain``: as of :func:`~determined_service.base.spread.choose`.
        """
        if ready is None:
            ready = self._idle
        else:
            ready = {width: those & self.names for width, those in ready.items()}
        if request.excluded:
            ready = {width: those - request.excluded for width, those in ready.items()}
        return spread.choose(request.slots, ready, request.spread, gain)

    def take(self, agent_id: str, slots: int) -> tuple[int, ...]:
        """Takes the agent's first ``slots`` free slots; their ids."""
        free, kept = self._free[agent_id], self._kept.get(agent_id, 0)
        self._put(agent_id, free[slots:], kept, self._by_tasks[agent_id])
        return tuple(free[:slots])

    def least_busy(self, excluded: Set[str] = frozenset()) -> str | None:
        """The agent that has room for the most allocations without slots, if it may run one more."""
        found = self._by_tasks.least(-sys.maxsize, excluded)
        return None if found is None or self._by_tasks[found] >= 0 else found

    def add_task(self, agent_id: str) -> None:
        """The agent runs one more allocation without slots."""
        kept = self._kept.get(agent_id, 0)
        self._put(agent_id, self._free[agent_id], kept, self._by_tasks[agent_id] + 1)

    def _mine(self, excluded: Set[str]) -> Iterator[str]:
        return (one for one in excluded if one in self._agents)


def by_pool(snapshot: Snapshot, fit: Fit = Fit.BEST) -> dict[str, PoolSlots]:
    """The slots of each pool that has agents."""
    members: dict[str, list[AgentInfo]] = {}
    for agent in snapshot.agents:
        members.setdefault(agent.pool, []).append(agent)
    return {pool: PoolSlots(agents, fit) for pool, agents in members.items()}
