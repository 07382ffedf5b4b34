"""Reads the batches that MLflow's clients log, in MLflow's JSON."""

from __future__ import annotations

import json
import math
import posixpath
import re
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeGuard
from uuid import UUID

from determined.common.wire import limits
from determined.common.wire.checks import SHOWN, show
from determined_registry.mlflow.names import checkpoint_of
from determined_service.base.checks import check_text
from determined_service.base.errors import BadRequest, NotFound

METRICS, PARAMS, TAGS = 1000, 100, 100
"""Of one request, as MLflow's own server takes them."""
_KEY = re.compile(r"[/\w.\- :]{1,250}")
_NUMBER = re.compile(r"[+-]?(?:\d+[.]?\d*|[.]\d+)(?:[eE][+-]?\d+)?", re.ASCII)

_FIRST_YEAR, _LAST_YEAR = limits.REPORT_YEARS
_MOMENTS = (
    int(datetime(_FIRST_YEAR, 1, 1, tzinfo=UTC).timestamp()) * 1000,
    int(datetime(_LAST_YEAR + 1, 1, 1, tzinfo=UTC).timestamp()) * 1000 - 1,
)
_STEPS = (-limits.INT64, limits.INT64)

Point = tuple[str, float | str, int, int]
"""Of a metric: its key, its value, milliseconds since 1970, its step."""


@dataclass(frozen=True, slots=True)
class ModelPoint:
    """A metric that the run also reports for a logged model; ``dataset_name`` and ``dataset_digest``: of the
    data set on which it was measured."""

    model: UUID
    point: Point
    dataset_name: str | None
    dataset_digest: str | None


class MlflowBatch:
    """A batch as a request has it: metrics, parameters, tags; lists of objects with ``key`` and ``value``.

    Refusals name the parameter by its path and are in the words of MLflow's own server.
    """

    def __init__(self, given: dict[str, Any]) -> None:
        """Raises BadRequest; NotFound for a model that cannot be one."""
        metrics = _list(given, "metrics", METRICS)
        self.metrics = [_metric(one, f"metrics[{n}].") for n, one in enumerate(metrics)]
        self.of_models = [
            _of_model(one, point)
            for one, point in zip(metrics, self.metrics, strict=True)
            if one.get("model_id")
        ]
        params = [
            _pair(one, f"params[{n}].") for n, one in enumerate(_list(given, "params", PARAMS))
        ]
        self.params = dict(params)
        if len(self.params) < len(params):
            twice = sorted(
                key for key, count in Counter(key for key, _ in params).items() if count > 1
            )
            raise BadRequest(
                f"Duplicate parameter keys have been submitted: {show(', '.join(twice))}; send each once"
            )
        self.tags = dict(
            _pair(one, f"tags[{n}].") for n, one in enumerate(_list(given, "tags", TAGS))
        )

    @classmethod
    def of_metric(cls, given: dict[str, Any]) -> MlflowBatch:
        """Of one metric, which the request is. Raises as the constructor."""
        _metric(given, "")
        return cls({"metrics": [given]})


def run_of(given: Any) -> str:
    """The id of the run that a request is about. Raises BadRequest."""
    if not isinstance(given, dict):
        raise BadRequest("the body must be an object")
    found = given.get("run_id") or given.get("run_uuid")
    if not found:
        raise missing("run_id")
    if not isinstance(found, str):
        raise wrong("run_id", found, "expected the id of a run, as a text")
    return found


def missing(path: str) -> BadRequest:
    """The refusal of a request without the parameter ``path``."""
    return BadRequest(f"Missing value for required parameter '{path}'.")


def wrong(path: str, value: Any, why: str) -> BadRequest:
    """The refusal of the parameter ``path``; ``why`` describes the allowed values."""
    shown = json.dumps(value) if value is None or type(value) in (str, bool, float) else show(value)
    if len(shown) > SHOWN:
        shown = f"{shown[:SHOWN]}…"
    return BadRequest(f"Invalid value {shown} for parameter '{path}' supplied: {why}")


def _list(given: dict[str, Any], name: str, most: int) -> list[Any]:
    found = given.get(name) or []
    if not isinstance(found, list):
        raise wrong(name, found, f"expected a list of at most {most}")
    if len(found) > most:
        raise BadRequest(
            f"A batch logging request can contain at most {most} {name}. Got {len(found)} {name}: send "
            "several requests"
        )
    return found


def _key(one: Any, path: str, what: str) -> str:
    """The ``key`` of an object. Raises BadRequest."""
    if not isinstance(one, dict):
        raise wrong(path.rstrip("."), one, f"expected an object with {what}")
    key = one.get("key")
    if key is None or key == "":
        raise missing(f"{path}key")
    if not isinstance(key, str):
        raise wrong(f"{path}key", key, "expected a text")
    if not _is_key(key):
        raise wrong(
            # As MLflow's server calls it.
            f"{path}{'name' if path.startswith('metrics') else 'key'}",
            key,
            "a name has 1 to 250 letters, digits, '_', '-', '.', ' ', ':' and '/', and as a path has no "
            "other spelling",
        )
    return key


def _pair(one: Any, path: str) -> tuple[str, str]:
    key = _key(one, path, "key and value")
    value = one.get("value", "")
    if not isinstance(value, str):
        raise wrong(f"{path}value", value, "expected a text")
    if len(value) > limits.TEXT_CHARS or "\0" in value:
        raise wrong(
            f"{path}value",
            value,
            f"at most {limits.TEXT_CHARS} characters are allowed, and not NUL",
        )
    return key, value


def _metric(one: Any, path: str) -> Point:
    key = _key(one, path, "key, value, timestamp and step")
    step = _whole(one.get("step") or 0, path, "step", _STEPS)
    moment = _whole(one.get("timestamp"), path, "timestamp", _MOMENTS)
    return key, _number(one.get("value"), path), moment, step


def _whole(value: Any, path: str, name: str, bounds: tuple[int, int]) -> int:
    """MLflow's clients send whole numbers as texts, too, as JSON of protocol buffers has them."""
    try:
        found = int(value)
    except (TypeError, ValueError, OverflowError):
        found = None
    if isinstance(value, bool) or (isinstance(value, float) and value != found):
        found = None
    if found is not None and bounds[0] <= found <= bounds[1]:
        return found
    if value is None or value == "":
        raise missing(path + name)
    unit = " (ms since 1970)" if bounds == _MOMENTS else ""
    raise wrong(
        path + name, value, f"expected a whole number from {bounds[0]} to {bounds[1]}{unit}"
    )


def _is_key(key: Any) -> TypeGuard[str]:
    """True if the name has only one spelling: MLflow's own stores keep keys as files."""
    return (
        isinstance(key, str)
        and _KEY.fullmatch(key) is not None
        and posixpath.normpath(key) == key
        and key != "."
        and not key.startswith(("..", "/"))
    )


def _number(value: Any, path: str) -> float | str:
    """A number, or the name of one that JSON has not. Numbers may come as texts, as JSON of protocol buffers
    has them. Raises BadRequest."""
    if value in ("NaN", "Infinity", "-Infinity"):
        return str(value)
    if type(value) is int or (type(value) is str and _NUMBER.fullmatch(value)):
        value = float(value)
    if type(value) is not float or not math.isfinite(value):
        if value is None or value == "":
            raise missing(f"{path}value")
        raise wrong(f"{path}value", value, "expected a number of 64 bits")
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
