"""First in, first out, best fit: one rule at a time."""

from __future__ import annotations

from determined_service.scheduling.first_in_first_out import FirstInFirstOut
from determined_service.scheduling.scheduler import Decision, Placement
from determined_service.scheduling.snapshot import MAX_ZERO_SLOT_TASKS, AgentInfo, Request, Snapshot


def agent(name: str, slots: int, used: tuple[int, ...] = (), pool: str = "p") -> AgentInfo:
    return AgentInfo(name, pool, tuple(range(slots)), frozenset(used))


def request(name: str, slots: int = 1, pool: str = "p", **more: int) -> Request:
    return Request(name, pool, slots, **more)


def decide(*requests: Request, agents: tuple[AgentInfo, ...], **more: object) -> Decision:
    return FirstInFirstOut().decide(Snapshot(requests, agents, **more))  # type: ignore[arg-type]


def placed(*requests: Request, agents: tuple[AgentInfo, ...], **more: object) -> dict[str, str]:
    found = decide(*requests, agents=agents, **more).placements
    return {placement.id: placement.agent_id for placement in found}


def test_first_in_first_out() -> None:
    found = placed(request("a"), request("b"), request("c"), agents=(agent("x", 2),))
    assert list(found) == ["a", "b"]


def test_a_wide_request_is_not_overtaken() -> None:
    found = placed(request("wide", 2), request("narrow"), agents=(agent("x", 2, used=(1,)),))
    assert found == {}


def test_a_request_wider_than_every_agent_blocks_no_other() -> None:
    assert placed(request("wide", 3), request("a"), agents=(agent("x", 2),)) == {"a": "x"}


def test_pools_do_not_wait_for_each_other() -> None:
    agents = (agent("x", 1, used=(0,)), agent("y", 1, pool="q"))
    assert placed(request("a"), request("b", pool="q"), agents=agents) == {"b": "y"}


def test_best_fit_keeps_room_for_wide_requests() -> None:
    agents = (agent("big", 4), agent("small", 2, used=(0,)))
    assert placed(request("a"), request("b", 4), agents=agents) == {"a": "small", "b": "big"}


def test_equal_fits_go_to_the_first_agent() -> None:
    agents = (agent("b", 2), agent("a", 2))
    assert placed(request("r"), agents=agents) == {"r": "a"}


def test_only_free_slots_are_given() -> None:
    (found,) = decide(request("a", 2), agents=(agent("x", 4, used=(0, 2)),)).placements
    assert found == Placement("a", "x", (1, 3))


def test_no_slots_fit_on_a_full_agent_even_behind_a_waiting_one() -> None:
    agents = (agent("x", 1, used=(0,)),)
    assert placed(request("a"), request("zero", 0), agents=agents) == {"zero": "x"}


def test_no_slots_go_to_the_least_busy_agent_up_to_a_limit() -> None:
    full = AgentInfo("full", "p", (0,), zero_slot_tasks=MAX_ZERO_SLOT_TASKS)
    busy = AgentInfo("busy", "p", (0,), zero_slot_tasks=1)
    idle = AgentInfo("idle", "p", (0,))
    zeros = (request("a", 0), request("b", 0), request("c", 0))
    assert placed(*zeros, agents=(full, busy, idle)) == {"a": "idle", "b": "busy", "c": "idle"}
    assert placed(request("a", 0), agents=(full,)) == {}


def test_an_experiment_at_its_limit_lets_others_pass() -> None:
    limited = [request(name, group=1, max_slots=2) for name in "abc"]
    found = placed(*limited, request("d", group=2), agents=(agent("x", 8),), used_by_group={1: 1})
    assert list(found) == ["a", "d"]


def test_no_agents_no_placements() -> None:
    assert placed(request("a"), request("zero", 0), agents=()) == {}


def test_a_held_slot_that_was_disabled_is_not_counted() -> None:
    held = AgentInfo("x", "p", (0, 1), frozenset({2, 3}))
    assert placed(request("a", 2), agents=(held,)) == {"a": "x"}


def test_priority_and_weight_are_ignored() -> None:
    later = Request("important", "p", 1, priority=1, weight=9.0)
    assert placed(request("first"), later, agents=(agent("x", 1),)) == {"first": "x"}


def test_experiments_ahead_in_the_queue() -> None:
    waiting = (
        request("a1", group=1),
        request("elsewhere", pool="q", group=5),
        request("b1", group=2),
        request("a2", group=1),
        request("alone"),
        request("c1", group=3),
        request("b2", group=2),
    )
    full = (agent("x", 1, used=(0,)), agent("y", 1, used=(0,), pool="q"))
    decision = decide(*waiting, agents=full)
    ahead = {group: decision.ahead_by_job().get(group, 0) for group in (1, 2, 3, 4, 5)}
    assert ahead == {1: 0, 2: 1, 3: 3, 4: 0, 5: 0}
