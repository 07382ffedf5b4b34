"""The hyperparameter space: the order of draws, and the points of its grid."""

from __future__ import annotations

import math
from typing import Any

import pytest

from determined_searchers import SearcherError
from determined_searchers.space import Grid, Space
from determined_searchers.stream import RandomStream


def points(hyperparameters: dict[str, Any]) -> list[dict[str, Any]]:
    grid = Space(hyperparameters).grid()
    return [grid[i] for i in range(len(grid))]


def axis(**config: Any) -> list[Any]:
    return [point["x"] for point in points({"x": config})]


# Sampling


def test_draws_in_byte_order_of_the_names_at_every_depth() -> None:
    space = Space(
        {
            "b": {"type": "int", "minval": 0, "maxval": 2**40},
            "a": {
                "z": {"type": "double", "minval": 0, "maxval": 1},
                "y": {"type": "categorical", "vals": ["p", "q", "r"]},
                "k": 3,
            },
            "B": {"type": "log", "base": 10, "minval": -4, "maxval": -1},
            "\u00e9": {"type": "double", "minval": -1, "maxval": 1},
        }
    )
    stream = RandomStream(11)
    by_hand = RandomStream(11)
    expected = {
        "B": 10.0 ** by_hand.uniform(-4.0, -1.0),
        "a": {
            "k": 3,
            "y": ["p", "q", "r"][by_hand.limit(2)],
            "z": by_hand.uniform(0.0, 1.0),
        },
        "b": by_hand.limit(2**40),
        "\u00e9": by_hand.uniform(-1.0, 1.0),
    }
    assert space.sample(stream) == expected
    assert stream.word() == by_hand.word()


def test_known_sample() -> None:
    space = Space({"x": {"type": "double", "minval": 0, "maxval": 1}, "c": "constant"})
    assert space.sample(RandomStream(0)) == {"c": "constant", "x": 0.5488135039273248}


def test_constants_draw_nothing() -> None:
    values = {"a": 1, "b": [1, {"type": "int"}], "c": None, "d": {"type": "const", "val": {"x": 1}}}
    stream, untouched = RandomStream(1), RandomStream(1)
    assert Space(values).sample(stream) == {**values, "d": {"x": 1}}
    assert stream.word() == untouched.word()


def test_samples_do_not_share_values() -> None:
    space = Space({"a": [1], "b": {"type": "categorical", "vals": [[2]]}})
    first = space.sample(RandomStream(1))
    first["a"].append(9)
    first["b"].append(9)
    assert space.sample(RandomStream(1)) == {"a": [1], "b": [2]}
    assert space.grid()[0] == {"a": [1], "b": [2]}


def test_int_includes_both_ends_and_double_stays_inside() -> None:
    space = Space(
        {
            "i": {"type": "int", "minval": -1, "maxval": 1},
            "d": {"type": "double", "minval": 2, "maxval": 3},
            "l": {"type": "log", "base": 2, "minval": 3, "maxval": 5},
        }
    )
    stream = RandomStream(2)
    samples = [space.sample(stream) for _ in range(200)]
    assert {sample["i"] for sample in samples} == {-1, 0, 1}
    assert all(2 <= sample["d"] < 3 and 8 <= sample["l"] < 32 for sample in samples)
    assert all(type(sample["i"]) is int for sample in samples)


def test_empty_space_has_one_sample() -> None:
    assert Space({}).sample(RandomStream(1)) == {}
    assert Space(None).sample(RandomStream(1)) == {}


# Grids


@pytest.mark.parametrize(
    ("low", "high", "count", "expected"),
    [
        (0, 10, 3, [0, 5, 10]),
        (1, 4, 9, [1, 2, 3, 4]),  # never more points than whole numbers
        (0, 5, 3, [0, 3, 5]),  # 2.5 goes up
        (-5, 0, 3, [-5, -3, 0]),  # -2.5 goes down: halves away from zero
        (0, 3, 3, [0, 2, 3]),  # 1.5
        (0, 1, 1, [1]),  # 0.5
        (-1, 0, 1, [-1]),
        (2, 7, 1, [5]),  # 4.5, where rounding to even would give 4
        (1, 8, 4, [1, 3, 6, 8]),
    ],
)
def test_int_axis(low: int, high: int, count: int, expected: list[int]) -> None:
    assert axis(type="int", minval=low, maxval=high, count=count) == expected


def test_double_axis() -> None:
    assert axis(type="double", minval=0, maxval=1, count=5) == [0.0, 0.25, 0.5, 0.75, 1.0]
    assert axis(type="double", minval=1, maxval=2, count=1) == [1.5]


