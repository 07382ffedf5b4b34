"""Every scheduler keeps the contract; first in, first out is also held against its rule, spelt out."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from scheduler_contract import SchedulerContract, allowed, snapshots

from determined_service.scheduling.first_in_first_out import FirstInFirstOut
from determined_service.scheduling.reasons import Behind
from determined_service.scheduling.scheduler import Placement
from determined_service.scheduling.snapshot import MAX_ZERO_SLOT_TASKS, Snapshot


class TestFirstInFirstOut(SchedulerContract):
    scheduler = FirstInFirstOut()

    @given(snapshots())
    def test_the_rule(self, snapshot: Snapshot) -> None:
        assert list(self.scheduler.decide(snapshot).placements) == rule(snapshot)

    @given(snapshots())
    def test_waiting_is_in_the_order_of_arrival(self, snapshot: Snapshot) -> None:
        waiting = [one.request for one in self.scheduler.decide(snapshot).waiting]
        assert waiting == [one for one in snapshot.requests if one in waiting]

    @given(snapshots())
    def test_only_an_earlier_request_holds_back(self, snapshot: Snapshot) -> None:
        order = list(snapshot.requests)
        for one in self.scheduler.decide(snapshot).waiting:
            if isinstance(one.reason, Behind):
                assert order.index(one.reason.first) < order.index(one.request)


def rule(snapshot: Snapshot) -> list[Placement]:
    """First in, first out, best fit, by looking at every agent for every request."""
    free = {agent.id: agent.free() for agent in snapshot.agents}
    tasks = {agent.id: agent.zero_slot_tasks for agent in snapshot.agents}
    used = Counter(snapshot.used_by_group)
    blocked: set[str] = set()
    found = []
    for request in snapshot.requests:
        agents = allowed(snapshot, request)
        if request.slots == 0:
            idle = [one for one in agents if tasks[one.id] < MAX_ZERO_SLOT_TASKS]
            if idle:
                chosen = min(idle, key=lambda one: (tasks[one.id], one.id))
                tasks[chosen.id] += 1
                found.append(Placement(request.id, chosen.id, ()))
            continue
        limited = request.max_slots is not None and request.group is not None
        if limited and used[request.group] + request.slots > request.max_slots:
            continue
        fitting = [one for one in agents if len(free[one.id]) >= request.slots]
        if request.pool in blocked or not fitting:
            if any(len(one.slots) >= request.slots for one in agents):
                blocked.add(request.pool)
            continue
        chosen = min(fitting, key=lambda one: (len(free[one.id]), one.id))
        taken, free[chosen.id] = free[chosen.id][: request.slots], free[chosen.id][request.slots :]
        if request.group is not None:
            used[request.group] += request.slots
        found.append(Placement(request.id, chosen.id, tuple(taken)))
    return found
