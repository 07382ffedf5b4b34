"""The promises of every scheduler (:class:`determined_service.scheduling.scheduler.Scheduler`), as tests.

A subclass named ``Test…`` in a test file gives ``scheduler``.
"""

from __future__ import annotations

import copy
from collections import Counter
from dataclasses import replace
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from determined_service.base.spread import Spread
from determined_service.scheduling.reasons import (
    AgentsBusy,
    Behind,
    ExcludedEverywhere,
    Fragmented,
    GroupAtLimit,
    NoAgent,
    NoneAdmitted,
    NotWhole,
    Reason,
    SlotsComing,
    TooFewFree,
    TooWide,
)
from determined_service.scheduling.scheduler import Decision, Scheduler, Waiting
from determined_service.scheduling.snapshot import (
    MAX_ZERO_SLOT_TASKS,
    AgentInfo,
    Constraint,
    Occupant,
    Part,
    Request,
    Snapshot,
)
from determined_service.scheduling.wording import in_short, in_words
from tests.costly import costly

POOLS = ("p", "q", "nobody")


def _bits(mask: int) -> list[int]:
    return [slot for slot in range(6) if mask >> slot & 1]


# Some of an agent's slots are disabled, which may be held all the same.
AGENTS = st.builds(
    lambda name, pool, enabled, used, tasks, labels: AgentInfo(
        name, pool, tuple(_bits(enabled)), frozenset(_bits(used)), tasks, labels=labels
    ),
    st.sampled_from([f"a{number}" for number in range(5)]),
    st.sampled_from(POOLS[:2]),
    # Often of the same size, and free, so that gangs fit.
    st.sampled_from([0b11, 0b1100, 0b1111]) | st.integers(0, 63),
    st.just(0) | st.integers(0, 63),
    st.sampled_from([0, 1, MAX_ZERO_SLOT_TASKS - 1, MAX_ZERO_SLOT_TASKS]),
    st.sampled_from([{}, {"gpu": "a"}, {"gpu": "b"}, {"gpu": "b", "zone": "1"}]),
)
CONSTRAINTS = (
    Constraint(labels=(("gpu", frozenset("ab")),)),
    Constraint(labels=(("gpu", frozenset("b")), ("zone", frozenset("1")))),
    Constraint(labels=(("gpu", frozenset("a")),)),
    Constraint(frozenset({"a0", "a1", "a2"})),
    Constraint(frozenset({"a1", "a2", "a9"}), (("gpu", frozenset("a")),)),
)
# Each group is in one pool and has one limit and one constraint.
CONSTRAINT_OF = {1: CONSTRAINTS[0], 4: CONSTRAINTS[3]}
GROUPS = {0: ("p", None), 1: ("p", 3), 2: ("q", 2), 3: ("nobody", 1), 4: ("p", 6), 5: ("q", 4)}
REQUESTS = st.builds(
    lambda slots, group, pool, excluded, priority, spread, constraint: Request(
        "",
        pool if group is None else GROUPS[group][0],
        slots,
        group,
        None if group is None else GROUPS[group][1],
        frozenset(f"a{number}" for number in excluded),
        priority,
        weight=priority / 8,
        position=float(group or 0),
        preemptible=priority % 2 == 0,
        spread=spread,
        constraint=constraint if group is None else CONSTRAINT_OF.get(group),
    ),
    st.sampled_from([1, 1, 1, 2, 2, 3, 4, 0, 6, 7, 8]),
    st.none() | st.sampled_from(sorted(GROUPS)),
    st.sampled_from(POOLS),
    st.just([]) | st.lists(st.integers(0, 4), max_size=3),
    st.integers(1, 99),
    st.sampled_from(list(Spread)),
    st.none() | st.sampled_from(CONSTRAINTS),
)


