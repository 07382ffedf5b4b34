"""Values that are allowed and probably not meant: :func:`doubts`, in words."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

MOST = 5
"""So many of a kind are told."""
_HUGE = 1e30
"""No hyperparameter is as large."""
_NARROW = 1.5
_SMALL = 0.1
_RANGES = ("int", "double", "log")
_RANGE = "{type: double, minval: …, maxval: …}, or type int or log"
_CHOICE = "{type: categorical, vals: […]}"
_UNTYPED = {frozenset({"minval", "maxval"}): _RANGE, frozenset({"vals"}): _CHOICE}
"""The likely type of a value with these fields and no ``type``."""
_FOREIGN = {frozenset({"min", "max"}): _RANGE, frozenset({"values"}): _CHOICE}
"""The same of other tools' search spaces. In a single trial they may be anything."""
_LARGER_IS_BETTER = frozenset(
    {"acc", "accuracy", "auc", "auroc", "f1", "precision", "recall", "r2"}
)
"""Words in the names of metrics that are better when larger, in any kind of training."""
_OPPOSITES = frozenset({"error", "loss", "1", "neg", "negative", "inverse"})
"""Words with which a name means the opposite, or nobody knows."""


def doubts(config: Mapping[str, Any]) -> list[str]:
    """A sentence for each value of the (complete) ``config`` that probably means something else."""
    space = config.get("hyperparameters") or {}
    alone = (config.get("searcher") or {}).get("name") == "single"
    meant = _UNTYPED if alone else _UNTYPED | _FOREIGN
    path = "hyperparameters"
    return [
        *_direction(config.get("searcher") or {}),
        *_first(list(_log_ranges(space, path)), "log range"),
        *_first(list(_constants(space, path, meant)), "constant"),
    ]


def _direction(searcher: Mapping[str, Any]) -> Iterator[str]:
    metric, smaller = searcher.get("metric"), searcher.get("smaller_is_better", True)
    words = set(re.split(r"[\W_]+", metric.lower())) if isinstance(metric, str) else set()
    if smaller and words & _LARGER_IS_BETTER and not words & _OPPOSITES:
        yield (
            f"searcher.smaller_is_better is true, so the trial with the smallest {metric} counts as the "
            "best; for the largest write smaller_is_better: false"
        )


def _first(found: list[str], kind: str) -> list[str]:
    more = len(found) - MOST
    if more <= 0:
        return found
    rest = f"{more} more {kind}s are like these" if more > 1 else f"1 more {kind} is like these"
    return [*found[:MOST], rest]


def _log_ranges(space: Mapping[str, Any], path: str) -> Iterator[str]:
    for name, value in space.items():
        if not isinstance(value, Mapping):
            continue
        if "type" not in value:
            yield from _log_ranges(value, f"{path}.{name}")
        elif value["type"] == "log" and _looks_like_values(value):
            yield _exponents(value, f"{path}.{name}")


def _looks_like_values(given: Mapping[str, Any]) -> bool:
    """True if the bounds look like the smallest and largest value instead of their exponents.

    As exponents such numbers give nearly the same value everywhere, begin at a power that nobody writes
    (10 to 0.0001), or end beyond all measure (10 to 100).
    """
    base, low, high = given["base"], given["minval"], given["maxval"]
    if base < 2 or low < 0:
        return False
    return bool(
        base ** (high - low) < _NARROW
        or (0 < low < _SMALL and high / low >= base)
        or base**high > _HUGE
    )


def _exponents(given: Mapping[str, Any], path: str) -> str:
    base, low, high = given["base"], given["minval"], given["maxval"]
    words = (
        f"{path}: minval and maxval of a log range are exponents: {base:g} to the power of {low:g} … "
        f"{high:g} is {base**low:.5g} … {base**high:.5g}"
    )
    if low <= 0:
        return words
    meant = [f"{math.log(one, base):.4g}" for one in (low, high)]
    return (
        f"{words}; for values from {low:g} to {high:g} write minval: {meant[0]}, maxval: {meant[1]}"
    )


def _constants(
    space: Mapping[str, Any], path: str, meant: Mapping[frozenset[str], str]
) -> Iterator[str]:
    """Of what looks like a range or a choice, and is handed to the trials as it is written."""
    for name, value in space.items():
        here = f"{path}.{name}"
        if isinstance(value, Mapping) and "type" in value:
            inner = {"const": "val", "categorical": "vals"}.get(value["type"])
            if inner is not None:
                yield from _in_lists(value.get(inner), f"{here}.{inner}")
        elif isinstance(value, Mapping):
            written = next((fields for fields in meant if fields <= value.keys()), None)
            if written is None or any(isinstance(one, Mapping) for one in value.values()):
                yield from _constants(value, here, meant)
                continue
            fields = ", ".join(one for one in value if one in written)
            yield (
                f"{here}: a mapping without type is a group of constants, and nothing is searched in it; if "
                f"{fields} say what to search, write {meant[written]}"
            )
        else:
            yield from _in_lists(value, here)


def _in_lists(value: Any, path: str) -> Iterator[str]:
    if isinstance(value, list):
        for index, item in enumerate(value):
            yield from _in_lists(item, f"{path}[{index}]")
    elif isinstance(value, Mapping) and _is_searched(value):
        yield (
            f"{path}: nothing is searched inside of lists and constants: each trial gets the mapping "
            f"{{type: {value['type']}, …}} itself; give this hyperparameter a name outside of it"
        )


def _is_searched(value: Mapping[str, Any]) -> bool:
    """True if a mapping would be a range or a choice where those are read."""
    if value.get("type") == "categorical":
        return "vals" in value
    return value.get("type") in _RANGES and {"minval", "maxval"} <= value.keys()
