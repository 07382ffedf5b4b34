"""The reason why a request has no slots, in words."""

from __future__ import annotations

import pytest

from determined_service.scheduling.explanation import free_slots, why_queued
from determined_service.scheduling.first_in_first_out import FirstInFirstOut
from determined_service.scheduling.scheduler import Decision
from determined_service.scheduling.snapshot import MAX_ZERO_SLOT_TASKS, AgentInfo, Request, Snapshot
from determined_service.scheduling.wording import in_words
from tests.work import work_of

BUSY = AgentInfo("a1", "default", (0, 1), frozenset({0}))
FULL = AgentInfo("a2", "default", (0, 1), frozenset({0, 1}))
WIDE = AgentInfo("a3", "default", (0, 1, 2, 3))
HALF = AgentInfo("a3", "default", (0, 1), frozenset({1}))
CROWDED = AgentInfo("a4", "default", (0,), zero_slot_tasks=MAX_ZERO_SLOT_TASKS)


def request(slots: int = 1, pool: str = "default", **more: object) -> Request:
    return Request("mine", pool, slots, **more)  # type: ignore[arg-type]


def decide(snapshot: Snapshot) -> Decision:
    return FirstInFirstOut().decide(snapshot)


def why(decision: Decision) -> dict[str, str]:
    return {one.request.id: in_words(one) for one in decision.waiting}


@pytest.mark.parametrize(
    ("wanting", "agents", "used", "words"),
    [
        (request(), (), {}, "wants 1 slot of resource pool 'default', which has no agent"),
        (request(pool="gpu"), (BUSY,), {}, "pool 'gpu', which has no agent that is alive"),
        (request(3), (BUSY,), {}, "widest agent has 2 enabled slots: no agent can run it"),
        (request(1), (FULL,), {}, "0 of 2 are free"),
        (
            request(excluded=frozenset({"a1"})),
            (BUSY,),
            {},
            "of resource pool 'default'; log policies exclude it from the pool's only agent",
        ),
        (request(excluded=frozenset({"a1", "a2"})), (BUSY, FULL), {}, "all 2 agents of the pool"),
        (
            request(3, excluded=frozenset({"a3"})),
            (BUSY, WIDE),
            {},
            "whose widest agent that log policies allow has 2 enabled slots: no agent can run it",
        ),
        (request(excluded=frozenset({"a1"})), (BUSY, FULL), {}, ": 0 of 2 are free"),
        (request(2), (BUSY, FULL), {}, "wants 2 slots of resource pool 'default': 1 of 4 are free"),
        (
            request(2),
            (BUSY, HALF),
            {},
            "2 of 4 are free, but at most 1 on one agent",
        ),
        (
            request(1, group=7, max_slots=2),
            (BUSY,),
            {7: 2},
            "its experiment holds 2 of the 2 slots that resources.max_slots allows",
        ),
        (
            request(0),
            (CROWDED,),
            {},
            "wants 0 slots of resource pool 'default'; the pool's only agent runs 100 allocations"
            " without slots, the most that it may",
        ),
    ],
)
def test_the_reason_is_the_schedulers(
    wanting: Request, agents: tuple[AgentInfo, ...], used: dict[int, int], words: str
) -> None:
    snapshot = Snapshot((wanting,), agents, used)
    decision = decide(snapshot)
    assert decision.placements == ()
    assert words in why(decision)["mine"]


def test_free_slots_are_reserved_for_the_first_in_the_queue() -> None:
    ahead = [Request("wide", "default", 2), Request("none", "default", 0), Request("x", "gpu", 1)]
    snapshot = Snapshot((*ahead, request()), (BUSY,))
    decision = decide(snapshot)
    assert [placement.id for placement in decision.placements] == ["none"]
    words = "1 of 2 are free, 1 ahead of it in the queue, the first of which wants 2 slots"
    words += " and does not fit yet"
    assert why(decision)["mine"].endswith(words)
    assert free_slots(snapshot, "default") == 1


def test_requests_that_can_never_run_are_not_ahead() -> None:
    requests = (Request("too wide", "default", 3), Request("next", "default", 1), request())
    found = why(decide(Snapshot(requests, (FULL,))))
    assert found["next"].endswith("0 of 2 are free")
    assert found["mine"].endswith("0 of 2 are free, 1 ahead of it in the queue")


def test_slots_that_this_decision_gives_away_are_not_free() -> None:
    mine = request(group=7, max_slots=1)
    limited = Request("other", "default", 1, group=7, max_slots=1)
    found = why(decide(Snapshot((limited, mine), (WIDE,))))
    assert found["mine"].endswith("holds 1 of the 1 slot that resources.max_slots allows")


def test_a_limit_counts_the_slots_of_a_narrower_request_in_the_same_decision() -> None:
    wide, narrow = request(2, group=7, max_slots=2), Request("n", "default", 1, 7, 2)
    decision = decide(Snapshot((wide, narrow), (WIDE,), {7: 1}))
    assert [placement.id for placement in decision.placements] == ["n"]
    assert why(decision)["mine"].endswith("holds 2 of the 2 slots that resources.max_slots allows")


def test_only_requested_reasons_are_put_into_words() -> None:
    snapshot = Snapshot((request(), Request("other", "gpu", 1), Request("b", "gpu", 1)), (WIDE,))
    found = why_queued(FirstInFirstOut(), snapshot, ["mine", "b"])
    assert found == {
        "mine": "it is being given slots now",
        "b": "wants 1 slot of resource pool 'gpu', which has no agent that is alive and enabled (`det agent "
        "start --pool gpu` starts one)",
    }


def test_held_slots_that_were_disabled_are_not_counted() -> None:
    agent = AgentInfo("a1", "default", (0, 1), frozenset({1, 2, 3}))
    assert free_slots(Snapshot((), (agent,)), "default") == 1


def test_the_work_grows_no_faster_than_the_queue() -> None:
    requests = tuple(Request(str(n), "default", 1) for n in range(10_000))
    found = why(decide(Snapshot(requests, (FULL,))))
    assert found["0"].endswith("0 of 2 are free")
    assert found["9999"].endswith("0 of 2 are free, 9999 ahead of it in the queue")
    few, many = (
        work_of(lambda part=requests[:count]: decide(Snapshot(part, (FULL,))))  # type: ignore[misc]
        for count in (500, 1000)
    )
    assert many < 2.2 * few
