"""What MLflow's clients log at once, in MLflow's JSON."""

from __future__ import annotations

import math
import posixpath
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeGuard
from uuid import UUID

from determined.common.wire import limits
from determined_registry.mlflow.names import checkpoint_of
from determined_service.base.checks import check_int, check_text, show
from determined_service.base.errors import BadRequest, NotFound

METRICS, PARAMS, TAGS = 1000, 100, 100
"""Of one request, as MLflow's own server takes them."""
_KEY = re.compile(r"[/\w.\- :]{1,250}")
_NUMBER = re.compile(r"[+-]?(?:\d+[.]?\d*|[.]\d+)(?:[eE][+-]?\d+)?", re.ASCII)

_FIRST_YEAR, _LAST_YEAR = limits.REPORT_YEARS
_MOMENTS = tuple(
    int(datetime(year, 1, 1, tzinfo=UTC).timestamp()) * 1000 - less
    for year, less in ((_FIRST_YEAR, 0), (_LAST_YEAR + 1, 1))
)

Point = tuple[str, float | str, int, int]
"""Of a metric: its key, its value, milliseconds since 1970, its step."""


@dataclass(frozen=True, slots=True)
class ModelPoint:
    """What the run says of a logged model, too; ``dataset_name`` and ``dataset_digest``: measured on which
    data set."""

    model: UUID
    point: Point
    dataset_name: str | None
    dataset_digest: str | None


class Log:
    """A batch as a request has it: metrics, parameters, tags; lists of objects with ``key`` and ``value``."""

    def __init__(self, given: Any) -> None:
        """Raises BadRequest; NotFound for a model that cannot be one."""
        if not isinstance(given, dict):
            raise BadRequest("the body must be an object")
        metrics = _list(given, "metrics", METRICS)
        self.metrics = [_metric(one) for one in metrics]
        self.of_models = [
            _of_model(one, point)
            for one, point in zip(metrics, self.metrics, strict=True)
            if one.get("model_id")
        ]
        params = [_pair(one, "params") for one in _list(given, "params", PARAMS)]
        self.params = dict(params)
        if len(self.params) < len(params):
            raise BadRequest("params: each key may be there once")
        self.tags = dict(_pair(one, "tags") for one in _list(given, "tags", TAGS))


def _list(given: dict[str, Any], name: str, most: int) -> list[Any]:
    found = given.get(name) or []
    if not isinstance(found, list) or len(found) > most:
        raise BadRequest(f"{name}: expected a list of at most {most}")
    return found


def _pair(one: Any, name: str) -> tuple[str, str]:
    if not isinstance(one, dict):
        raise BadRequest(f"{name}: expected objects with key and value")
    key, value = one.get("key"), one.get("value", "")
    if not isinstance(value, str) or not _is_key(key):
        raise BadRequest(f"{name}: expected keys and texts, found the key {str(key)[:80]!r}")
    if len(value) > limits.TEXT_CHARS or "\0" in value:
        raise BadRequest(
            f"{name}.{key[:80]}: at most {limits.TEXT_CHARS} characters are allowed, and not NUL"
        )
    return key, value


def _metric(one: Any) -> Point:
    if not isinstance(one, dict):
        raise BadRequest("metrics: expected objects with key, value, timestamp and step")
    key, value = one.get("key"), one.get("value")
    try:
        # MLflow's clients send whole numbers as texts, as JSON of protocol buffers has them.
        moment, step = int(one["timestamp"]), int(one.get("step") or 0)
    except (KeyError, TypeError, ValueError, OverflowError):
        raise BadRequest(
            f"metrics: {str(key)[:80]!r} needs a timestamp, in ms since 1970; it and step must be whole "
            f"numbers"
        ) from None
    if not _is_key(key):
        raise BadRequest(f"metrics: {str(key)[:80]!r} is not the name of a metric")
    check_int(step, f"metrics: the step of {key[:80]!r}", -limits.INT64, limits.INT64)
    check_int(moment, f"metrics: the timestamp of {key[:80]!r}, in ms since 1970", *_MOMENTS)
    return key, _number(key, value), moment, step


def _is_key(key: Any) -> TypeGuard[str]:
    """Whether it is a name that has one spelling alone: MLflow's own stores keep such as files."""
    return (
        isinstance(key, str)
        and _KEY.fullmatch(key) is not None
        and posixpath.normpath(key) == key
        and key != "."
        and not key.startswith(("..", "/"))
    )


def _number(key: str, value: Any) -> float | str:
    """A number, or the name of one that JSON has not. Numbers may come as texts, as JSON of protocol buffers
    has them. Raises BadRequest."""
    if value in ("NaN", "Infinity", "-Infinity"):
        return str(value)
    if type(value) is int or (type(value) is str and _NUMBER.fullmatch(value)):
        value = float(value)
    if type(value) is not float or not math.isfinite(value):
        raise BadRequest(f"metrics: the value of {key[:80]!r} must be a number")
    return value


def _of_model(one: dict[str, Any], point: Point) -> ModelPoint:
    found = checkpoint_of(str(one["model_id"]))
    if found is None:
        raise NotFound(f"logged model {show(one['model_id'])} does not exist")
    data = (one.get("dataset_name") or None, one.get("dataset_digest") or None)
    for value in data:
        if value is not None:
            check_text(value, "metrics: dataset_name and dataset_digest", limits.NAME_CHARS)
    return ModelPoint(found, point, *data)
