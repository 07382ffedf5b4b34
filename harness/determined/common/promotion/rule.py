"""The user's rule: which metric decides, by how much, how surely, and which metrics must not fall."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

NAME_CHARS = 200
GUARDS = 50
LEAST_CONFIDENCE, MOST_CONFIDENCE = 0.5, 0.9999


class RuleError(ValueError):
    """A rule that cannot be used; the text names the field."""


@dataclass(frozen=True, slots=True)
class Guard:
    """A metric by which the challenger may be worse than the champion by ``may_fall`` at most.

    ``may_fall`` is in the metric's own unit: 0.01 of an accuracy is one percentage point.
    """

    metric: str
    smaller_is_better: bool = False
    may_fall: float = 0.0


@dataclass(frozen=True, slots=True)
class PromotionRule:
    """The challenger is promoted when its gain by ``metric`` is more than ``min_gain``, and no guard falls.

    The gain is positive where the challenger is better, in the metric's own unit. ``confidence``: the share
    of challengers with a true gain of ``min_gain`` or less that are not promoted (:mod:`.bootstrap`); None
    compares the plain means.
    """

    metric: str
    smaller_is_better: bool = False
    min_gain: float = 0.0
    confidence: float | None = 0.95
    guards: tuple[Guard, ...] = ()

    @classmethod
    def read(cls, data: Any) -> PromotionRule:
        """From JSON or YAML. Raises RuleError."""
        given = _mapping(data, "rule", {"guards", "min_gain", "confidence", *_METRIC})
        listed = given.get("guards") or []
        if not isinstance(listed, list) or len(listed) > GUARDS:
            raise RuleError(f"rule.guards: expected a list of at most {GUARDS} guards")
        confidence = given.get("confidence", 0.95)
        if confidence is not None:
            confidence = _number(confidence, "rule.confidence")
            if not LEAST_CONFIDENCE < confidence <= MOST_CONFIDENCE:
                raise RuleError(
                    f"rule.confidence: {confidence} is not above {LEAST_CONFIDENCE} and at most "
                    f"{MOST_CONFIDENCE}; 0.95 means that a challenger that is no better is promoted in at "
                    "most 5 % of the decisions"
                )
        return cls(
            metric=_name(given, "rule"),
            smaller_is_better=_flag(given, "rule"),
            min_gain=_size(given, "rule", "min_gain"),
            confidence=confidence,
            guards=tuple(_guard(one, f"rule.guards[{n}]") for n, one in enumerate(listed)),
        )

    def to_json(self) -> dict[str, Any]:
        """The JSON that :meth:`read` reads."""
        return {**asdict(self), "guards": [asdict(guard) for guard in self.guards]}


_METRIC = {"metric", "smaller_is_better"}


def _guard(data: Any, path: str) -> Guard:
    given = _mapping(data, path, {"may_fall", *_METRIC})
    return Guard(_name(given, path), _flag(given, path), _size(given, path, "may_fall"))


def _mapping(data: Any, path: str, known: set[str]) -> Mapping[str, Any]:
    if not isinstance(data, Mapping):
        raise RuleError(f"{path}: expected a mapping with the field metric")
    unknown = sorted(str(key) for key in data.keys() - known)
    if unknown:
        raise RuleError(
            f"{path}: unknown field {unknown[0][:80]!r}; choose {', '.join(sorted(known))}"
        )
    return data


def _name(given: Mapping[str, Any], path: str) -> str:
    name = given.get("metric")
    if not isinstance(name, str) or not 0 < len(name) <= NAME_CHARS or not name.isprintable():
        raise RuleError(
            f"{path}.metric: expected the name of a score that the evaluate function returns"
        )
    return name


def _flag(given: Mapping[str, Any], path: str) -> bool:
    value = given.get("smaller_is_better", False)
    if not isinstance(value, bool):
        raise RuleError(f"{path}.smaller_is_better: expected true or false")
    return value


def _size(given: Mapping[str, Any], path: str, field: str) -> float:
    value = _number(given.get(field, 0.0), f"{path}.{field}")
    if value < 0:
        raise RuleError(f"{path}.{field}: {value} is negative")
    return value


def _number(value: Any, path: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise RuleError(f"{path}: expected a finite number")
    return float(value)
