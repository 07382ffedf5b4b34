"""Properties for any space, any order of events and any point of restart."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hypothesis import assume, given, settings
from hypothesis import strategies as st
from search_configs import config

from determined_searchers import (
    Close,
    Create,
    Event,
    ExitReason,
    Operation,
    Searcher,
    SearcherError,
    Shutdown,
    Stop,
    TrialClosed,
    TrialCreated,
    TrialExitedEarly,
    TrialProgress,
    TrialReported,
    ValidateAfter,
    ValidationCompleted,
    create_searcher,
    event_from_json,
    operation_from_json,
    restore_searcher,
)
from determined_searchers.space import Space
from determined_searchers.stream import RandomStream
from determined_searchers.testing import store, write

numbers = st.integers(-5, 5)
ranges = st.tuples(
    st.sampled_from(["int", "double", "log"]), numbers, st.integers(1, 6), st.integers(1, 3)
).map(
    lambda drawn: {
        "type": drawn[0],
        "base": 10.0,
        "minval": drawn[1],
        "maxval": drawn[1] + drawn[2],
        "count": drawn[3],
    }
)
leaves = ranges | numbers | st.just({"type": "categorical", "vals": ["a", None, [1]]})
names = st.text(min_size=1, max_size=3).filter(lambda name: name != "type")
spaces = st.dictionaries(
    names, leaves | st.dictionaries(names, leaves, max_size=2), min_size=0, max_size=3
)
searches = st.one_of(
    st.just({"name": "single"}),
    st.fixed_dictionaries(
        {
            "name": st.just("random"),
            "max_trials": st.integers(1, 8),
            "max_concurrent_trials": st.integers(0, 4),
        }
    ),
    st.fixed_dictionaries({"name": st.just("grid"), "max_concurrent_trials": st.integers(0, 4)}),
    st.fixed_dictionaries(
        {
            "name": st.sampled_from(["async_halving", "adaptive_asha"]),
            "max_trials": st.integers(1, 8),
            "max_concurrent_trials": st.integers(0, 4),
            "num_rungs": st.integers(1, 4),
            "divisor": st.sampled_from([1.5, 2, 3]),
            "mode": st.sampled_from(["aggressive", "standard", "conservative"]),
            "stop_once": st.booleans(),
        }
    ),
)
forms = st.sampled_from([{"max_length": 10}, {"max_time": 10, "time_metric": "batches"}, {}])


@dataclass
class Life:
    """A trial as its cluster sees it."""

    target: int | None = None
    over: bool = False  # told to end, or exited
    exited: bool = False
    time: int = 0


class World:
    """Trials that live as hypothesis pleases, as the engine's contract allows."""

    def __init__(self, data: st.DataObject, reports: bool) -> None:
        self.data = data
        self.reports = reports
        self.creates: list[Create] = []
        self.live: dict[str, Life] = {}
        self.ended: Shutdown | None = None
        self.invalid = 0
        self.chances = 150  # events with chance in them; then every trial just does its work

    def apply(self, operations: list[Operation]) -> None:
        for operation in operations:
            match operation:
                case Create():
                    self.creates.append(operation)
                    self.live[operation.request_id] = Life()
                case ValidateAfter():
                    assert not self.reports
                    self.live[operation.request_id].target = operation.length
                case Close():
                    assert not self.reports
                    self.live[operation.request_id].over = True
                case Stop():
                    assert self.reports
                    self.live[operation.request_id].over = True
                case Shutdown():
                    assert self.ended is None
                    self.ended = operation

    def next_event(self) -> Event:
        self.chances -= 1
        if self.chances <= 0:
            return self.work()
        trial = self.data.draw(st.sampled_from(list(self.live)))
        life = self.live[trial]
        kind = self.data.draw(st.sampled_from(["create", "progress", "exit", *["work"] * 4]))
        if kind == "create":
            return TrialCreated(trial)
        if kind == "progress":
            return TrialProgress(trial, self.data.draw(st.floats(0, 12)))
        if kind == "exit" and not life.exited:
            reason = self.data.draw(st.sampled_from(list(ExitReason)))
            self.invalid += reason.invalid
            life.over = life.exited = True
            life.target = None
            return TrialExitedEarly(trial, reason)
        return self.work()

    def work(self) -> Event:
        """The next thing that happens to one of the trials that have anything to do."""
        able = [
            trial
            for trial, life in self.live.items()
            if self.reports or life.over or life.target is not None
        ]
        assert able, "all trials are paused and the search does not end"
        chance = self.chances > 0
        trial = self.data.draw(st.sampled_from(able)) if chance else able[0]
        life = self.live[trial]
        metric = self.data.draw(st.none() | st.floats(width=16)) if chance else None
        if life.target is not None:
            length, life.target = life.target, None
            return ValidationCompleted(trial, metric, length)
        if self.reports and not life.over and (not chance or self.data.draw(st.booleans())):
            life.time += 1
            life.over = life.time > 12
            return TrialReported(trial, life.time, metric)
        del self.live[trial]
        return TrialClosed(trial)


