"""The contract suite of search methods, for the built-in ones and for plug-ins.

    class TestMySearch(SearchMethodContract):
        config = {"searcher": {"name": "mine", "max_length": 8, ...}, "hyperparameters": {...}}

and pytest runs everything below over it. The tests with random configurations and orders of events
need hypothesis; the others need only this package.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

from determined_searchers.errors import SearcherError
from determined_searchers.events import Event, ExitReason
from determined_searchers.operations import Close, Operation, Stop, ValidateAfter
from determined_searchers.random_world import RandomWorld
from determined_searchers.searcher import Searcher, create_searcher, restore_searcher
from determined_searchers.settings import Form
from determined_searchers.simulation import SimulationResult, simulate


def store(snapshot: dict[str, Any]) -> dict[str, Any]:
    """``snapshot`` as a database returns it: strict JSON, keys of objects in another order."""
    stored: dict[str, Any] = json.loads(json.dumps(snapshot, allow_nan=False, sort_keys=True))
    return stored


def write(snapshot: dict[str, Any]) -> str:
    """``snapshot`` byte for byte."""
    return json.dumps(snapshot, allow_nan=False)


class SearchMethodContract:
    """The promises of :class:`~determined_searchers.SearchMethod`, as tests.

    Attributes:
        config: an experiment configuration. With other seeds, spaces and the values of
            ``variations`` in its ``searcher`` section it must be valid too.
        workers: how many trials train at the same time, in the tests that are not random.
        variations: values to try for fields of the ``searcher`` section. The number of trials, of
            concurrent trials, and the direction of the metric are varied anyway, where given.
        any_space: whether the method takes any hyperparameter space; False: ``config``'s is kept. examples:
        how many random searches are tried; fewer for a method that is slow. most_events: a random search
        that takes more events fails the test, since it seems not to end.
    """

    config: Mapping[str, Any]
    workers: int | None = 3
    variations: Mapping[str, Sequence[Any]] = {}
    any_space: bool = True
    examples: int = 25
    most_events: int = 50_000

    def run(self, config: Mapping[str, Any] | None = None, **options: Any) -> SimulationResult:
        return simulate(config or self.config, seed=7, workers=self.workers, **options)

    def record(self, **options: Any) -> tuple[list[tuple[Event, list[Operation]]], list[Operation]]:
        """The events of a run with the operations each one led to, and the initial operations."""
        log: list[tuple[Event, list[Operation]]] = []
        initial: list[Operation] = []

        def note(_: Searcher, event: Event | None, operations: list[Operation]) -> None:
            if event is None:
                initial.extend(operations)
            else:
                log.append((event, operations))

        self.run(observe=note, **options)
        return log, initial

    def seeded(self) -> dict[str, Any]:
        return {**self.config, "reproducibility": {"experiment_seed": 7}}

    def test_ends_completed(self) -> None:
        result = self.run()
        assert (result.end, result.error) == ("completed", None)
        assert result.trials

    def test_same_seed_same_trials(self) -> None:
        assert self.run() == self.run()

    def test_another_seed_gives_other_ids(self) -> None:
        ids = {trial.request_id for trial in self.run().trials}
        others = simulate(self.config, seed=8, workers=self.workers).trials
        assert ids.isdisjoint(trial.request_id for trial in others)

    def test_restored_after_every_event_has_the_same_future(self) -> None:
        config = self.seeded()

        def reload(searcher: Searcher, *_: Any) -> Searcher:
            snapshot = searcher.snapshot()
            restored = restore_searcher(config, store(snapshot))
            assert write(restored.snapshot()) == write(snapshot)
            return restored

        assert self.run(observe=reload) == self.run()

    def test_repeated_events_change_nothing(self) -> None:
        log, _ = self.record()
        searcher = create_searcher(self.seeded())
        searcher.initial_operations()
        for done, (event, operations) in enumerate(log):
            assert searcher.handle(event) == operations
            before = write(searcher.snapshot())
            for past, _ in log[max(0, done - 20) : done + 1]:
                assert searcher.handle(past) == []
            assert write(searcher.snapshot()) == before

    def test_progress_rises_from_0_to_1(self) -> None:
        seen: list[float] = []
        self.run(observe=lambda searcher, *_: seen.append(searcher.progress()))
        assert seen[0] == 0.0
        assert seen == sorted(seen)
        assert math.isclose(seen[-1], 1.0)

    def test_uses_the_operations_of_its_form(self) -> None:
        log, initial = self.record()
        form = create_searcher(self.seeded()).form
        used = {type(op) for op in [*initial, *(op for _, ops in log for op in ops)]}
        forbidden = {Stop} if form is Form.OPERATIONS else {ValidateAfter, Close}
        assert not used & forbidden

    def test_metrics_that_are_no_numbers_do_no_harm(self) -> None:
        for odd in (math.nan, None, math.inf, -math.inf):
            saved: list[str] = []
            result = self.run(
                metric=lambda hparams, length, trial, odd=odd: odd if trial % 2 else 0.5,
                observe=lambda searcher, *_, saved=saved: saved.append(write(searcher.snapshot())),
            )
            assert result.end == "completed"
            assert saved

    def test_fails_if_every_trial_fails_and_only_then(self) -> None:
        error = ExitReason.ERRORED
        assert self.run(metric=lambda *_: error).end == "errored"
        assert self.run(metric=lambda h, n, trial: error if trial else 0.5).end == "completed"

    def test_canceled_if_every_trial_is_canceled(self) -> None:
        assert self.run(metric=lambda *_: ExitReason.USER_CANCELED).end == "canceled"

    def test_ends_after_exits_of_every_kind(self) -> None:
        reasons = list(ExitReason)

        def exit_some(hparams: dict[str, Any], length: int, trial: int) -> float | ExitReason:
            return reasons[trial // 2 % len(reasons)] if trial % 2 else trial / 7 % 1

        assert self.run(metric=exit_some).end == "completed"

    def test_any_search_in_any_order_of_events(self) -> None:
        """Random spaces and configurations; trials that come on, exit, are reported late or twice,
        in any order; the search saved and restored anywhere."""
        hypothesis = _hypothesis()
        st = hypothesis.strategies

        @hypothesis.settings(max_examples=self.examples, deadline=None)
        @hypothesis.given(
            config=self._configs(),
            seed=st.integers(0, 2**32 - 1),
            workers=st.none() | st.integers(1, 5),
            exits=st.sampled_from([0.0, 0.05, 0.3]),
            odd=st.sampled_from([0.0, 0.2, 1.0]),
            levels=st.sampled_from([1, 3, 10**6]),
        )
        def check(config: dict[str, Any], seed: int, **chances: Any) -> None:
            reports = create_searcher(config).form is Form.REPORTS
            self.live_through(config, seed, RandomWorld(Random(seed), reports, **chances))

        check()

    def test_larger_is_better_is_smaller_is_better_of_the_negated_metric(self) -> None:
        hypothesis = _hypothesis()
        st = hypothesis.strategies

        @hypothesis.settings(max_examples=self.examples, deadline=None)
        @hypothesis.given(config=self._configs(), seed=st.integers(0, 2**32 - 1))
        def check(config: dict[str, Any], seed: int) -> None:
            def run(sign: int) -> list[Any]:
                section = {**config["searcher"], "smaller_is_better": sign > 0}
                chance = Random(seed)

                def metric(*_: Any) -> float | None:
                    value = chance.choice([chance.random(), 0.5, math.nan, None, math.inf])
                    return None if value is None else sign * value

                result = simulate({**config, "searcher": section}, metric, workers=self.workers)
                assert result.end == "completed"
                return [(trial.request_id, trial.hparams, trial.lengths) for trial in result.trials]

            assert run(1) == run(-1)

        check()

    def live_through(self, config: dict[str, Any], seed: int, world: RandomWorld) -> None:
        """Runs one search in ``world`` to its end, and a second time without the disturbances."""
        chance = Random(seed + 1)
        searcher = create_searcher(config)
        first = searcher.initial_operations()
        world.apply(first)
        cap = self.most_at_work(config, searcher)
        log: list[tuple[Event, list[Operation]]] = []
        while world.ended is None:
            assert cap is None or world.at_work <= cap, f"{world.at_work} trials at work"
            assert 0 <= searcher.progress() <= 1
            assert len(log) < self.most_events, "the search does not end"
            if len(log) > 2000:  # from now on trials only do their work
                world.exits = 0.0
            if chance.random() < 0.1:
                before = write(searcher.snapshot())
                for event in world.disturbances([event for event, _ in log]):
                    assert searcher.handle(event) == [], f"{event} was handled a second time"
                assert write(searcher.snapshot()) == before
            if chance.random() < 0.1:
                before = write(searcher.snapshot())
                searcher = restore_searcher(config, store(searcher.snapshot()))
                assert write(searcher.snapshot()) == before
            event = world.next_event()
            try:
                operations = searcher.handle(event)
            except SearcherError as error:
                assert world.exits and "in a row" in str(error), error
                return
            world.apply(operations)
            log.append((event, operations))
        assert not world.live, "trials are left behind"
        again = create_searcher(config)
        assert again.initial_operations() == first
        assert all(again.handle(event) == operations for event, operations in log)
        assert write(again.snapshot()) == write(searcher.snapshot())

    def most_at_work(self, config: Mapping[str, Any], searcher: Searcher) -> int | None:
        """The number of trials that may have something to train at the same time; None: any number."""
        cap: int | None = config["searcher"].get("max_concurrent_trials") or None
        if brackets := searcher.standings():
            shares = sum(bracket.max_concurrent for bracket in brackets)
            assert cap is None or shares <= max(cap, len(brackets))
            return shares
        return cap

    def _configs(self) -> Any:
        """Strategy of experiment configurations like ``config``."""
        st = _hypothesis().strategies
        section = dict(self.config["searcher"])
        fields = {
            "max_trials": st.integers(1, 10),
            "max_concurrent_trials": st.integers(0, 5),
            "smaller_is_better": st.booleans(),
        }
        varied = {name: values for name, values in fields.items() if name in section}
        varied |= {name: st.sampled_from(values) for name, values in self.variations.items()}
        return st.fixed_dictionaries(
            {
                "searcher": st.fixed_dictionaries(
                    {name: varied.get(name, st.just(value)) for name, value in section.items()}
                    | {name: values for name, values in varied.items() if name not in section}
                ),
                "hyperparameters": _spaces()
                if self.any_space
                else st.just(self.config.get("hyperparameters")),
                "reproducibility": st.fixed_dictionaries(
                    {"experiment_seed": st.integers(0, 2**32 - 1)}
                ),
            }
        )


def _spaces() -> Any:
    """Strategy of hyperparameter spaces, empty ones too, with at most 81 points on their grid."""
    st = _hypothesis().strategies
    ranges = st.builds(
        lambda kind, low, width, count: {
            "type": kind,
            "base": 10.0,
            "minval": low,
            "maxval": low + width,
            "count": count,
        },
        st.sampled_from(["int", "double", "log"]),
        st.integers(-5, 5),
        st.integers(1, 6),
        st.integers(1, 3),
    )
    constants = st.none() | st.booleans() | st.integers() | st.just([1, {"a": None}])
    leaves = ranges | constants | st.just({"type": "categorical", "vals": ["a", None, [1]]})
    names = st.text("abyz_é", min_size=1, max_size=3)
    groups = st.dictionaries(names, leaves, max_size=2)
    return st.dictionaries(names, leaves | groups, max_size=2)


def _hypothesis() -> Any:
    try:
        import hypothesis
        import hypothesis.strategies
    except ImportError:
        raise ImportError(
            "SearchMethodContract's tests with random searches need hypothesis: pip install "
            "hypothesis"
        ) from None
    return hypothesis
