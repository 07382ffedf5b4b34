"""The scores of an evaluation, in a form small enough to store: means, and how sure the decisive gain is."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

METRICS = 200
NAME_CHARS = 200


class ScoresError(ValueError):
    """The report is not a comparison; the text says where."""


@dataclass(frozen=True, slots=True)
class Scores:
    """One metric of both models, as means over the held-out data.

    ``champion`` is None when there was no champion, ``examples`` 0 when no score for each example was given.
    ``gain_low`` is the lower bound of the gain at the rule's confidence, of the rule's metric only. A
    number that is not finite is None.
    """

    challenger: float | None
    champion: float | None = None
    examples: int = 0
    gain_low: float | None = None

    def gain(self, smaller_is_better: bool) -> float | None:
        """How much better the challenger is; None if it cannot be said."""
        if self.challenger is None or self.champion is None:
            return None
        gain = self.challenger - self.champion
        return -gain if smaller_is_better else gain


@dataclass(frozen=True, slots=True)
class ScoreComparison:
    """All metrics. ``had_champion``: there was a champion to compare with."""

    had_champion: bool
    metrics: Mapping[str, Scores]

    @classmethod
    def read(cls, data: Any) -> ScoreComparison:
        """From JSON that a user's process has sent. Raises ScoresError."""
        if not isinstance(data, Mapping) or not isinstance(data.get("metrics"), Mapping):
            raise ScoresError("the evaluation has reported no scores")
        found = data["metrics"]
        if len(found) > METRICS:
            raise ScoresError(f"{len(found)} metrics reported, at most {METRICS} are allowed")
        return cls(
            data.get("had_champion") is True,
            {_name(name): _scores(one, name) for name, one in found.items()},
        )

    def to_json(self) -> dict[str, Any]:
        """The JSON that :meth:`read` reads."""
        metrics = {name: asdict(one) for name, one in self.metrics.items()}
        return {"had_champion": self.had_champion, "metrics": metrics}


def _name(name: Any) -> str:
    if not isinstance(name, str) or len(name) > NAME_CHARS or not name.isprintable():
        raise ScoresError(f"{str(name)[:40]!r} is not a metric name")
    return name


def _scores(data: Any, name: str) -> Scores:
    if not isinstance(data, Mapping):
        raise ScoresError(f"{name}: expected the scores of both models")
    examples = data.get("examples", 0)
    if isinstance(examples, bool) or not isinstance(examples, int) or examples < 0:
        raise ScoresError(f"{name}: the number of examples is {str(examples)[:40]!r}")
    return Scores(
        _number(data.get("challenger"), name),
        _number(data.get("champion"), name),
        examples,
        _number(data.get("gain_low"), name),
    )


def _number(value: Any, name: str) -> float | None:
    # A number that is not finite is sent as text.
    if value is None or value in ("NaN", "Infinity", "-Infinity"):
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ScoresError(f"{name}: {str(value)[:40]!r} is not a number")
    return float(value) if math.isfinite(value) else None
