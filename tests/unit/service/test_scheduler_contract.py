"""Every scheduler keeps the contract; first in, first out is also held against its rule, spelt out."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from hypothesis import given
from scheduler_contract import POOLS, SchedulerContract, allowed, most_whole, snapshots

from determined.common.cluster_config import ClusterConfig
from determined_service.base.spread import Spread
from determined_service.scheduling.fair_share import FairShare
from determined_service.scheduling.first_in_first_out import FirstInFirstOut
from determined_service.scheduling.free_slots import Fit
from determined_service.scheduling.pools import PoolSchedulers
from determined_service.scheduling.priority import Priority
from determined_service.scheduling.reasons import Behind
from determined_service.scheduling.round_robin import RoundRobin
from determined_service.scheduling.scheduler import Placement
from determined_service.scheduling.snapshot import (
    MAX_ZERO_SLOT_TASKS,
    AgentInfo,
    Part,
    Request,
    Snapshot,
)

CLUSTER = ClusterConfig.model_validate(
    {
        "resource_pools": [
            {"pool_name": "p", "scheduler": {"type": "priority", "preemption": True}},
            {"pool_name": "q", "scheduler": {"type": "fair_share", "fitting_policy": "worst"}},
        ]
    }
)


class TestFirstInFirstOut(SchedulerContract):
    scheduler = FirstInFirstOut()

    @given(snapshots())
    def test_the_rule(self, snapshot: Snapshot) -> None:
        # A request that waits for slots of stopping allocations lets others pass; the rule does not state
        # this.
        snapshot = replace(snapshot, running=())
        found = self.scheduler.decide(snapshot)
        pool_of = {agent.id: agent.pool for agent in snapshot.agents}
        for pool in pool_of.values():
            mine = [one for one in rule(snapshot) if pool_of[one.agent_id] == pool]
            assert [one for one in found.placements if pool_of[one.agent_id] == pool] == mine
        assert len(found.placements) == len(rule(snapshot))

    @given(snapshots())
    def test_waiting_is_in_the_order_of_arrival(self, snapshot: Snapshot) -> None:
        waiting = [one.request for one in self.scheduler.decide(snapshot).waiting]
        for pool in POOLS:
            mine = [one for one in waiting if one.pool == pool]
            assert mine == [one for one in in_line(snapshot) if one in mine]

    @given(snapshots())
    def test_only_an_earlier_request_holds_back(self, snapshot: Snapshot) -> None:
        order = in_line(snapshot)
        for one in self.scheduler.decide(snapshot).waiting:
            if isinstance(one.reason, Behind):
                assert order.index(one.reason.first) < order.index(one.request)


class TestFirstInFirstOutWorstFit(SchedulerContract):
    scheduler = FirstInFirstOut(Fit.WORST)


class TestPriority(SchedulerContract):
    scheduler = Priority()

    @given(snapshots())
    def test_equal_priorities_are_first_in_first_out(self, snapshot: Snapshot) -> None:
        equal = replace(
            snapshot, requests=tuple(replace(one, priority=42) for one in snapshot.requests)
        )
        assert self.scheduler.decide(equal) == FirstInFirstOut().decide(equal)


class TestPriorityWithPreemption(SchedulerContract):
    scheduler = Priority(preemption=True)


class TestPriorityWithPreemptionWorstFit(SchedulerContract):
    scheduler = Priority(preemption=True, fit=Fit.WORST)


class TestFairShare(SchedulerContract):
    scheduler = FairShare()


class TestFairShareWorstFit(SchedulerContract):
    scheduler = FairShare(Fit.WORST)


class TestRoundRobin(SchedulerContract):
    scheduler = RoundRobin()


class TestPools(SchedulerContract):
    """One pool by priority with preemption, one by fair shares, and one that has no section."""

    scheduler = PoolSchedulers(lambda: CLUSTER)


def in_line(snapshot: Snapshot) -> list[Request]:
    return sorted(snapshot.requests, key=lambda one: (one.position, one.requested))


def rule(snapshot: Snapshot) -> list[Placement]:
    """First in, first out, best fit, by looking at every agent for every request."""
    free = {agent.id: agent.free() for agent in snapshot.agents}
    tasks = {agent.id: agent.zero_slot_tasks for agent in snapshot.agents}
    used = Counter(snapshot.used_by_group)
    blocked: set[str] = set()
    found = []
    for request in in_line(snapshot):
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
        widest = max((len(one.slots) for one in agents), default=0)
        fitting = [one for one in agents if len(free[one.id]) >= request.slots]
        if request.slots > widest:
            idle = [one for one in agents if one.slots and free[one.id] == list(one.slots)]
            fitting = whole(request, idle)
        if request.pool in blocked or not fitting:
            sizes = [len(one.slots) for one in agents]
            if request.slots <= widest or most_whole(request, sizes) >= request.slots:
                blocked.add(request.pool)
            continue
        if request.slots <= widest:
            fitting = [min(fitting, key=lambda one: (len(free[one.id]), one.id))]
        parts, missing = [], request.slots
        for chosen in fitting:
            taken, free[chosen.id] = free[chosen.id][:missing], free[chosen.id][missing:]
            parts.append(Part(chosen.id, tuple(taken)))
            missing -= len(taken)
        if request.group is not None:
            used[request.group] += request.slots
        found.append(Placement(request.id, *parts[0], tuple(parts[1:])))
    return found


def whole(request: Request, idle: list[AgentInfo]) -> list[AgentInfo]:
    """The wholly free agents that a gang gets: as few as possible."""
    idle = sorted(idle, key=lambda one: (-len(one.slots), one.id))
    for first in idle:
        size = len(first.slots)
        equal = [one for one in idle if len(one.slots) == size]
        divides = request.spread is not Spread.NONE and request.slots % size == 0
        if divides and size * len(equal) >= request.slots:
            return equal[: request.slots // size]
    if request.spread is not Spread.UNEVEN:
        return []
    for count in range(1, len(idle) + 1):
        if sum(len(one.slots) for one in idle[:count]) >= request.slots:
            return idle[:count]
    return []
