"""Why a request has no slots, in words."""

from __future__ import annotations

import time

import pytest

from determined_service.control.explanation import free_slots, why_queued
from determined_service.control.scheduler import Agent, Request, Snapshot, place

BUSY = Agent("a1", "default", (0, 1), frozenset({0}))
FULL = Agent("a2", "default", (0, 1), frozenset({0, 1}))


def request(slots: int = 1, pool: str = "default", **more: object) -> Request:
    return Request("mine", pool, slots, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("wanting", "agents", "used", "words"),
    [
        (request(), (), {}, "wants 1 slot of resource pool 'default', which has no agent"),
        (request(pool="gpu"), (BUSY,), {}, "pool 'gpu', which has no agent that is alive"),
        (request(3), (BUSY,), {}, "widest agent has 2 slots: no agent can ever run it"),
        (request(1), (FULL,), {}, "0 of 2 are free"),
        (request(excluded=frozenset({"a1"})), (BUSY,), {}, "must not run on any of its agents"),
        (request(excluded=frozenset({"a1"})), (BUSY, FULL), {}, ": 0 of 2 are free"),
        (request(2), (BUSY, FULL), {}, "wants 2 slots of resource pool 'default': 1 of 4 are free"),
        (
            request(2),
            (BUSY, Agent("a3", "default", (0, 1), frozenset({1}))),
            {},
            "2 of 4 are free, but at most 1 on one agent",
        ),
        (
            request(1, group=7, max_slots=2),
            (BUSY,),
            {7: 2},
            "its experiment holds 2 of the 2 slots that resources.max_slots allows",
        ),
    ],
)
def test_the_reason_is_the_schedulers(
    wanting: Request, agents: tuple[Agent, ...], used: dict[int, int], words: str
) -> None:
    snapshot = Snapshot((wanting,), agents, used)
    assert place(snapshot) == []
    assert words in why_queued(snapshot)["mine"]


def test_who_is_ahead() -> None:
    ahead = [Request("wide", "default", 2), Request("none", "default", 0), Request("x", "gpu", 1)]
    snapshot = Snapshot((*ahead, request()), (BUSY,))
    assert "mine" not in [placement.id for placement in place(snapshot)]
    assert why_queued(snapshot)["mine"].endswith("1 of 2 are free, 1 ahead of it in the queue")
    assert free_slots(snapshot, "default") == 1


def test_thousands_of_requests_take_no_time() -> None:
    requests = tuple(Request(str(n), "default", 1) for n in range(10_000))
    start = time.perf_counter()
    found = why_queued(Snapshot(requests, (FULL,)))
    assert time.perf_counter() - start < 2
    assert found["0"].endswith("0 of 2 are free")
    assert found["9999"].endswith("9999 ahead of it in the queue")
