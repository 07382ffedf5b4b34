"""The contract suite over every built-in method, in both forms."""

from __future__ import annotations

import pytest
from search_configs import config

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


class TestHalving(SearchMethodContract):
    config = config("async_halving", num_rungs=3, **SPLIT, **LENGTH)


class TestHalvingWithCoincidingRungs(SearchMethodContract):
    config = config("async_halving", num_rungs=5, max_trials=30, divisor=1.5, max_length=4)


class TestHalvingByStopping(SearchMethodContract):
    config = config("async_halving", num_rungs=3, stop_once=True, **SPLIT, **LENGTH)


class TestHalvingReports(SearchMethodContract):
    config = config("async_halving", num_rungs=3, max_time=9, time_metric="epochs", **SPLIT)


class TestAdaptive(SearchMethodContract):
    config = config("adaptive_asha", mode="conservative", **SPLIT, **LENGTH)


class TestAdaptiveUncapped(SearchMethodContract):
    config = config("adaptive_asha", max_trials=40, max_concurrent_trials=0, max_length=64)
    workers = None


class TestAdaptiveByStopping(SearchMethodContract):
    config = config("adaptive_asha", smaller_is_better=False, stop_once=True, **SPLIT, **LENGTH)


class TestAdaptiveReports(SearchMethodContract):
    config = config("adaptive_asha", max_time=9, time_metric="epochs", **SPLIT)
