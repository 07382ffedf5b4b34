"""Turns hyperparameters of any type and depth into axes."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

LOG_RATIO = 1000.0
"""From this ratio of extremes on, a hyperparameter of unknown distribution is drawn on a log axis.
"""


@dataclass(frozen=True, slots=True)
class Axis:
    """One hyperparameter that differs between trials.

    ``places`` has one entry per trial: the number, or the index into ``categories``; None where
    the trial does not have the hyperparameter.
    """

    name: str
    places: list[float | None]
    categories: list[str] | None = None  # None: numbers
    log: bool = False

    @property
    def complete(self) -> bool:
        """True if every trial has it."""
        return None not in self.places

    @property
    def known(self) -> list[float]:
        return [place for place in self.places if place is not None]


def flatten(hparams: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested hyperparameters by dotted path; lists stay values."""
    found: dict[str, Any] = {}
    for name, value in hparams.items():
        path = f"{prefix}{name}"
        if isinstance(value, Mapping) and value:
            found |= flatten(value, f"{path}.")
        else:
            found[path] = value
    return found


def kinds(hyperparameters: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """The dotted path and type (``log``, ``categorical``, …) of each hyperparameter in the configuration."""
    for name, value in hyperparameters.items():
        if not isinstance(value, Mapping):
            continue
        if isinstance(value.get("type"), str):
            yield f"{prefix}{name}", value["type"]
        else:
            yield from kinds(value, f"{prefix}{name}.")


def text(value: Any) -> str:
    """A value for people: strings as they are, numbers short, everything else as JSON."""
    if isinstance(value, str):
        return value
    if isinstance(value, float):
        return f"{value:.6g}"
    return json.dumps(value, ensure_ascii=False)


def axes(
    hyperparameters: Mapping[str, Any] | None, points: Sequence[Mapping[str, Any]]
) -> tuple[list[Axis], dict[str, str]]:
    """The axes of flattened ``points``, in the order of the names, and the hyperparameters that are
    the same everywhere, as text. ``hyperparameters``: the configuration's, for the types."""
    types = dict(kinds(hyperparameters or {}))
    names = sorted({name for point in points for name in point})
    found: list[Axis] = []
    constant: dict[str, str] = {}
    for name in names:
        values = [point.get(name, _MISSING) for point in points]
        distinct = {_key(value) for value in values}
        if len(distinct) == 1:
            constant[name] = text(values[0])
        else:
            found.append(_axis(name, values, types.get(name)))
    return found, constant


_MISSING = object()


def _key(value: Any) -> str:
    return "" if value is _MISSING else json.dumps(value, sort_keys=True)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _axis(name: str, values: list[Any], kind: str | None) -> Axis:
    given = [value for value in values if value is not _MISSING]
    if kind == "categorical" or not all(map(_is_number, given)):
        return _category(name, values, given)
    places = [None if value is _MISSING else float(value) for value in values]
    low, high = min(given), max(given)
    wide = kind is None and low > 0 and high / low >= LOG_RATIO
    return Axis(name, places, log=low > 0 and (kind == "log" or wide))


def _category(name: str, values: list[Any], given: list[Any]) -> Axis:
    distinct = {_key(value): value for value in given}
    # Numbers in their order, everything else after them by its text.
    order = sorted(
        distinct,
        key=lambda key: (
            (0, distinct[key], "") if _is_number(distinct[key]) else (1, 0, text(distinct[key]))
        ),
    )
    index = {key: place for place, key in enumerate(order)}
    places = [None if value is _MISSING else float(index[_key(value)]) for value in values]
    return Axis(name, places, [text(distinct[key]) for key in order])
