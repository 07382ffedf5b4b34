"""Placement, a pure function."""

from __future__ import annotations

import random

from determined_service.control.scheduler import (
    MAX_ZERO_SLOT_TASKS,
    Agent,
    Placement,
    Request,
    Snapshot,
    place,
)


def agent(name: str, slots: int, used: tuple[int, ...] = (), pool: str = "p") -> Agent:
    return Agent(name, pool, tuple(range(slots)), frozenset(used))


def request(name: str, slots: int = 1, pool: str = "p", **more: int) -> Request:
    return Request(name, pool, slots, **more)


def placed(*requests: Request, agents: tuple[Agent, ...], **more: object) -> dict[str, str]:
    found = place(Snapshot(requests, agents, **more))  # type: ignore[arg-type]
    return {placement.id: placement.agent_id for placement in found}


def test_first_in_first_out() -> None:
    found = placed(request("a"), request("b"), request("c"), agents=(agent("x", 2),))
    assert list(found) == ["a", "b"]


def test_a_wide_request_is_not_overtaken() -> None:
    found = placed(request("wide", 2), request("narrow"), agents=(agent("x", 2, used=(1,)),))
    assert found == {}


def test_a_request_wider_than_every_agent_holds_nobody_back() -> None:
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
    (found,) = place(Snapshot((request("a", 2),), (agent("x", 4, used=(0, 2)),)))
    assert found == Placement("a", "x", (1, 3))


def test_no_slots_fit_on_a_full_agent_even_behind_a_waiting_one() -> None:
    agents = (agent("x", 1, used=(0,)),)
    assert placed(request("a"), request("zero", 0), agents=agents) == {"zero": "x"}


def test_no_slots_go_to_the_least_busy_agent_up_to_a_limit() -> None:
    full = Agent("full", "p", (0,), zero_slot_tasks=MAX_ZERO_SLOT_TASKS)
    busy = Agent("busy", "p", (0,), zero_slot_tasks=1)
    idle = Agent("idle", "p", (0,))
    zeros = (request("a", 0), request("b", 0), request("c", 0))
    assert placed(*zeros, agents=(full, busy, idle)) == {"a": "idle", "b": "busy", "c": "idle"}
    assert placed(request("a", 0), agents=(full,)) == {}


def test_an_experiment_at_its_limit_lets_others_pass() -> None:
    limited = [request(name, group=1, max_slots=2) for name in "abc"]
    found = placed(*limited, request("d", group=2), agents=(agent("x", 8),), used_by_group={1: 1})
    assert list(found) == ["a", "d"]


def test_no_agents_no_placements() -> None:
    assert placed(request("a"), request("zero", 0), agents=()) == {}


def test_no_slot_is_given_twice() -> None:
    generator = random.Random(1)
    for _ in range(200):
        agents = tuple(
            agent(
                f"a{number}",
                size := generator.randint(0, 6),
                tuple(slot for slot in range(size) if generator.random() < 0.3),
            )
            for number in range(generator.randint(0, 5))
        )
        requests = tuple(request(f"r{number}", generator.randint(0, 4)) for number in range(12))
        held = {(one.id, slot) for one in agents for slot in one.used}
        for placement in place(Snapshot(requests, agents)):
            wanted = next(one for one in requests if one.id == placement.id)
            assert len(placement.slot_ids) == wanted.slots
            for slot in placement.slot_ids:
                assert (placement.agent_id, slot) not in held
                held.add((placement.agent_id, slot))
