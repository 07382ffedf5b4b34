"""Hyperparameters of every type as axes."""

from __future__ import annotations

from typing import Any

import pytest

from determined_service.plots.hparams import Axis, axes, flatten


def axis(values: list[Any], kind: dict[str, Any] | None = None) -> Axis:
    points = [{} if value is ... else {"x": value} for value in values]
    (found,), _ = axes({"x": kind} if kind else {}, points)
    return found


def test_nested_names_are_paths() -> None:
    point = {"a": {"b": {"c": 1}, "d": [1, {"e": 2}]}, "f": {}}
    assert flatten(point) == {"a.b.c": 1, "a.d": [1, {"e": 2}], "f": {}}


@pytest.mark.parametrize(
    ("values", "categories", "places"),
    [
        ([2, 0.5], None, [2, 0.5]),
        ([True, False, True], ["false", "true"], [1, 0, 1]),
        (["b", "a"], ["a", "b"], [1, 0]),
        ([[1, 2], [3]], ["[1, 2]", "[3]"], [0, 1]),
        ([10, "a", 9, None], ["9", "10", "a", "null"], [1, 2, 0, 3]),
        ([1, True], ["1", "true"], [0, 1]),
        ([{"k": 1}, 5], ["5"], [None, 0]),
        ([1.5, ..., 2.5], None, [1.5, None, 2.5]),
        (["NaN", 1], ["1", "NaN"], [1, 0]),
    ],
)
def test_kinds(values: list[Any], categories: list[str] | None, places: list[float | None]) -> None:
    found = axis(values) if not any(isinstance(v, dict) for v in values) else None
    if found is None:
        # A mapping becomes several dotted names.
        found, other = axes({}, [{"x.k": 1}, {"x": 5}])[0]
        assert (found.name, other.name) == ("x", "x.k")
        assert found.places == [None, 5]
        return
    assert (found.categories, found.places) == (categories, places)
    assert found.complete == (None not in places)


def test_a_categorical_of_numbers_keeps_their_order() -> None:
    found = axis([64, 16, 32], {"type": "categorical", "vals": [16, 32, 64]})
    assert (found.categories, found.places) == (["16", "32", "64"], [2, 0, 1])


@pytest.mark.parametrize(
    ("values", "kind", "log"),
    [
        ([0.1, 0.2], {"type": "log", "minval": -1, "maxval": 0}, True),
        ([0.0, 0.2], {"type": "log", "minval": -1, "maxval": 0}, False),
        ([1e-4, 1.0], {"type": "double", "minval": 0, "maxval": 1}, False),
        ([1e-4, 1.0], None, True),
        ([0.1, 1.0], None, False),
        ([-1.0, 1e9], None, False),
    ],
)
def test_log_axes(values: list[float], kind: dict[str, Any] | None, log: bool) -> None:
    assert axis(values, kind).log == log


def test_a_constant_hyperparameter_is_not_an_axis() -> None:
    found, constant = axes({}, [{"a": 1, "b": "x"}, {"a": 2, "b": "x"}])
    assert [one.name for one in found] == ["a"]
    assert constant == {"b": "x"}
    assert axes({}, []) == ([], {})
