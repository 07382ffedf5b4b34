"""Reads the ``searcher`` section: one function per kind of field, each error with its path."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any

from determined_searchers.errors import SearcherError

UNITS = ("batches", "records", "epochs")


class Form(StrEnum):
    """The form of a search: whether the searcher's operations or the trials' reports decide how long a
    trial trains.
    """

    OPERATIONS = "operations"  # the searcher: ValidateAfter with lengths, Close
    REPORTS = "reports"  # the trial's own code; the searcher may answer a report with Stop


def read_form(section: Mapping[str, Any]) -> Form:
    """``max_time`` with ``time_metric`` wins over ``max_length``; without either, reports."""
    if section.get("max_time") is not None and section.get("time_metric") is not None:
        return Form.REPORTS
    if section.get("max_length") is not None or is_custom(section):
        return Form.OPERATIONS
    return Form.REPORTS


def is_custom(section: Mapping[str, Any]) -> bool:
    """True if this ``searcher`` section leaves the search to a method that a user runs elsewhere."""
    return section.get("name") == "custom"


def read_unit(section: Mapping[str, Any]) -> str | None:
    """The unit of lengths: that of ``max_length``, or the time metric; None if not given."""
    if read_form(section) is Form.REPORTS:
        metric: str | None = section.get("time_metric")
        return metric
    length = section.get("max_length")
    if isinstance(length, Mapping):
        return next((unit for unit, value in length.items() if value is not None), None)
    return None


def read_length(section: Mapping[str, Any]) -> int | None:
    """``max_length`` as a number: ``{unit: n}`` or a bare ``n``; None when absent."""
    length = section.get("max_length")
    if isinstance(length, Mapping):
        given = {unit: value for unit, value in length.items() if value is not None}
        if len(given) != 1 or not set(given) <= set(UNITS):
            raise SearcherError(
                f"searcher.max_length: exactly one of {', '.join(UNITS)} is needed, found "
                f"{', '.join(map(str, given)) or 'nothing'}"
            )
        length = next(iter(given.values()))
    if length is not None and not _whole(length, 1):
        raise SearcherError(
            f"searcher.max_length: expected a whole number of at least 1, found {length!r}"
        )
    return length


def read_whole(
    section: Mapping[str, Any], field: str, minimum: int, default: int | None = None
) -> int:
    """A whole number; a field without a default is required."""
    value = section.get(field)
    if value is None:
        value = default
    if value is None:
        raise SearcherError(
            f"searcher.{field}: the {section.get('name')} searcher needs this field"
        )
    if not _whole(value, minimum):
        raise SearcherError(
            f"searcher.{field}: expected a whole number of at least {minimum}, found {value!r}"
        )
    return int(value)


def read_divisor(section: Mapping[str, Any]) -> float:
    """``divisor``, by default 4."""
    value = section.get("divisor")
    if value is None:
        return 4.0
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 1 < value < math.inf:
        raise SearcherError(f"searcher.divisor: expected a number above 1, found {value!r}")
    return float(value)


def nearest(word: Any, allowed: Iterable[str]) -> str:
    """ " (did you mean x?)" for the allowed word nearest to ``word``, or nothing."""
    close = difflib.get_close_matches(str(word), list(allowed), n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""


def _whole(value: Any, minimum: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= minimum