@st.composite
def snapshots(draw: st.DrawFn) -> Snapshot:
    """Up to five agents and a dozen requests; most of them can be placed or block each other."""
    requests = draw(st.lists(REQUESTS, max_size=12))
    agents = draw(st.lists(AGENTS, max_size=5, unique_by=lambda agent: agent.id))
    used = draw(st.dictionaries(st.sampled_from(sorted(GROUPS)), st.integers(0, 4)))
    numbered = tuple(
        replace(request, id=f"r{number}", requested=float(number))
        for number, request in enumerate(requests)
    )
    running: list[Occupant] = []
    for agent in agents:
        held = sorted(agent.used)
        while held:
            count = draw(st.integers(1, len(held)))
            running.append(_running(draw, f"h{len(running)}", agent, tuple(held[:count]), numbered))
            held = held[count:]
    running = _joined(draw, running, {agent.id: agent.pool for agent in agents})
    return Snapshot(numbered, tuple(agents), used, tuple(running))


def _joined(draw: st.DrawFn, running: list[Occupant], pool: dict[str, str]) -> list[Occupant]:
    """``running``, with some allocations changed to gangs on several agents of a pool."""
    found: list[Occupant] = []
    for one in running:
        whole = next(
            (
                at
                for at, other in enumerate(found)
                if pool[other.agent_id] == pool[one.agent_id]
                and one.agent_id not in [part.agent_id for part in other.parts]
            ),
            None,
        )
        if whole is None or not draw(st.booleans()):
            found.append(one)
        else:
            others = (*found[whole].others, Part(one.agent_id, one.slot_ids))
            found[whole] = replace(found[whole], others=others)
    return found


def _running(
    draw: st.DrawFn,
    name: str,
    agent: AgentInfo,
    slots: tuple[int, ...],
    requests: tuple[Request, ...],
) -> Occupant:
    """An allocation that holds the slots; perhaps a scheduler or a user has asked it to stop."""
    mine = [group for group, (pool, _) in GROUPS.items() if pool == agent.pool]
    group = draw(st.none() | st.sampled_from(mine))
    priority = draw(st.integers(1, 99))
    stopping = draw(st.sampled_from([False, False, True]))
    waiting = [one.id for one in requests if one.pool == agent.pool] or [None]
    return Occupant(
        name,
        agent.id,
        slots,
        group,
        None if group is None else GROUPS[group][1],
        priority,
        weight=priority / 8,
        position=float(group or 0),
        preemptible=draw(st.booleans()),
        requested=-100.0 + int(name[1:]),
        stopping=stopping,
        stopping_for=draw(st.none() | st.sampled_from([*waiting, "gone"])) if stopping else None,
    )


def after(snapshot: Snapshot, decision: Decision) -> Snapshot:
    """The snapshot after only the placements are made."""
    placed = {placement.id: placement for placement in decision.placements}
    requests = {request.id: request for request in snapshot.requests}
    found = []
    for agent in snapshot.agents:
        parts = [part for one in decision.placements for part in one.parts]
        mine = [part for part in parts if part.agent_id == agent.id]
        slots = {slot for one in mine for slot in one.slot_ids}
        tasks = agent.zero_slot_tasks + sum(not one.slot_ids for one in mine)
        found.append(replace(agent, used=agent.used | slots, zero_slot_tasks=tasks))
    used = Counter(snapshot.used_by_group)
    for placement in decision.placements:
        group = requests[placement.id].group
        if group is not None:
            used[group] += sum(len(part.slot_ids) for part in placement.parts)
    left = tuple(one for one in snapshot.requests if one.id not in placed)
    stopped = {one.id: one.request_id for one in decision.preemptions}
    running = [
        replace(one, stopping=True, stopping_for=stopped[one.id]) if one.id in stopped else one
        for one in snapshot.running
    ]
    for placement in decision.placements:
        one = requests[placement.id]
        running.append(
            Occupant(
                one.id,
                placement.agent_id,
                placement.slot_ids,
                one.group,
                one.max_slots,
                one.priority,
                one.weight,
                one.position,
                one.preemptible,
                one.requested,
                others=placement.others,
            )
        )
    return Snapshot(left, tuple(found), used, tuple(running))


def usable(snapshot: Snapshot, one: Occupant, on: tuple[str, ...]) -> int:
    """The number of the slots that ``one`` holds of the agents ``on`` others may use after it."""
    enabled = {agent.id: set(agent.slots) for agent in snapshot.agents}
    return sum(
        len(set(part.slot_ids) & enabled[part.agent_id])
        for part in one.parts
        if part.agent_id in on
    )


