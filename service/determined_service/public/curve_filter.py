"""``timeSeriesFilter``: which points of a curve are wanted, in Determined's parameters.

Each of its fields is a parameter: ``timeSeriesFilter.name`` (``batches``, the default, or ``time``), and the
bounds of a range, ``timeSeriesFilter.integerRange.gte`` and so on.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import sqlalchemy as sa

from determined.common.wire import limits
from determined.common.wire.checks import show
from determined_registry.database.tables import metrics
from determined_service.base.checks import check_int
from determined_service.base.errors import BadRequest
from determined_service.views.values import parse_time

m = metrics.c

_NAME = "timeSeriesFilter"
_BOUNDS: dict[str, Callable[[Any, Any], Any]] = {
    "lt": operator.lt,
    "lte": operator.le,
    "gt": operator.gt,
    "gte": operator.ge,
}
_LISTS: dict[str, Callable[[Any, Sequence[int]], Any]] = {
    "incl": lambda column, values: column.in_(values),
    "notIn": lambda column, values: column.not_in(values),
}
_NUMBER = re.compile(r"-?[0-9]{1,30}(\.[0-9]{1,30})?([eE][+-]?[0-9]{1,2})?")


def conditions(given: Iterable[tuple[str, str]]) -> list[sa.ColumnElement[bool]]:
    """The conditions on a report's row that the query's parameters set. Raises BadRequest for what is not
    known."""
    fields: dict[str, list[str]] = {}
    for key, value in given:
        # With underscores: the names of arguments in Determined's own bindings.
        name, dot, field = key.replace("_", ".").partition(".")
        if name == _NAME:
            fields.setdefault(field if dot else "", []).append(value)
    by = fields.pop("name", ["batches"])[-1] or "batches"
    if by not in ("batches", "time"):
        raise BadRequest(
            f"{_NAME}.name: {show(by)} is not what points are chosen by: give batches or time"
        )
    return [_condition(by, field, values) for field, values in fields.items()]


def _condition(by: str, field: str, values: list[str]) -> sa.ColumnElement[bool]:
    path = f"{_NAME}.{field}"
    kind, _, bound = field.partition(".")
    allowed = ("timeRange",) if by == "time" else ("integerRange", "doubleRange")
    if kind not in allowed or not (
        bound in _BOUNDS or (bound in _LISTS and kind == "integerRange")
    ):
        known = ", ".join(f"{_NAME}.{one}.{end}" for one in allowed for end in _BOUNDS)
        raise BadRequest(f"{path} is not known where points are chosen by {by}: give {known}")
    found: Any
    if by == "time":
        found = _BOUNDS[bound](m.end_time, parse_time(values[-1], path))
    elif bound in _LISTS:
        if len(values) > limits.MANY_IDS:
            raise BadRequest(f"{path}: {len(values)} values, at most {limits.MANY_IDS} are allowed")
        found = _LISTS[bound](m.steps_completed, [_whole(value, path) for value in values])
    elif kind == "integerRange":
        found = _BOUNDS[bound](m.steps_completed, _whole(values[-1], path))
    else:
        found = _BOUNDS[bound](m.steps_completed, _number(values[-1], path))
    return sa.type_coerce(found, sa.Boolean())


def _whole(text: str, path: str) -> int:
    number = int(text) if re.fullmatch(r"-?[0-9]{1,19}", text) else text
    return check_int(number, path, -limits.INT64 - 1)


def _number(text: str, path: str) -> sa.ColumnElement[Any]:
    if not _NUMBER.fullmatch(text):
        raise BadRequest(f"{path}: expected a number, found {show(text)}")
    return sa.literal(float(text), sa.Double())
