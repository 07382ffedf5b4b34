"""A point of a space as plain numbers, one for each hyperparameter that varies."""

from __future__ import annotations

import copy
import math
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from determined_searchers.axes import Categorical, Const, Integer, Leaf, Log
from determined_searchers.space import Space

Point = tuple[float, ...]


class Coordinates:
    """Between hyperparameters and points: int and double as they are, log by its exponent,
    categorical by the index of its value. A hyperparameter with only one value has no coordinate.

    Attributes:
        axes: the hyperparameters that vary, in the order of a point's numbers.
    """

    def __init__(self, space: Space) -> None:
        self._space = space
        self._leaves = space.leaves()
        self.axes = [leaf for leaf in self._leaves if not _fixed(leaf)]

    def of(self, hparams: Mapping[str, Any]) -> Point:
        """The point of a sample of the space."""
        values = zip(self._leaves, self._space.read(hparams), strict=True)
        return tuple(coordinate(leaf, value) for leaf, value in values if not _fixed(leaf))

    def hparams(self, point: Iterable[float]) -> dict[str, Any]:
        """The hyperparameters at ``point``, constants included."""
        return self._space.fill(self._values(iter(point)))

    def _values(self, point: Iterator[float]) -> Iterator[Any]:
        for leaf in self._leaves:
            yield _only_value(leaf) if _fixed(leaf) else value_at(leaf, next(point))

    def load(self, saved: Iterable[float]) -> Point:
        """A point that was saved as JSON, where 1.0 may have become 1."""
        return tuple(
            number if isinstance(leaf, (Integer, Categorical)) else float(number)
            for leaf, number in zip(self.axes, saved, strict=True)
        )


def coordinate(leaf: Leaf, value: Any) -> float:
    """The coordinate of ``value`` on the axis of ``leaf``."""
    if isinstance(leaf, Categorical):
        return next(index for index, known in enumerate(leaf.vals) if _same(known, value))
    if isinstance(leaf, Log):
        # Rounding may put the exponent a hair outside, and a power may be too small for a float.
        exponent = math.log(value or sys.float_info.min) / math.log(leaf.base)
        return min(max(exponent, leaf.minval), leaf.maxval)
    return value


def value_at(leaf: Leaf, number: float) -> Any:
    """The inverse of :func:`coordinate`."""
    if isinstance(leaf, Categorical):
        return copy.deepcopy(leaf.vals[int(number)])
    if isinstance(leaf, Log):
        return float(leaf.base**number)
    return number


def _fixed(leaf: Leaf) -> bool:
    return (
        isinstance(leaf, Const)
        or (isinstance(leaf, Categorical) and len(leaf.vals) == 1)
        or (isinstance(leaf, Log) and leaf.base == 1)
    )


def _only_value(leaf: Leaf) -> Any:
    return 1.0 if isinstance(leaf, Log) else copy.deepcopy(leaf.axis()[0])


def _same(one: Any, other: Any) -> bool:
    """Equal, and of one type: 1, 1.0 and True are three values."""
    return type(one) is type(other) and one == other
