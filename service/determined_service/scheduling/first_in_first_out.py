"""First in, first out, best fit: the scheduler of every pool."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from determined_service.scheduling.free_slots import PoolSlots, by_pool
from determined_service.scheduling.reasons import (
    AgentsBusy,
    Behind,
    ExcludedEverywhere,
    Fragmented,
    GroupAtLimit,
    NoAgent,
    Reason,
    TooFewFree,
    TooWide,
)
from determined_service.scheduling.scheduler import Decision, Placement, Scheduler, Waiting
from determined_service.scheduling.snapshot import MAX_ZERO_SLOT_TASKS, Request, Snapshot


class FirstInFirstOut(Scheduler):
    """Requests are served in the order in which they came, each on the agent that it fits best.

    A request that does not fit yet holds back the later ones of its pool (a wide one would starve
    otherwise), except where waiting cannot help: no agent that it may run on is wide enough, or its
    experiment has all the slots that ``resources.max_slots`` allows. Requests for no slots hold back
    nobody and are held back by nobody. Priority and weight are not heeded.
    """

    def decide(self, snapshot: Snapshot) -> Decision:
        """One pass over the requests."""
        used = Counter(snapshot.used_by_group)
        lines = {name: _Line(slots, used) for name, slots in by_pool(snapshot).items()}
        placements: list[Placement] = []
        waiting: list[Waiting] = []
        for request in snapshot.requests:
            line = lines.get(request.pool)
            found = NoAgent() if line is None else line.serve(request)
            if isinstance(found, Placement):
                placements.append(found)
            else:
                waiting.append(Waiting(request, found))
        # A narrower request of the same group may have been placed after the one at the limit.
        settled = (
            Waiting(one.request, _exceeded(one.request, used) or one.reason)
            if isinstance(one.reason, GroupAtLimit)
            else one
            for one in waiting
        )
        return Decision(tuple(placements), tuple(settled))


class _Line:
    """The requests of one pool, while they are served."""

    def __init__(self, slots: PoolSlots, used: Counter[int]) -> None:
        self._slots = slots
        self._used = used
        # The first request that must wait for slots, and how many stand in line behind it.
        self._first: Request | None = None
        self._behind = 0

    def serve(self, request: Request) -> Placement | Reason:
        """Places the request, or says why it waits."""
        slots, excluded, wanted = self._slots, request.excluded, request.slots
        if excluded and not slots.agents(excluded):
            return ExcludedEverywhere(slots.agents())
        if wanted == 0:
            agent_id = slots.least_busy(excluded)
            if agent_id is None:
                return AgentsBusy(slots.agents(excluded), MAX_ZERO_SLOT_TASKS)
            slots.add_task(agent_id)
            return Placement(request.id, agent_id, ())
        if wanted > (widest := slots.widest(excluded)):
            return TooWide(widest)
        if (limit := _exceeded(request, self._used)) is not None:
            return limit
        if self._first is not None:
            self._behind += 1
            free, total = slots.free(excluded), slots.total(excluded)
            return Behind(self._behind, self._first, free, total)
        agent_id = slots.best_fit(wanted, excluded)
        if agent_id is None:
            self._first = request
            free, total = slots.free(excluded), slots.total(excluded)
            if free < wanted:
                return TooFewFree(free, total)
            return Fragmented(free, total, slots.most_free(excluded))
        if request.group is not None:
            self._used[request.group] += wanted
        return Placement(request.id, agent_id, slots.take(agent_id, wanted))


def _exceeded(request: Request, used: Mapping[int, int]) -> GroupAtLimit | None:
    if request.max_slots is None or request.group is None:
        return None
    held = used.get(request.group, 0)
    if held + request.slots <= request.max_slots:
        return None
    return GroupAtLimit(held, request.max_slots)
