"""The conversion of reported values."""

from __future__ import annotations

import logging
import math
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from determined.core._metrics import Freezer, Unsupported, plain

torch = pytest.importorskip("torch")


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (1.5, 1.5),
        (True, True),
        (3, 3),
        ("text", "text"),
        (math.nan, "NaN"),
        (math.inf, "Infinity"),
        (-math.inf, "-Infinity"),
        (2**63, 2**63),
        (-(2**70), float(-(2**70))),
        (10**400, "Infinity"),
        ("nul\x00 and \ud800", "nul\\u0000 and \\ud800"),
        ([1, (2, math.nan)], [1, [2, "NaN"]]),
        ({"a": {1: np.float32(0.5)}}, {"a": {"1": 0.5}}),
        (np.float64(2.5), 2.5),
        (np.int64(4), 4),
        (np.bool_(True), True),
        (np.float32("nan"), "NaN"),
        (np.array([[1, 2], [3, 4]]), [[1, 2], [3, 4]]),
        (np.array(7.0), 7.0),
        (torch.tensor(0.25), 0.25),
        (torch.tensor([1.0, math.inf]), [1.0, "Infinity"]),
        (torch.tensor(0.5, requires_grad=True), 0.5),
        (torch.tensor([2.0], dtype=torch.bfloat16), [2.0]),
        (Decimal("0.5"), 0.5),
        (Decimal("NaN"), "NaN"),
        (Fraction(1, 4), 0.25),
        (Fraction(-(10**400)), "-Infinity"),
        (np.longdouble(1.5), 1.5),
        (np.array([1.5], dtype=np.longdouble), [1.5]),
        (np.ma.masked, "NaN"),
        (np.ma.array([1.0], mask=[True]).mean(), "NaN"),
        (np.ma.array(2.0), 2.0),
    ],
)
def test_values(value: Any, expected: Any) -> None:
    frozen, size = Freezer().freeze({"m": value})
    assert frozen == {"m": expected}
    assert type(frozen["m"]) is type(expected)
    assert size >= 1


@pytest.mark.parametrize(
    "value", [object(), 1j, {1, 2}, b"x", [1, [object()]], print, Decimal("sNaN")]
)
def test_unstorable_values_are_dropped_with_one_warning(
    value: Any, caplog: pytest.LogCaptureFixture
) -> None:
    freezer = Freezer()
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert freezer.freeze({"bad": value, "good": 1.0})[0] == {"good": 1.0}
    assert len(caplog.records) == 1
    assert "'bad'" in caplog.text
    with pytest.raises(Unsupported):
        plain(value)


def test_a_number_that_gives_itself_is_not_nested(caplog: pytest.LogCaptureFixture) -> None:
    assert Freezer().freeze({"m": np.clongdouble(1)})[0] == {}
    assert "its type, clongdouble, is not a number" in caplog.text


def test_none_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="'loss' is None"):
        Freezer().freeze({"loss": None})


def test_endless_nesting_is_refused() -> None:
    loop: list[Any] = []
    loop.append(loop)
    assert Freezer().freeze({"loop": loop, "x": 1})[0] == {"x": 1}


def test_the_copy_does_not_follow_the_original() -> None:
    inner = [1, 2]
    array = np.zeros(2)
    tensor = torch.zeros(2)
    metrics = {"list": inner, "map": {"k": inner}, "array": array, "tensor": tensor}
    frozen, _ = Freezer().freeze(metrics)
    inner.append(3)
    array += 1
    tensor += 1
    metrics["late"] = 1
    assert frozen == {"list": [1, 2], "map": {"k": [1, 2]}, "array": [0, 0], "tensor": [0, 0]}