def agents_of(reason: SlotsComing) -> tuple[str, ...]:
    """The agents for which a request waits."""
    return (reason.agent_id, *reason.others)


def most_whole(request: Request, sizes: list[int]) -> int:
    """The most slots that the request could use of agents of these sizes."""
    even = [size * sizes.count(size) for size in set(sizes) if size and request.slots % size == 0]
    if request.spread is Spread.NONE:
        return 0
    if request.spread is Spread.EVEN or max(even, default=0) >= request.slots:
        return max(even, default=0)
    return sum(sizes)


def allowed(snapshot: Snapshot, request: Request) -> list[AgentInfo]:
    """The agents that the request may run on."""
    return [
        agent
        for agent in snapshot.agents
        if agent.id in admitted(snapshot, request) and agent.id not in request.excluded
    ]


def admitted(snapshot: Snapshot, request: Request) -> set[str]:
    """The agents that the request's pool has and its constraint admits."""
    wanted = request.constraint
    return {
        agent.id
        for agent in snapshot.agents
        if agent.pool == request.pool and (wanted is None or wanted.admits(agent.id, agent.labels))
    }


def true_reasons(snapshot: Snapshot, request: Request) -> dict[type[Any], Reason]:
    """Every reason but :class:`Behind` that holds for the request, with its numbers."""
    pool = [agent for agent in snapshot.agents if agent.pool == request.pool]
    mine = allowed(snapshot, request)
    frees = [len(agent.free()) for agent in mine]
    free, total, most = sum(frees), sum(len(one.slots) for one in mine), max(frees, default=0)
    widest = max((len(agent.slots) for agent in mine), default=0)
    used = 0 if request.group is None else snapshot.used_by_group.get(request.group, 0)
    found: list[Reason] = []
    if not pool:
        found.append(NoAgent())
    elif not admitted(snapshot, request):
        labels = {f"{key}={value}" for agent in pool for key, value in agent.labels.items()}
        found.append(NoneAdmitted(len(pool), tuple(sorted(labels))))
    elif not mine:
        found.append(ExcludedEverywhere(len(admitted(snapshot, request))))
    elif request.slots == 0:
        if all(agent.zero_slot_tasks >= MAX_ZERO_SLOT_TASKS for agent in mine):
            found.append(AgentsBusy(len(mine), MAX_ZERO_SLOT_TASKS))
    else:
        gang = request.slots > widest
        idle = [len(agent.slots) for agent in mine if len(agent.free()) == len(agent.slots)]
        whole = most_whole(request, idle)
        if gang and most_whole(request, [len(agent.slots) for agent in mine]) < request.slots:
            found.append(TooWide(widest))
        if request.max_slots is not None and used + request.slots > request.max_slots:
            found.append(GroupAtLimit(used, request.max_slots))
        if free < request.slots:
            found.append(TooFewFree(free, total))
        elif gang and whole < request.slots:
            found.append(NotWhole(free, total, whole))
        elif not gang and most < request.slots:
            found.append(Fragmented(free, total, most))
    return {type(reason): reason for reason in found}


def _settled(one: Waiting) -> Waiting | tuple[Request, type[Reason]]:
    """The agent whose freed slots a request awaits may change, which delays no request."""
    return (one.request, SlotsComing) if isinstance(one.reason, SlotsComing) else one


# One test for every scheduler; each class stands for itself, and examples are not kept. Each of nine
# schedulers is checked against each guarantee, with separate snapshots: a few for each add up to many. On a
# machine that others keep busy a snapshot takes long to make.
shared = settings(
    costly, suppress_health_check=[HealthCheck.differing_executors, HealthCheck.too_slow]
)


