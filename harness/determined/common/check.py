"""Checks with a message, which published scripts import: ``check.gt_eq(rounds, 1, "rounds")``.

Each function raises :class:`CheckFailedError` where its condition does not hold; ``reason`` is added to the
message. ``check_eq`` and so on are the same functions under their older names.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Container, Sized
from typing import Any


class CheckFailedError(Exception):
    """A value is not what was expected."""


def _require(holds: object, message: str, reason: str | None) -> None:
    if not holds:
        raise CheckFailedError(f"{message}: {reason}" if reason else message)


def _comparison(name: str, words: str) -> Callable[..., None]:
    compare = getattr(operator, name)

    def check(val: Any, expected: Any, reason: str | None = None) -> None:
        _require(
            compare(val, expected), f"expected a value {words} {expected!r}, found {val!r}", reason
        )

    return check


eq = _comparison("eq", "equal to")
not_eq = _comparison("ne", "other than")
lt = _comparison("lt", "less than")
lt_eq = _comparison("le", "of at most")
gt = _comparison("gt", "greater than")
gt_eq = _comparison("ge", "of at least")


def true(val: object, reason: str | None = None) -> None:
    _require(val, f"expected something true, found {val!r}", reason)


def false(val: object, reason: str | None = None) -> None:
    _require(not val, f"expected something false, found {val!r}", reason)


def is_none(val: object, reason: str | None = None) -> None:
    _require(val is None, f"expected None, found {val!r}", reason)


def is_not_none(val: object, reason: str | None = None) -> None:
    _require(val is not None, "expected a value, found None", reason)


def is_in(val: Any, expected: Container[Any], reason: str | None = None) -> None:
    _require(val in expected, f"expected one of {expected!r}, found {val!r}", reason)


def not_in(val: Any, expected: Container[Any], reason: str | None = None) -> None:
    _require(val not in expected, f"expected none of {expected!r}, found {val!r}", reason)


def len_eq(val: Sized, expected_len: int, reason: str | None = None) -> None:
    _require(len(val) == expected_len, f"expected {expected_len} items, found {val!r}", reason)


def equal_lengths(x: Sized, y: Sized, reason: str | None = None) -> None:
    _require(len(x) == len(y), f"expected the same length, found {x!r} and {y!r}", reason)


def is_type(val: object, expected: type, reason: str | None = None) -> None:
    _require(type(val) is expected, f"expected a {expected.__name__}, found {val!r}", reason)


def is_instance(val: object, expected: type | tuple[type, ...], reason: str | None = None) -> None:
    _require(
        isinstance(val, expected), f"expected an instance of {expected}, found {val!r}", reason
    )


def is_not_instance(
    val: object, expected: type | tuple[type, ...], reason: str | None = None
) -> None:
    _require(not isinstance(val, expected), f"expected no {expected}, found {val!r}", reason)


def is_subclass(val: type, expected: type, reason: str | None = None) -> None:
    _require(issubclass(val, expected), f"expected a subclass of {expected}, found {val!r}", reason)


check_true, check_false = true, false
check_none, check_not_none = is_none, is_not_none
check_eq, check_not_eq = eq, not_eq
check_lt, check_lt_eq, check_gt, check_gt_eq = lt, lt_eq, gt, gt_eq
check_in, check_not_in = is_in, not_in
check_len, check_eq_len = len_eq, equal_lengths
check_type, check_issubclass = is_type, is_subclass
check_isinstance, check_not_isinstance = is_instance, is_not_instance
