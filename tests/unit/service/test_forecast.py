"""The allocations that must end before a request starts, according to the scheduler itself."""

from __future__ import annotations

from collections import Counter

import pytest

from determined_service.scheduling.forecast import NAMED, Forecast, forecast
from determined_service.scheduling.priority import Priority
from determined_service.scheduling.scheduler import Decision, Scheduler
from determined_service.scheduling.snapshot import AgentInfo, Occupant, Request, Snapshot


def snapshot(requests: list[Request], widths: dict[str, list[int]], slots: int = 4) -> Snapshot:
    """Agents with allocations of these widths, named a0, a1 … by agent."""
    running, agents = [], []
    for name, mine in widths.items():
        at = 0
        for number, width in enumerate(mine):
            held = tuple(range(at, at + width))
            running.append(Occupant(f"{name}{number}", name, held, group=7))
            at += width
        agents.append(AgentInfo(name, "p", tuple(range(slots)), frozenset(range(at))))
    used = Counter({7: sum(one.width for one in running)})
    return Snapshot(tuple(requests), tuple(agents), used, tuple(running))


def ask(seen: Snapshot, scheduler: Scheduler | None = None) -> Forecast:
    used = scheduler or Priority()
    line = [one.request for one in used.decide(seen).waiting]
    return forecast(used, seen, line, seen.requests[-1])


def test_one_that_is_enough() -> None:
    seen = snapshot([Request("r", "p", 3)], {"a": [3, 1], "b": [2, 2]})
    assert ask(seen) == Forecast(any_of=("a0",), count=1)


def test_several_of_which_each_is_enough() -> None:
    seen = snapshot([Request("r", "p", 2)], {"a": [2, 2], "b": [2, 2]})
    assert ask(seen) == Forecast(any_of=("a0", "a1", "b0", "b1"), count=4)


def test_several_that_are_needed() -> None:
    seen = snapshot([Request("r", "p", 4)], {"a": [1, 1, 1, 1]})
    assert ask(seen) == Forecast(all_of=("a0", "a1", "a2", "a3"), count=4)
    many = snapshot([Request("r", "p", 8)], {"a": [1] * 8}, slots=8)
    found = ask(many)
    assert (len(found.all_of), found.count) == (NAMED, 8)


def test_behind_others_it_may_not_be_known() -> None:
    # The request ahead takes the whole agent, for any number of ends.
    seen = snapshot([Request("first", "p", 4), Request("r", "p", 4)], {"a": [2, 2]})
    assert ask(seen) == Forecast()


def test_its_own_experiments_limit() -> None:
    request = Request("r", "p", 1, group=7, max_slots=2)
    seen = snapshot([request], {"a": [1], "b": [1]})
    assert ask(seen) == Forecast(any_of=("a0", "b0"), count=2)


def test_runs_already_asked_to_stop() -> None:
    seen = snapshot([Request("r", "p", 4, priority=1)], {"a": [2, 2]})
    stopping = tuple(
        Occupant(one.id, one.agent_id, one.slot_ids, stopping=True, stopping_for="r")
        for one in seen.running
    )
    seen = Snapshot(seen.requests, seen.agents, {}, stopping)
    assert ask(seen, Priority(preemption=True)) == Forecast(stopping=("a0", "a1"), count=2)


@pytest.mark.parametrize("agents", [1, 1000])
def test_it_asks_for_a_bounded_number_of_decisions(agents: int) -> None:
    class Counting(Priority):
        asked = 0

        def decide(self, snapshot: Snapshot) -> Decision:
            self.asked += 1
            return super().decide(snapshot)

    scheduler = Counting()
    seen = snapshot([Request("r", "p", 4)], {f"a{n:04}-": [1, 1, 1, 1] for n in range(agents)})
    ask(seen, scheduler)
    assert scheduler.asked <= 41