def test_log_axis() -> None:
    assert axis(type="log", base=10, minval=-2, maxval=2, count=5) == pytest.approx(
        [0.01, 0.1, 1.0, 10.0, 100.0], rel=1e-15
    )
    assert axis(type="log", base=2, minval=2, maxval=4, count=1) == [8.0]


def test_categorical_and_const_axes() -> None:
    assert axis(type="categorical", vals=[3, None, "a"]) == [3, None, "a"]
    assert axis(type="const", val=[1, 2]) == [[1, 2]]


def test_first_axis_is_slowest_and_groups_are_walked_depth_first() -> None:
    found = points(
        {
            "c": {"type": "categorical", "vals": ["x", "y"]},
            "a": {"q": {"type": "int", "minval": 0, "maxval": 1, "count": 2}, "p": 7},
            "b": {"type": "categorical", "vals": [True, False]},
        }
    )
    assert found == [
        {"a": {"p": 7, "q": q}, "b": b, "c": c} for q in (0, 1) for b in (True, False) for c in "xy"
    ]


def test_empty_groups_stay_and_an_empty_space_is_one_point() -> None:
    assert points({}) == [{}]
    assert points({"a": {}, "b": {"c": {}}}) == [{"a": {}, "b": {"c": {}}}]


def test_a_huge_grid_is_never_laid_out() -> None:
    grid = Space(
        {f"x{i}": {"type": "double", "minval": 0, "maxval": 1, "count": 1000} for i in range(6)}
    ).grid()
    assert len(grid) == 1000**6
    assert grid[len(grid) - 1] == {f"x{i}": 1.0 for i in range(6)}
    assert grid[999] == {**{f"x{i}": 0.0 for i in range(5)}, "x5": 1.0}
    with pytest.raises(IndexError):
        grid[len(grid)]


def test_a_grid_beyond_all_bounds() -> None:
    axes = {f"x{i}": {"type": "double", "minval": 0, "maxval": 1, "count": 1000} for i in range(7)}
    with pytest.raises(SearcherError, match=f"the grid has {1000**7} points"):
        Space(axes).grid()


@pytest.mark.parametrize("kind", ["int", "double", "log"])
def test_grid_without_count(kind: str) -> None:
    space = Space({"group": {"x": {"type": kind, "minval": 0, "maxval": 4, "base": 10}}})
    with pytest.raises(SearcherError, match=r"hyperparameters\.group\.x: .*count was not provided"):
        space.grid()


def test_grid_is_a_sequence() -> None:
    grid = Space({"x": {"type": "int", "minval": 1, "maxval": 3, "count": 3}}).grid()
    assert isinstance(grid, Grid)
    assert list(grid) == [{"x": 1}, {"x": 2}, {"x": 3}]


# Refusals


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"type": "itn", "minval": 0, "maxval": 1}, r"x\.type: 'itn'.*did you mean 'int'"),
        ({"type": {}}, r"x\.type"),
        ({"type": "int", "maxval": 1}, r"x\.minval: expected a number, found nothing"),
        ({"type": "int", "minval": 0.5, "maxval": 2}, r"x\.minval: 0.5 is not a whole number"),
        ({"type": "int", "minval": 2, "maxval": 2}, r"minval \(2\) must be less than maxval \(2\)"),
        ({"type": "double", "minval": 3, "maxval": 2}, "must be less"),
        ({"type": "double", "minval": math.nan, "maxval": 2}, r"x\.minval"),
        ({"type": "double", "minval": "0", "maxval": 2}, r"x\.minval: .*'0'"),
        ({"type": "double", "minval": 0, "maxval": 1, "count": 0}, r"x\.count"),
        ({"type": "log", "minval": 0, "maxval": 1}, r"x\.base"),
        ({"type": "log", "minval": 0, "maxval": 1, "base": 0}, r"x\.base: must be more than 0"),
        ({"type": "log", "minval": 0, "maxval": 400, "base": 10}, r"x\.maxval: .*exponents"),
        ({"type": "log", "minval": -400, "maxval": 0, "base": 0.1}, r"x\.minval: .*exponents"),
        ({"type": "categorical", "vals": []}, r"x\.vals"),
        ({"type": "categorical"}, r"x\.vals"),
        ({"type": "const"}, "a const needs val"),
        ({1: 2}, "1 is not a string"),
    ],
)
def test_refusals(config: dict[Any, Any], message: str) -> None:
    with pytest.raises(SearcherError, match=message):
        Space({"x": config})


def test_hyperparameters_that_are_not_a_map() -> None:
    with pytest.raises(SearcherError, match="expected a map"):
        Space([1])  # type: ignore[arg-type]
