"""Values that are allowed and probably not meant."""

from __future__ import annotations

from typing import Any

import pytest

from determined.expconf.doubts import doubts


def log(minval: float, maxval: float, base: float = 10) -> dict[str, Any]:
    return {"type": "log", "base": base, "minval": minval, "maxval": maxval}


@pytest.mark.parametrize("metric", ["accuracy", "val_acc", "validation/AUC", "f1 score"])
def test_the_smallest_accuracy_is_rarely_the_best(metric: str) -> None:
    (found,) = doubts({"searcher": {"metric": metric, "smaller_is_better": True}})
    assert found.endswith("write smaller_is_better: false")
    assert f"the smallest {metric} counts as the best" in found
    assert doubts({"searcher": {"metric": metric, "smaller_is_better": False}}) == []


@pytest.mark.parametrize(
    "metric", ["loss", "accuracy_loss", "1-auc", "recall error", "account", None]
)
def test_of_other_metrics_the_smallest_may_be_meant(metric: str | None) -> None:
    assert doubts({"searcher": {"metric": metric, "smaller_is_better": True}}) == []


def test_values_where_exponents_belong() -> None:
    assert doubts({"hyperparameters": {"lr": log(0.0001, 0.1)}}) == [
        "hyperparameters.lr: minval and maxval of a log range are exponents: 10 to the power of 0.0001 … 0.1 "
        "is 1.0002 … 1.2589; for values from 0.0001 to 0.1 write minval: -4, maxval: -1"
    ]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (log(0.001, 1), "write minval: -3, maxval: 0"),
        (log(16, 256, 2), "write minval: 4, maxval: 8"),
        (log(1, 100), "write minval: 0, maxval: 2"),
        (log(0.0001, 0.1, 2.718281828), "write minval: -9.21, maxval: -2.303"),
        (log(0, 0.1), "is 1 … 1.2589"),
    ],
)
def test_others_of_the_kind(given: dict[str, Any], words: str) -> None:
    (found,) = doubts({"hyperparameters": {"group": {"x": given}}})
    assert found.startswith("hyperparameters.group.x: ")
    assert found.endswith(words)


@pytest.mark.parametrize(
    "given",
    [
        log(-4, -1),
        log(-5, 1),
        log(0, 3),
        log(1, 4),
        log(0.5, 2),
        log(4, 10, 2),
        log(0, 2, 1.1),
        {"type": "double", "minval": 0.0001, "maxval": 0.1},
        0.1,
    ],
)
def test_exponents_need_no_word(given: Any) -> None:
    assert doubts({"hyperparameters": {"x": given}}) == []


def test_many_of_them_are_counted() -> None:
    space = {f"x{number}": log(0.0001, 0.1) for number in range(1000)}
    found = doubts({"hyperparameters": space})
    assert len(found) == 6
    assert found[-1] == "995 more log ranges are like these"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (
            {"minval": 0, "maxval": 1, "count": 3},
            "x: a mapping without type is a group of constants, and nothing is searched in it; if minval, "
            "maxval say what to search, write {type: double, minval: …, maxval: …}, or type int or log",
        ),
        ({"vals": [1, 2]}, "if vals say what to search, write {type: categorical, vals: […]}"),
        ({"distribution": "uniform", "min": 0, "max": 1}, "if min, max say"),
        ({"group": {"values": [16, 32]}}, "x.group: a mapping without type"),
        (
            [1, {"type": "int", "minval": 1, "maxval": 4}],
            "x[1]: nothing is searched inside of lists and constants: each trial gets the mapping "
            "{type: int, …} itself; give this hyperparameter a name outside of it",
        ),
        (
            {"type": "categorical", "vals": ["a", {"type": "categorical", "vals": [1]}]},
            "x.vals[1]: nothing is searched",
        ),
        ({"type": "const", "val": log(-4, -1)}, "x.val: nothing is searched"),
    ],
)
def test_constants_that_look_like_something_to_search(given: Any, words: str) -> None:
    (found,) = doubts({"hyperparameters": {"x": given}, "searcher": {"name": "random"}})
    assert found.startswith("hyperparameters.x")
    assert words in found


@pytest.mark.parametrize(
    "given",
    [
        [1, {"a": 2}],
        {"values": {"type": "int", "minval": 1, "maxval": 4}},
        {"type": "const", "val": {"type": "adam", "lr": 0.1}},
        {"type": "categorical", "vals": [{"type": "adam"}, {"type": "log"}]},
        {"min": 3},
    ],
)
def test_constants_need_no_word(given: Any) -> None:
    assert doubts({"hyperparameters": {"x": given}, "searcher": {"name": "random"}}) == []


def test_a_single_trial_may_have_limits() -> None:
    clip = {"hyperparameters": {"clip": {"min": 0, "max": 1}}, "searcher": {"name": "single"}}
    assert doubts(clip) == []


def test_many_constants_are_counted() -> None:
    found = doubts({"hyperparameters": {f"x{number}": {"vals": [1]} for number in range(7)}})
    assert (len(found), found[-1]) == (6, "2 more constants are like these")