def same(one: list[Operation], other: list[Operation]) -> bool:
    return [op.to_json() for op in one] == [op.to_json() for op in other]


@settings(deadline=None)
@given(st.data(), searches, forms, spaces, st.integers(0, 2**32 - 1))
def test_a_search_in_any_order_restored_anywhere(
    data: st.DataObject,
    search: dict[str, Any],
    form: dict[str, Any],
    space: dict[str, Any],
    seed: int,
) -> None:
    if search["name"] in ("async_halving", "adaptive_asha"):
        assume(form)
    settled = config(seed=seed, space=space, **search, **form)
    searcher: Searcher = create_searcher(settled)
    world = World(data, searcher.form == "reports")
    operations = searcher.initial_operations()
    past: list[Event] = []
    while True:
        world.apply(operations)
        assert same([operation_from_json(store(op.to_json())) for op in operations], operations)
        assert 0 <= searcher.progress() <= 1
        if world.ended:
            break
        event = world.next_event()
        assert event_from_json(store(event.to_json())).to_json() == event.to_json()
        shadow = restore_searcher(settled, store(searcher.snapshot()))
        try:
            operations = searcher.handle(event)
        except SearcherError as error:
            assert "in a row" in str(error)
            assert world.invalid >= 10 * search["max_trials"]
            return
        assert same(shadow.handle(event), operations)
        assert write(shadow.snapshot()) == write(searcher.snapshot())
        past.append(event)
        if world.chances % 7 == 0:
            for old in past[-12:]:
                assert searcher.handle(old) == []
            assert write(shadow.snapshot()) == write(searcher.snapshot())
            searcher = shadow
    count_trials(world, search, space)


def count_trials(world: World, search: dict[str, Any], space: dict[str, Any]) -> None:
    """No trial is left, none too many or too few was made, no id twice."""
    made = len(world.creates)
    assert not world.live
    assert len({create.request_id for create in world.creates}) == made
    if search["name"] == "single":
        assert made == 1
    elif search["name"] == "grid":
        grid = Space(space).grid()
        assert [create.hparams for create in world.creates] == list(grid)[::-1]
    elif search["name"] == "adaptive_asha":  # more where there are more brackets than trials
        assert search["max_trials"] <= made - world.invalid <= search["max_trials"] + 3
    else:
        assert made - world.invalid == search["max_trials"]


@given(spaces, st.integers(0, 2**32 - 1))
def test_sampling_ignores_the_order_in_the_file(space: dict[str, Any], seed: int) -> None:
    turned = dict(reversed(list(space.items())))
    one, other = RandomStream(seed), RandomStream(seed)
    assert Space(space).sample(one) == Space(turned).sample(other)
    assert one.state() == other.state()


@given(st.integers(0, 2**40), st.integers(0, 2**32 - 1))
def test_limit_is_within(high: int, seed: int) -> None:
    stream = RandomStream(seed)
    assert all(0 <= stream.limit(high) <= high for _ in range(20))
