"""The kinds of hyperparameter: how each is drawn at random and which points it has on a grid."""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from types import NoneType
from typing import Any

from determined_searchers.errors import SearcherError
from determined_searchers.stream import RandomStream


class Leaf(ABC):
    """One hyperparameter, built from its object in the configuration at ``path``."""

    def __init__(self, config: Mapping[str, Any], path: str) -> None:
        self.path = path

    @abstractmethod
    def sample(self, stream: RandomStream) -> Any:
        """A random value."""

    @abstractmethod
    def axis(self) -> list[Any]:
        """Its values on a grid, in order."""


class Const(Leaf):
    """Always ``val``; draws nothing."""

    def __init__(self, config: Mapping[str, Any], path: str) -> None:
        super().__init__(config, path)
        if "val" not in config:
            raise SearcherError(f"{path}: a const needs val")
        self.val = config["val"]
        self._copy = _copier([self.val])

    def sample(self, stream: RandomStream) -> Any:
        return self._copy(self.val)

    def axis(self) -> list[Any]:
        return [self.val]


class Categorical(Leaf):
    """One of ``vals``."""

    def __init__(self, config: Mapping[str, Any], path: str) -> None:
        super().__init__(config, path)
        if not isinstance(config.get("vals"), (list, tuple)) or not config["vals"]:
            raise SearcherError(f"{path}.vals: expected a list of at least one value")
        self.vals = list(config["vals"])
        self._copy = _copier(self.vals)

    def sample(self, stream: RandomStream) -> Any:
        return self._copy(self.vals[stream.below(len(self.vals))])

    def axis(self) -> list[Any]:
        return self.vals


class _Range(Leaf):
    """``minval`` < ``maxval``, and for grids ``count``."""

    def __init__(self, config: Mapping[str, Any], path: str) -> None:
        super().__init__(config, path)
        self.minval = self._bound(config, "minval")
        self.maxval = self._bound(config, "maxval")
        if not self.minval < self.maxval:
            raise SearcherError(
                f"{path}: minval ({self.minval}) must be less than maxval ({self.maxval})"
            )
        self.count = config.get("count")
        if self.count is not None and (
            isinstance(self.count, bool) or not isinstance(self.count, int) or self.count < 1
        ):
            raise SearcherError(
                f"{path}.count: expected a whole number of at least 1, found {self.count!r}"
            )

    def _bound(self, config: Mapping[str, Any], field: str) -> Any:
        return _number(config, self.path, field)

    def _points(self, limit: int | None = None) -> list[float]:
        """``count`` (at most ``limit``) evenly spaced points, both ends in; one: the middle."""
        if self.count is None:
            raise SearcherError(f"{self.path}: grid search is in use but count was not provided")
        low, high = self.minval, self.maxval
        count = self.count if limit is None else min(self.count, limit)
        if count == 1:
            return [(low + high) / 2]
        return [low + i * (high - low) / (count - 1) for i in range(count)]


class Integer(_Range):
    """A whole number from ``minval`` to ``maxval``, both included."""

    def _bound(self, config: Mapping[str, Any], field: str) -> int:
        value = _number(config, self.path, field)
        if not value.is_integer():
            raise SearcherError(f"{self.path}.{field}: {value} is not a whole number")
        return int(config[field])

    def sample(self, stream: RandomStream) -> int:
        return int(self.minval + stream.below(self.maxval - self.minval + 1))

    def axis(self) -> list[int]:
        return [_round_away(x) for x in self._points(limit=self.maxval - self.minval + 1)]


class Double(_Range):
    """A number in [``minval``, ``maxval``)."""

    def sample(self, stream: RandomStream) -> float:
        return stream.uniform(self.minval, self.maxval)

    def axis(self) -> list[float]:
        return self._points()


class Log(_Range):
    """``base`` to a power in [``minval``, ``maxval``): the bounds are exponents."""

    def __init__(self, config: Mapping[str, Any], path: str) -> None:
        super().__init__(config, path)
        self.base = _number(config, path, "base")
        if self.base <= 0:
            raise SearcherError(f"{path}.base: must be more than 0, found {self.base}")
        for field, exponent in (("minval", self.minval), ("maxval", self.maxval)):
            try:
                self.base**exponent
            except OverflowError:
                raise SearcherError(
                    f"{path}.{field}: {self.base} to the power {exponent} is too large (the "
                    f"bounds of a log hyperparameter are exponents)"
                ) from None

    def sample(self, stream: RandomStream) -> float:
        return float(self.base ** stream.uniform(self.minval, self.maxval))

    def axis(self) -> list[float]:
        return [float(self.base**x) for x in self._points()]


def _copier(values: list[Any]) -> Callable[[Any], Any]:
    """A copy of a value, so that a trial cannot change the configuration's; only containers need a copy."""
    plain = all(isinstance(value, (str, int, float, NoneType)) for value in values)
    return (lambda value: value) if plain else copy.deepcopy


def _number(config: Mapping[str, Any], path: str, field: str) -> float:
    value = config.get(field)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        found = "nothing" if value is None else repr(value)
        raise SearcherError(f"{path}.{field}: expected a number, found {found}")
    return float(value)


def _round_away(x: float) -> int:
    """The nearest whole number, halves away from zero (Python's ``round`` goes to even)."""
    whole = math.trunc(x)
    return whole + int(math.copysign(1, x)) if abs(x - whole) >= 0.5 else whole