class SchedulerContract:
    """The promises, by their numbers in the docstring of ``Scheduler``."""

    scheduler: Scheduler

    @shared
    @given(snapshots())
    def test_1_a_pure_function(self, snapshot: Snapshot) -> None:
        before = copy.deepcopy(snapshot)
        decision = self.scheduler.decide(snapshot)
        assert snapshot == before
        self.scheduler.decide(Snapshot((), ()))
        assert self.scheduler.decide(before) == decision

    @shared
    @given(snapshots())
    def test_2_nothing_is_lost(self, snapshot: Snapshot) -> None:
        decision = self.scheduler.decide(snapshot)
        placed = [placement.id for placement in decision.placements]
        waiting = [one.request.id for one in decision.waiting]
        assert sorted(placed + waiting) == sorted(request.id for request in snapshot.requests)

    @shared
    @given(snapshots())
    def test_3_placements_can_be_made(self, snapshot: Snapshot) -> None:
        requests = {request.id: request for request in snapshot.requests}
        free = {agent.id: set(agent.free()) for agent in snapshot.agents}
        decision = self.scheduler.decide(snapshot)
        for placement in decision.placements:
            request = requests[placement.id]
            agents = {agent.id: agent for agent in allowed(snapshot, request)}
            assert sum(len(part.slot_ids) for part in placement.parts) == request.slots
            assert len({part.agent_id for part in placement.parts}) == len(placement.parts)
            mine = [agents[part.agent_id] for part in placement.parts]
            if len(mine) > 1:
                assert request.slots > max(len(agent.slots) for agent in agents.values())
                assert all(free[agent.id] == set(agent.slots) for agent in mine)
                sizes = {len(part.slot_ids) for part in placement.parts}
                whole = all(
                    len(p.slot_ids) == len(a.slots)
                    for p, a in zip(placement.parts, mine, strict=True)
                )
                assert request.spread is not Spread.NONE
                assert request.spread is Spread.UNEVEN or (whole and len(sizes) == 1)
                without_last = zip(placement.parts[:-1], mine[:-1], strict=True)
                assert all(len(part.slot_ids) == len(agent.slots) for part, agent in without_last)
            for part in placement.parts:
                for slot in part.slot_ids:
                    free[part.agent_id].remove(slot)
        then = after(snapshot, decision)
        for was, agent in zip(snapshot.agents, then.agents, strict=True):
            assert agent.zero_slot_tasks <= max(MAX_ZERO_SLOT_TASKS, was.zero_slot_tasks)
        for placement in decision.placements:
            request = requests[placement.id]
            if request.slots and request.max_slots is not None and request.group is not None:
                assert then.used_by_group[request.group] <= request.max_slots

    @shared
    @given(snapshots())
    def test_3_preemptions_can_be_made_and_are_of_use(self, snapshot: Snapshot) -> None:
        decision = self.scheduler.decide(snapshot)
        running = {one.id: one for one in snapshot.running}
        waiting = {one.request.id: one.reason for one in decision.waiting}
        above: list[Occupant] = []
        assert len({one.id for one in decision.preemptions}) == len(decision.preemptions)
        for preemption in decision.preemptions:
            victim = running[preemption.id]
            assert victim.preemptible
            assert not victim.stopping
            if preemption.request_id == preemption.id:
                above.append(victim)
                continue
            reason = waiting[preemption.request_id]
            assert isinstance(reason, SlotsComing)
            assert usable(snapshot, victim, agents_of(reason))
        for group, (_, limit) in GROUPS.items():
            held = snapshot.used_by_group.get(group, 0)
            held -= sum(
                one.width for one in snapshot.running if one.stopping and one.group == group
            )
            mine = [one.width for one in above if one.group == group]
            if mine:
                # Without the last preemption too few slots would be free.
                assert limit is not None
                assert held - sum(mine) + mine[-1] > limit

    @shared
    @given(snapshots())
    def test_4_reasons_are_true(self, snapshot: Snapshot) -> None:
        decision = self.scheduler.decide(snapshot)
        then = after(snapshot, decision)
        # By pool: the first that waits for slots, and how many stand in line.
        lines: dict[str, list[Request]] = {}
        for one in decision.waiting:
            request, reason = one.request, one.reason
            true = true_reasons(then, request)
            line = lines.setdefault(request.pool, [])
            if isinstance(reason, Behind):
                agents = admitted(then, request)
                before = [other for other in line if agents & admitted(then, other)]
                assert before, "behind nobody"
                assert (reason.first, reason.ahead) == (before[0], len(before))
                mine = allowed(then, request)
                assert reason.free == sum(len(agent.free()) for agent in mine)
                assert reason.total == sum(len(agent.slots) for agent in mine)
                # A request that can never run, or not now with all slots free, must not stand in line.
                assert not true.keys() & {
                    NoAgent,
                    NoneAdmitted,
                    ExcludedEverywhere,
                    TooWide,
                    GroupAtLimit,
                }
                assert request.slots > 0
                line.append(request)
            elif isinstance(reason, SlotsComing):
                awaited = agents_of(reason)
                those = [one for one in allowed(then, request) if one.id in awaited]
                assert sorted(awaited) == sorted(one.id for one in those)
                stopping = [usable(then, one, awaited) for one in then.running if one.stopping]
                assert reason.free <= sum(len(agent.free()) for agent in those)
                assert 0 < reason.coming <= sum(stopping)
                assert reason.free + reason.coming >= request.slots
                assert len(awaited) == 1 or request.slots > max(
                    len(one.slots) for one in allowed(then, request)
                )
                assert not true.keys() & {TooWide, GroupAtLimit}
                line.append(request)
            else:
                assert true.get(type(reason)) == reason
                if isinstance(reason, TooFewFree | Fragmented | NotWhole):
                    assert not true.keys() & {TooWide, GroupAtLimit}
                    line.append(request)

    @shared
    @given(snapshots())
    def test_four_idle_slots_are_reserved_for_their_pool(self, snapshot: Snapshot) -> None:
        decision = self.scheduler.decide(snapshot)
        then = after(snapshot, decision)
        ahead: dict[str, list[Request]] = {}
        for one in decision.waiting:
            request = one.request
            line = ahead.setdefault(request.pool, [])
            kept = {agent for other in line for agent in admitted(then, other)}
            full = true_reasons(then, request).keys() & {GroupAtLimit}
            for agent in allowed(then, request) if request.slots and not full else ():
                if len(agent.free()) >= request.slots and agent.id not in kept:
                    # It waits for others of its group, or for slots that are being freed.
                    assert request.group is not None or isinstance(one.reason, SlotsComing)
            if isinstance(one.reason, Behind | SlotsComing | TooFewFree | Fragmented | NotWhole):
                line.append(request)

    @shared
    @given(snapshots())
    def test_5_settled(self, snapshot: Snapshot) -> None:
        decision = self.scheduler.decide(snapshot)
        # Stopping slots that are no longer needed may serve other requests, which may then need further
        # slots.
        rounds = 1 if not any(one.stopping for one in snapshot.running) else 5
        for _ in range(rounds):
            snapshot = after(snapshot, decision)
            before, decision = decision, self.scheduler.decide(snapshot)
            if not decision.placements and not decision.preemptions:
                break
        assert not decision.placements
        assert not decision.preemptions
        if rounds == 1:
            assert list(map(_settled, decision.waiting)) == list(map(_settled, before.waiting))

    @shared
    @given(snapshots())
    def test_6_places_in_the_queue(self, snapshot: Snapshot) -> None:
        decision = self.scheduler.decide(snapshot)
        waiting = [one.request for one in decision.waiting]
        for group in GROUPS:
            first = next((at for at, one in enumerate(waiting) if one.group == group), 0)
            ahead = [one for one in waiting[:first] if one.pool == waiting[first].pool]
            jobs = {one.id if one.group is None else str(one.group) for one in ahead}
            assert decision.ahead_by_job().get(group, 0) == len(jobs)

    @shared
    @given(snapshots())
    def test_each_reason_has_words(self, snapshot: Snapshot) -> None:
        for one in self.scheduler.decide(snapshot).waiting:
            words = in_words(one)
            assert words.startswith(f"wants {one.request.slots} slot")
            assert f"of resource pool {one.request.pool!r}" in words
            assert in_short(one, 2).startswith(f"needs {one.request.slots}")

    def test_pools_do_not_wait_for_each_other(self) -> None:
        agents = (AgentInfo("x", "p", (0,), frozenset({0})), AgentInfo("y", "q", (0,)))
        snapshot = Snapshot((Request("a", "p", 1), Request("b", "q", 1)), agents)
        assert [one.id for one in self.scheduler.decide(snapshot).placements] == ["b"]
