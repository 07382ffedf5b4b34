"""The contract suite over every built-in method, in both forms."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from typing import Any

import hypothesis
import pytest
from search_configs import config

from determined_searchers import Create, ExitReason, Operation
from determined_searchers.random_search import RandomSearch
from determined_searchers.testing import SearchMethodContract

pytestmark = pytest.mark.timeout(60)  # milliseconds each; one that hangs is a bug

LENGTH = {"max_length": {"epochs": 9}}


class TestSingle(SearchMethodContract):
    config = config("single", **LENGTH)


class TestSingleReports(SearchMethodContract):
    config = config("single")


class TestRandom(SearchMethodContract):
    config = config("random", max_trials=12, max_concurrent_trials=5, **LENGTH)


class TestRandomReports(SearchMethodContract):
    config = config("random", max_trials=12, max_concurrent_trials=5)


class TestRandomReportsInTime(SearchMethodContract):
    config = config("random", max_trials=6, max_time=4, time_metric="batches")


class TestGrid(SearchMethodContract):
    config = config("grid", max_concurrent_trials=4, max_length=9)


class TestGridReports(SearchMethodContract):
    config = config("grid", max_concurrent_trials=0)
    workers = None


SPLIT = {"max_trials": 13, "divisor": 3, "max_concurrent_trials": 4}


RUNGS = {"num_rungs": [1, 2, 4], "divisor": [1.5, 2, 4]}
BRACKETS = {"mode": ["aggressive", "standard", "conservative"], "divisor": [2, 3]}


class TestHalving(SearchMethodContract):
    config = config("async_halving", num_rungs=3, **SPLIT, **LENGTH)
    variations = RUNGS


class TestHalvingWithCoincidingRungs(SearchMethodContract):
    config = config("async_halving", num_rungs=5, max_trials=30, divisor=1.5, max_length=4)


class TestHalvingByStopping(SearchMethodContract):
    config = config("async_halving", num_rungs=3, stop_once=True, **SPLIT, **LENGTH)
    variations = RUNGS


class TestHalvingReports(SearchMethodContract):
    config = config("async_halving", num_rungs=3, max_time=9, time_metric="epochs", **SPLIT)
    variations = RUNGS


class TestAdaptive(SearchMethodContract):
    config = config("adaptive_asha", mode="conservative", **SPLIT, **LENGTH)
    variations = BRACKETS


class TestAdaptiveUncapped(SearchMethodContract):
    config = config("adaptive_asha", max_trials=40, max_concurrent_trials=0, max_length=64)
    workers = None


class TestAdaptiveByStopping(SearchMethodContract):
    config = config("adaptive_asha", smaller_is_better=False, stop_once=True, **SPLIT, **LENGTH)
    variations = BRACKETS


class TestAdaptiveReports(SearchMethodContract):
    config = config("adaptive_asha", max_time=9, time_metric="epochs", **SPLIT)
    variations = BRACKETS


# Faults that the suite must find


class Greedy(RandomSearch):
    """Starts two trials where one ended."""

    def trial_closed(self, request_id: str, exited: ExitReason | None) -> list[Operation]:
        operations = super().trial_closed(request_id, exited)
        return [*operations, *(self._start() if self.created < self.max_trials else [])]


class Forgetful(RandomSearch):
    """Saves less than it needs."""

    def state(self) -> dict[str, Any]:
        return {"created": 0, "closed": self.closed}


class Fickle(RandomSearch):
    """Uses its own random numbers."""

    def _start(self) -> list[Operation]:
        create, *rest = super()._start()
        assert isinstance(create, Create)
        create.hparams["chance"] = random.random()
        return [create, *rest]


class Endless(RandomSearch):
    """Replaces every trial."""

    def trial_closed(self, request_id: str, exited: ExitReason | None) -> list[Operation]:
        return self._start()


class Stuck(RandomSearch):
    """Forgets to go on when a trial exited."""

    def trial_exited(self, request_id: str, reason: ExitReason) -> list[Operation]:
        return self._start() if reason is ExitReason.USER_CANCELED else []

    def _start(self) -> list[Operation]:
        create, *_ = super()._start()
        return [create]


@pytest.fixture
def no_shrinking() -> Iterator[None]:
    """The first example that fails will do: a shorter one may take minutes to find."""
    profile = hypothesis.settings.get_current_profile_name()
    generate = [hypothesis.Phase.explicit, hypothesis.Phase.generate]
    hypothesis.settings.register_profile("no-shrinking", derandomize=True, phases=generate)
    hypothesis.settings.load_profile("no-shrinking")
    yield
    hypothesis.settings.load_profile(profile)


@pytest.mark.usefixtures("no_shrinking")
@pytest.mark.parametrize("method", [Greedy, Forgetful, Fickle, Endless, Stuck])
def test_the_suite_finds_a_method_that_breaks_the_contract(
    method: type[RandomSearch], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Point:
        name = "wrong"
        load = staticmethod(lambda: method)

    monkeypatch.setattr("determined_searchers.methods._offered", lambda path: {"wrong": Point})

    class Suite(SearchMethodContract):
        config = config("wrong", max_trials=8, max_concurrent_trials=3, **LENGTH)
        most_events = 3000

    with pytest.raises(AssertionError):
        Suite().test_any_search_in_any_order_of_events()


def test_without_hypothesis_the_suite_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "hypothesis", None)
    suite = TestRandom()
    suite.test_same_seed_same_trials()
    with pytest.raises(ImportError, match="need hypothesis: pip install hypothesis"):
        suite.test_any_search_in_any_order_of_events()
