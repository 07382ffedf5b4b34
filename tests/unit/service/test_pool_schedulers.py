"""A pool's scheduler follows the cluster's configuration."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import pytest

from determined.common.cluster_config import ClusterConfig, SchedulerConfig
from determined_service.scheduling.fair_share import FairShare
from determined_service.scheduling.first_in_first_out import FirstInFirstOut
from determined_service.scheduling.placement import LONG_PASS_S, REST_MOST_S, rest_after
from determined_service.scheduling.pools import MANY, PoolSchedulers, scheduler_of
from determined_service.scheduling.priority import Priority
from determined_service.scheduling.reasons import AgentsBusy, Unplaced
from determined_service.scheduling.round_robin import RoundRobin
from determined_service.scheduling.scheduler import Decision, Placement
from determined_service.scheduling.snapshot import AgentInfo, Occupant, Request, Resting, Snapshot


def schedulers(**pools: dict[str, Any]) -> PoolSchedulers:
    listed = [{"pool_name": name, **pool} for name, pool in pools.items()]
    config = ClusterConfig.model_validate({"resource_pools": listed})
    return PoolSchedulers(lambda: config)


@pytest.mark.parametrize(
    ("type_", "kind"),
    [
        ("priority", Priority),
        ("fair_share", FairShare),
        ("round_robin", RoundRobin),
        ("first_in_first_out", FirstInFirstOut),
    ],
)
def test_each_type_has_its_scheduler(type_: str, kind: type) -> None:
    found = scheduler_of(SchedulerConfig.model_validate({"type": type_}))
    assert type(found) is kind


def test_without_a_file_it_is_by_priority_without_preemption() -> None:
    found = PoolSchedulers()
    assert (found.config("any").type, found.config("any").preemption) == ("priority", False)
    assert (found.default_priority("any"), found.max_zero_slot_tasks("any")) == (42, 100)


@pytest.mark.parametrize(("policy", "agent"), [("best", "tight"), ("worst", "idle")])
def test_fitting_policies(policy: str, agent: str) -> None:
    agents = (AgentInfo("idle", "p", (0, 1, 2, 3)), AgentInfo("tight", "p", (0, 1), frozenset({0})))
    found = schedulers(p={"scheduler": {"fitting_policy": policy}})
    decision = found.decide(Snapshot((Request("r", "p", 1),), agents))
    slot = 1 if agent == "tight" else 0
    assert decision.placements == (Placement("r", agent, (slot,)),)


@pytest.mark.parametrize("type_", ["priority", "fair_share", "round_robin", "first_in_first_out"])
def test_what_rests_takes_no_part(type_: str) -> None:
    found = schedulers(
        p={"scheduler": {"type": type_}}, q={"scheduler": {"fitting_policy": "worst"}}
    )
    requests = tuple(Request(str(one), "p", 2, one, requested=1.0 + one) for one in range(3))
    without = Snapshot(requests, (AgentInfo("a", "p", (0, 1, 2, 3)), AgentInfo("b", "q", (0, 1))))
    # More important, before all others, and of a pool that nothing else waits for.
    first = Request("r", "p", 2, 9, priority=1, position=-1.0)
    resting = (Resting(first, 130.5, "no nodes"), Resting(replace(first, pool="z"), 120.0, "none"))
    before = found.decide(without)
    decision = found.decide(replace(without, resting=resting, moment=100.0))
    assert decision.placements == before.placements
    assert decision.waiting[: len(before.waiting)] == before.waiting
    rest = {one.request.pool: one.reason for one in decision.waiting[len(before.waiting) :]}
    assert rest == {"p": Unplaced("no nodes", 30.5), "z": Unplaced("none", 20.0)}


def test_pools_differ() -> None:
    """The same in three pools: one preempts, one does not, one knows only turns."""
    found = schedulers(
        stops={"scheduler": {"preemption": True}},
        waits={"scheduler": {"type": "priority"}},
        turns={"scheduler": {"type": "round_robin"}},
    )
    names = ("stops", "waits", "turns")
    agents = tuple(AgentInfo(f"a-{name}", name, (0,), frozenset({0})) for name in names)
    running = tuple(Occupant(f"r-{name}", f"a-{name}", (0,), priority=50) for name in names)
    requests = tuple(Request(f"q-{name}", name, 1, priority=1) for name in names)
    decision = found.decide(Snapshot(requests, agents, {}, running))
    assert [one.id for one in decision.preemptions] == ["r-stops"]
    assert {one.request.id for one in decision.waiting} == {f"q-{name}" for name in names}


def test_tasks_without_slots_have_the_pools_limit() -> None:
    found = schedulers(p={"max_aux_containers_per_agent": 2})
    agent = AgentInfo("a", "p", (0,), max_zero_slot_tasks=found.max_zero_slot_tasks("p"))
    requests = tuple(Request(f"r{number}", "p", 0) for number in range(3))
    decision = found.decide(Snapshot(requests, (agent,)))
    assert [one.id for one in decision.placements] == ["r0", "r1"]
    assert [one.reason for one in decision.waiting] == [AgentsBusy(1, 2)]


def test_a_new_configuration_holds_from_the_next_decision_on() -> None:
    config = ClusterConfig()
    found = PoolSchedulers(lambda: config)
    assert found.config("default").type == "priority"
    config = ClusterConfig.model_validate(
        {"resource_manager": {"scheduler": {"type": "fair_share"}}}
    )
    assert found.config("default").type == "fair_share"


async def test_a_long_queue_is_decided_beside_the_event_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mine = PoolSchedulers()
    threads: list[int] = []
    decide = PoolSchedulers.decide

    def noted(self: PoolSchedulers, snapshot: Snapshot) -> Decision:
        threads.append(threading.get_ident())
        return decide(self, snapshot)

    monkeypatch.setattr(PoolSchedulers, "decide", noted)
    agents = (AgentInfo("a", "default", (0, 1)),)
    short = Snapshot(tuple(Request(f"r{n}", "default", 1) for n in range(3)), agents)
    long = Snapshot(tuple(Request(f"r{n}", "default", 1) for n in range(MANY)), agents)
    for snapshot in (short, long):
        assert await mine.decide_beside(snapshot) == decide(mine, snapshot)
    assert [one == threading.get_ident() for one in threads] == [True, False]


def test_after_a_long_pass_the_loop_rests() -> None:
    assert rest_after(LONG_PASS_S / 2) == 0
    assert rest_after(0.15) == 0.15
    assert rest_after(60.0) == REST_MOST_S
