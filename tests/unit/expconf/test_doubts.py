"""Values that are allowed and probably not meant."""

from __future__ import annotations

from typing import Any

import pytest

from determined.expconf.doubts import doubts


def log(minval: float, maxval: float, base: float = 10) -> dict[str, Any]:
    return {"type": "log", "base": base, "minval": minval, "maxval": maxval}


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
