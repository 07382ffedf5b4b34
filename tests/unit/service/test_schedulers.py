"""Priority, fair share and round robin, simulated: placements, preemptions and returns."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from scheduler_contract import after

from determined_service.base.spread import Spread
from determined_service.scheduling.fair_share import FairShare
from determined_service.scheduling.first_in_first_out import FirstInFirstOut
from determined_service.scheduling.priority import Priority
from determined_service.scheduling.reasons import (
    Behind,
    NotWhole,
    SlotsComing,
    TooFewFree,
    TooWide,
)
from determined_service.scheduling.round_robin import RoundRobin
from determined_service.scheduling.scheduler import Decision, Scheduler
from determined_service.scheduling.shares import Claimant, shares
from determined_service.scheduling.snapshot import AgentInfo, Occupant, Request, Snapshot
from determined_service.scheduling.wording import in_words


class Play:
    """A pool that goes on by decisions. A preempted allocation waits again as soon as it has ended."""

    def __init__(self, scheduler: Scheduler, *slots: int) -> None:
        self.scheduler = scheduler
        agents = tuple(
            AgentInfo(f"a{n}", "p", tuple(range(count))) for n, count in enumerate(slots)
        )
        self.now = Snapshot((), agents)
        self._requested = 0.0
        self._wanted: dict[str, Request] = {}
        self.decision = Decision((), ())

    def ask(self, name: str, slots: int = 1, **more: object) -> None:
        self._requested += 1
        request = Request(name, "p", slots, requested=self._requested, **more)  # type: ignore[arg-type]
        self._wanted[name] = request
        self.now = replace(self.now, requests=(*self.now.requests, request))
        self.go_on()

    def search(self, group: int, trials: int, **more: object) -> None:
        for number in range(trials):
            self._requested += 1
            name = f"{group}.{number}"
            request = Request(name, "p", 1, group, requested=self._requested, **more)  # type: ignore[arg-type]
            self._wanted[name] = request
            self.now = replace(self.now, requests=(*self.now.requests, request))
        self.go_on()

    def end(self, *names: str) -> None:
        self._leave(names)
        self.go_on()

    def cancel(self, *names: str) -> None:
        left = tuple(one for one in self.now.requests if one.id not in names)
        self.now = replace(self.now, requests=left)
        self.end(*names)

    def go_on(self) -> None:
        """Make a decision; preempted allocations stop at once, and wait again."""
        for _ in range(20):
            self.decision = self.scheduler.decide(self.now)
            self.now = after(self.now, self.decision)
            stopping = [one.id for one in self.now.running if one.stopping]
            if not stopping and not self.decision.placements:
                return
            self._leave(stopping)
            again = []
            for name in stopping:
                self._requested += 1
                again.append(replace(self._wanted[name], requested=self._requested))
            self.now = replace(self.now, requests=(*self.now.requests, *again))
        pytest.fail(f"no rest: {self.decision}")

    def _leave(self, names: object) -> None:
        assert isinstance(names, list | tuple)
        gone = [one for one in self.now.running if one.id in names]
        agents = []
        for agent in self.now.agents:
            parts = [part for one in gone for part in one.parts if part.agent_id == agent.id]
            freed = {slot for part in parts for slot in part.slot_ids}
            agents.append(replace(agent, used=agent.used - freed))
        used = Counter(self.now.used_by_group)
        for one in gone:
            if one.group is not None:
                used[one.group] -= one.width
        running = tuple(one for one in self.now.running if one not in gone)
        self.now = Snapshot(self.now.requests, tuple(agents), used, running)

    @property
    def runs(self) -> set[str]:
        return {one.id for one in self.now.running}

    def held(self) -> dict[int | str, int]:
        found: Counter[int | str] = Counter()
        for one in self.now.running:
            found[one.id if one.group is None else one.group] += one.width
        return dict(found)


def names(group: int, *numbers: int) -> set[str]:
    return {f"{group}.{number}" for number in numbers}


def test_priority_with_preemption() -> None:
    pool = Play(Priority(preemption=True), 8)
    pool.search(1, 8, priority=2)
    assert pool.held() == {1: 8}
    # A more important trial of four slots: four of the search's trials, those placed last, make room.
    pool.ask("wide", 4, priority=1)
    assert pool.runs == names(1, 0, 1, 2, 3) | {"wide"}
    # A notebook cannot be preempted, and is less important than what waits.
    pool.ask("notebook", 1, priority=3, preemptible=False)
    assert "notebook" not in pool.runs
    # The others need no more than seven slots now: two of the search's trials are over.
    pool.end("1.0")
    assert pool.held() == {1: 4, "wide": 4}
    pool.cancel("1.1", "1.2", "1.3", "1.4")
    assert pool.runs == {"wide", "notebook"} | names(1, 5, 6, 7)
    pool.end("wide", *names(1, 5, 6, 7))
    assert pool.runs == {"notebook"}
    # Eight slots wait for the notebook, and meanwhile four of the idle seven are used.
    pool.ask("whole", 8, priority=1)
    pool.ask("four", 4, priority=2)
    assert pool.runs == {"notebook", "four"}
    (one,) = pool.decision.waiting
    assert one.reason == TooFewFree(free=3, total=8)
    pool.end("notebook")
    assert pool.runs == {"whole"}
    assert isinstance(pool.decision.waiting[0].reason, TooFewFree)
    pool.end("whole")
    assert pool.runs == {"four"}


def test_only_preemptible_jobs_fill_slots_behind_a_stuck_one() -> None:
    pool = Play(Priority(preemption=True), 4)
    pool.ask("task", 1, priority=9, preemptible=False)
    pool.ask("wide", 4, priority=5)
    pool.ask("fixed", 1, priority=7, preemptible=False)
    pool.ask("equal", 1, priority=5)
    assert pool.runs == {"task"}
    pool.ask("small", 1, priority=6)
    assert pool.runs == {"task", "small"}
    pool.end("task")
    assert pool.runs == {"wide"}


def test_no_more_is_preempted_than_needed_and_the_least_important_first() -> None:
    pool = Play(Priority(preemption=True), 4, 4)
    pool.ask("a", 2, priority=30)
    pool.ask("b", 2, priority=20)
    pool.ask("c", 3, priority=40)
    pool.ask("d", 1, priority=10)
    pool.ask("now", 3, priority=1)
    assert pool.runs == {"a", "b", "d", "now"}


def test_without_preemption_priority_is_an_order() -> None:
    pool = Play(Priority(), 2)
    pool.ask("first", 2, priority=50)
    pool.ask("usual", 1)
    pool.ask("important", 2, priority=1)
    assert pool.runs == {"first"}
    assert [one.request.id for one in pool.decision.waiting] == ["important", "usual"]
    assert isinstance(pool.decision.waiting[1].reason, Behind)
    pool.end("first")
    assert pool.runs == {"important"}


def test_a_gang_gets_all_its_agents_or_none() -> None:
    pool = Play(Priority(), 2, 2, 2, 3)
    pool.ask("small", 1)
    pool.ask("gang", 6)
    assert pool.runs == {"small"}
    (one,) = pool.decision.waiting
    assert one.reason == NotWhole(free=8, total=9, whole=4)
    pool.end("small")
    assert pool.runs == {"gang"}
    parts = [(part.agent_id, part.slot_ids) for part in pool.now.running[0].parts]
    assert parts == [("a0", (0, 1)), ("a1", (0, 1)), ("a2", (0, 1))]
    pool.ask("odd", 5)
    assert isinstance(pool.decision.waiting[0].reason, TooWide)
    # A gang that may spread unevenly needs only a part of its last agent, and leaves the rest free.
    pool.end("gang")
    pool.cancel("odd")
    pool.ask("uneven", 6, spread=Spread.UNEVEN)
    pool.ask("rest", 7, spread=Spread.UNEVEN)
    assert pool.runs == {"uneven"}
    pool.end("uneven")
    parts = [(part.agent_id, len(part.slot_ids)) for part in pool.now.running[0].parts]
    assert parts == [("a3", 3), ("a0", 2), ("a1", 2)]


def test_single_agent_requests_never_spread() -> None:
    pool = Play(FirstInFirstOut(), 4, 4)
    for name in ("a", "b"):
        pool.ask(name, 3)
    pool.ask("four", 4)
    assert pool.runs == {"a", "b"}
    pool.end("a", "b")
    pool.ask("gang", 8)
    pool.ask("alone", 8, spread=Spread.NONE)
    pool.end("four")
    assert pool.runs == {"gang"}
    assert pool.decision.waiting[0].reason == TooWide(4)


def test_agents_are_cleared_for_a_gang_and_a_gang_for_others() -> None:
    pool = Play(Priority(preemption=True), 2, 2, 2)
    pool.search(1, 5, priority=50)
    pool.ask("gang", 4, priority=10)
    # The agent with the one idle slot, and one more: no more is stopped than needed.
    assert pool.runs == {"gang"} | names(1, 2, 3)
    pool.ask("now", 1, priority=1)
    assert pool.runs == {"gang", "now"} | names(1, 2), "the least important is stopped first"
    pool.cancel(*names(1, 0, 1, 2, 3, 4))
    pool.ask("first", 2, priority=1)
    # Of a gang all nodes are stopped; it starts again when two agents are idle as a whole.
    assert pool.runs == {"now", "first"}
    assert isinstance(pool.decision.waiting[0].reason, TooFewFree)
    pool.end("now")
    assert pool.runs == {"first", "gang"}


def test_agents_that_come_free_are_kept_for_the_gang_that_asked() -> None:
    agents = tuple(AgentInfo(name, "p", (0, 1), frozenset({0})) for name in "ab")
    running = tuple(Occupant(f"old-{one.id}", one.id, (0,), priority=9) for one in agents)
    gang, later = Request("gang", "p", 4, priority=1), Request("later", "p", 1, priority=5)
    snapshot = Snapshot((gang, later), agents, running=running)
    scheduler = Priority(preemption=True)
    decision = scheduler.decide(snapshot)
    assert {one.id for one in decision.preemptions} == {"old-a", "old-b"}
    assert {one.request_id for one in decision.preemptions} == {"gang"}
    assert decision.waiting[0].reason == SlotsComing("a", free=2, coming=2, others=("b",))
    assert in_words(decision.waiting[0]).endswith(
        "agents a, b free 2 slots, which are held by what was asked to stop"
    )
    assert not decision.placements
    again = scheduler.decide(after(snapshot, decision))
    assert (again.placements, again.preemptions) == ((), ())
    assert again.waiting == decision.waiting


def test_slots_that_come_free_are_for_the_one_that_asked() -> None:
    decision = Priority(preemption=True).decide(
        Snapshot(
            (Request("new", "p", 2, priority=1), Request("later", "p", 1, priority=2)),
            (AgentInfo("a", "p", (0, 1), frozenset({0})),),
            running=(Occupant("old", "a", (0,), priority=9),),
        )
    )
    (preemption,) = decision.preemptions
    assert (preemption.id, preemption.request_id) == ("old", "new")
    new, later = decision.waiting
    assert new.reason == SlotsComing("a", free=1, coming=1)
    assert isinstance(later.reason, Behind | TooFewFree)


@pytest.mark.parametrize(
    ("demands", "weights", "found"),
    [
        ((10, 30), (1, 1), [2, 6]),
        ((10, 30), (3, 1), [4, 4]),
        ((10, 30, 20), (1, 1, 1), [2, 4, 2]),
        # Never more than the demand; unused shares go to the others.
        ((1, 30), (8, 1), [1, 7]),
        ((3, 2), (1, 1), [3, 2]),
        # As long as there are slots for all, everybody gets one.
        ((100, 1, 1), (1, 1, 1), [6, 1, 1]),
        ((5,) * 10, (1,) * 10, [1] * 8 + [0] * 2),
    ],
)
def test_shares(demands: tuple[int, ...], weights: tuple[float, ...], found: list[int]) -> None:
    claimants = [Claimant(*one, weight) for one, weight in zip(((d, 1) for d in demands), weights)]  # noqa: B905
    assert shares(8, claimants) == found


def test_a_share_is_at_least_one_gang() -> None:
    assert shares(8, [Claimant(40, 1), Claimant(4, 4)]) == [4, 4]
    assert shares(8, [Claimant(8, 8), Claimant(4, 4)]) == [8, 0]


def test_fair_share() -> None:
    pool = Play(FairShare(), 8)
    pool.search(1, 10, position=1.0)
    assert pool.held() == {1: 8}
    pool.search(2, 30, position=2.0)
    assert pool.held() == {1: 2, 2: 6}
    # A third one changes the shares at once.
    pool.search(3, 20, position=3.0)
    assert pool.held() == {1: 2, 2: 4, 3: 2}
    pool.cancel(*(f"2.{number}" for number in range(30)))
    assert sum(pool.held().values()) == 8


def test_fair_share_by_weight() -> None:
    pool = Play(FairShare(), 8)
    pool.search(1, 10, position=1.0, weight=3.0)
    pool.search(2, 30, position=2.0)
    assert pool.held() == {1: 4, 2: 4}


def test_slots_that_one_experiment_does_not_want_go_to_others() -> None:
    pool = Play(FairShare(), 8)
    pool.search(1, 2, position=1.0, weight=50.0)
    pool.search(2, 30, position=2.0)
    assert pool.held() == {1: 2, 2: 6}


def test_narrow_trials_do_not_starve_a_wide_one_of_its_share() -> None:
    pool = Play(FairShare(), 4, 4)
    pool.search(1, 40, position=1.0)
    pool.ask("wide", 4, group=2, position=2.0)
    assert pool.held() == {1: 4, 2: 4}
    pool.end("wide")
    assert pool.held() == {1: 8}


def test_taking_turns() -> None:
    pool = Play(RoundRobin(), 2)
    pool.search(1, 4, position=1.0)
    pool.search(2, 2, position=2.0)
    pool.search(3, 1, position=3.0)
    assert pool.held() == {1: 2}
    order = [one.request.id for one in pool.decision.waiting]
    assert order == ["2.0", "3.0", "2.1", "1.2", "1.3"]
    pool.end("1.0", "1.1")
    assert pool.held() == {1: 1, 2: 1}
