"""What is free while a scheduler decides: agents found by their free slots, without a scan."""

from __future__ import annotations

import bisect
import heapq
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from enum import StrEnum

from determined_service.base import spread
from determined_service.scheduling.snapshot import Agent, Request, Snapshot

Places = Sequence[tuple[str, int]]
"""Agents, and how many slots of each."""


class Fit(StrEnum):
    """Which of the agents that have enough free slots a request gets."""

    BEST = "best"  # the one that keeps the fewest: wide requests find whole agents
    WORST = "worst"  # the one that keeps the most: work is spread over the agents


class Ranking:
    """Agents by a number that changes; equal ones by id."""

    def __init__(self) -> None:
        self._number: dict[str, int] = {}
        self._numbers: list[int] = []
        # Ids of the agents with that number. An id whose number has changed is left behind, and
        # dropped when it comes up.
        self._heaps: dict[int, list[str]] = {}

    def __getitem__(self, agent_id: str) -> int:
        return self._number[agent_id]

    def put(self, agent_id: str, number: int) -> None:
        """Sets the agent's number."""
        self._number[agent_id] = number
        if number not in self._heaps:
            self._heaps[number] = []
            bisect.insort(self._numbers, number)
        heapq.heappush(self._heaps[number], agent_id)

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
        heap, aside = self._heaps[number], []
        while heap and (self._number[heap[0]] != number or heap[0] in excluded):
            agent_id = heapq.heappop(heap)
            if self._number[agent_id] == number:
                aside.append(agent_id)
        found = heap[0] if heap else None
        for agent_id in aside:
            heapq.heappush(heap, agent_id)
        return found


class PoolSlots:
    """The slots of one pool's agents. ``excluded``: agents that the asker must not run on."""

    def __init__(self, agents: Iterable[Agent], fit: Fit = Fit.BEST) -> None:
        self._fit = fit
        # Free slots that are kept for a request which waits for more of the same agent.
        self._kept: dict[str, int] = {}
        self._agents = {agent.id: agent for agent in agents}
        self._free = {agent.id: agent.free() for agent in self._agents.values()}
        self._by_free, self._by_width, self._by_tasks = Ranking(), Ranking(), Ranking()
        self._width = {agent.id: len(agent.slots) for agent in self._agents.values()}
        self._widths = Counter(self._width.values())
        # Agents of which every slot is free and not kept.
        self._idle: set[str] = set()
        for agent in self._agents.values():
            self._opened(agent.id, len(self._free[agent.id]))
            self._by_width.put(agent.id, len(agent.slots))
            # How many more it may run, negated, so that the least is the agent with the most room.
            self._by_tasks.put(agent.id, agent.zero_slot_tasks - agent.max_zero_slot_tasks)
        self._free_count = sum(map(len, self._free.values()))
        self._slot_count = sum(len(agent.slots) for agent in self._agents.values())
        self._widest = self._by_width.most(frozenset())
        # Of one agent; a pool's agents have the same.
        self.zero_slot_limit = max(
            (one.max_zero_slot_tasks for one in self._agents.values()), default=0
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
        return self._by_width.most(excluded) if excluded else self._widest

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

    def agent(self, agent_id: str) -> Agent:
        """As the snapshot has it. Raises KeyError."""
        return self._agents[agent_id]

    def __contains__(self, agent_id: object) -> bool:
        return agent_id in self._agents

    def open_of(self, agent_id: str) -> int:
        """The agent's slots that nobody holds and that are not kept."""
        return self._by_free[agent_id]

    def keep(self, agent_id: str, slots: int) -> None:
        """Keeps ``slots`` more of the agent's free slots from :meth:`fitting`; fewer when negative."""
        self._kept[agent_id] = self._kept.get(agent_id, 0) + slots
        self._opened(agent_id, len(self._free[agent_id]) - self._kept[agent_id])

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
        if request.slots <= self.widest(request.excluded):
            return True
        widths = self._widths
        if request.excluded:
            widths = widths - Counter(self._width[one] for one in self._mine(request.excluded))
        return spread.most(request.slots, widths, request.spread) >= request.slots

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
        opened: Callable[[str], int] | None = None,
        cost: Callable[[str], int] | None = None,
    ) -> Places | None:
        """The agents that the request gets as a whole; None: not enough of them are free.

        ``opened``: how many slots of an agent can be had, if that is not what is open now. ``cost``: those
        of the least are preferred among equal ones.
        """
        mine: Iterable[str] = self._idle
        if opened is not None:
            mine = [one for one, width in self._width.items() if opened(one) >= width]
        ready: dict[int, list[str]] = {}
        for agent_id in mine:
            if agent_id not in request.excluded:
                ready.setdefault(self._width[agent_id], []).append(agent_id)
        return spread.choose(request.slots, ready, request.spread, cost)

    def _opened(self, agent_id: str, slots: int) -> None:
        """So many of its slots are open now."""
        self._by_free.put(agent_id, slots)
        if slots == self._width[agent_id]:
            self._idle.add(agent_id)
        else:
            self._idle.discard(agent_id)

    def take(self, agent_id: str, slots: int) -> tuple[int, ...]:
        """Takes the agent's first ``slots`` free slots; their ids."""
        free = self._free[agent_id]
        self._free[agent_id] = free[slots:]
        self._opened(agent_id, len(free) - slots - self._kept.get(agent_id, 0))
        self._free_count -= slots
        return tuple(free[:slots])

    def least_busy(self, excluded: Set[str] = frozenset()) -> str | None:
        """The agent that has room for the most allocations without slots, if it may run one more."""
        found = self._by_tasks.least(-sys.maxsize, excluded)
        return None if found is None or self._by_tasks[found] >= 0 else found

    def add_task(self, agent_id: str) -> None:
        """The agent runs one more allocation without slots."""
        self._by_tasks.put(agent_id, self._by_tasks[agent_id] + 1)

    def _mine(self, excluded: Set[str]) -> Iterator[str]:
        return (one for one in excluded if one in self._agents)


def by_pool(snapshot: Snapshot, fit: Fit = Fit.BEST) -> dict[str, PoolSlots]:
    """The slots of each pool that has agents."""
    members: dict[str, list[Agent]] = {}
    for agent in snapshot.agents:
        members.setdefault(agent.pool, []).append(agent)
    return {pool: PoolSlots(agents, fit) for pool, agents in members.items()}
