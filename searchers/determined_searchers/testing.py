"""The contract suite of search methods, for the built-in ones and for plug-ins.

    class TestMySearch(SearchMethodContract):
        config = {"searcher": {"name": "mine", "max_length": 8, ...}, "hyperparameters": {...}}

and pytest runs everything below over it. Needs nothing but this package.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from determined_searchers.events import Event, ExitReason
from determined_searchers.operations import Close, Operation, Stop, ValidateAfter
from determined_searchers.searcher import Searcher, create_searcher, restore_searcher
from determined_searchers.settings import Form
from determined_searchers.simulation import SimulationResult, simulate


def store(snapshot: dict[str, Any]) -> dict[str, Any]:
    """``snapshot`` as a database gives it back: strict JSON, keys of objects in another order."""
    stored: dict[str, Any] = json.loads(json.dumps(snapshot, allow_nan=False, sort_keys=True))
    return stored


def write(snapshot: dict[str, Any]) -> str:
    """``snapshot`` byte for byte."""
    return json.dumps(snapshot, allow_nan=False)


class SearchMethodContract:
    """What :class:`~determined_searchers.SearchMethod` promises, as tests."""

    config: Mapping[str, Any]
    workers: int | None = 3

    def run(self, config: Mapping[str, Any] | None = None, **options: Any) -> SimulationResult:
        return simulate(config or self.config, seed=7, workers=self.workers, **options)

    def record(self, **options: Any) -> tuple[list[tuple[Event, list[Operation]]], list[Operation]]:
        """The events of a run with what each one led to, and the initial operations."""
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
