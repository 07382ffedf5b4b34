"""Scores of one or two checkpoints, compared: :func:`compare`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from determined.common.promotion import ScoreComparison, Scores
from determined.common.promotion.bootstrap import lower_bound


@dataclass(frozen=True)
class Score:
    """The mean, and the scores of each example (None: the function gave the mean itself)."""

    mean: float
    examples: list[float] | None = None


def read(returned: Any) -> dict[str, Score]:
    """Check the user function's return value and convert it to scores. Raises TypeError, ValueError."""
    if not isinstance(returned, Mapping) or not returned:
        raise TypeError(
            "the evaluate function must return a mapping of names to numbers, or to lists of one number "
            f"for each example; it returned {type(returned).__name__}"
        )
    return {str(name): _score(str(name), value) for name, value in returned.items()}


def _score(name: str, value: Any) -> Score:
    if hasattr(value, "tolist"):  # of numpy, torch and their like
        value = value.tolist()
    if isinstance(value, (int, float)):
        return Score(float(value))
    if not isinstance(value, Iterable) or isinstance(value, (str, bytes)):
        raise TypeError(
            f"{name}: expected a number or a list of numbers, not {type(value).__name__}"
        )
    examples = [float(one) for one in value]
    if not examples:
        raise ValueError(f"{name}: the list of scores is empty")
    return Score(math.fsum(examples) / len(examples), examples)


def compare(
    challenger: Mapping[str, Score],
    champion: Mapping[str, Score] | None,
    *,
    metric: str | None = None,
    smaller_is_better: bool = False,
    confidence: float | None = None,
    seed: int = 0,
) -> ScoreComparison:
    """Every metric of both; of ``metric`` also the lower bound of its gain at ``confidence``.

    Raises ValueError when the two were not scored on the same number of examples.
    """
    found: dict[str, Scores] = {}
    for name, mine in challenger.items():
        other = None if champion is None else champion.get(name)
        low = None
        if name == metric and confidence is not None and other is not None:
            low = _gain_low(name, mine, other, smaller_is_better, confidence, seed)
        found[name] = Scores(
            _finite(mine.mean),
            None if other is None else _finite(other.mean),
            len(mine.examples or ()),
            low,
        )
    return ScoreComparison(champion is not None, found)


def _gain_low(
    name: str, mine: Score, other: Score, smaller: bool, confidence: float, seed: int
) -> float | None:
    if mine.examples is None or other.examples is None:
        return None
    if len(mine.examples) != len(other.examples):
        raise ValueError(
            f"{name}: the challenger has {len(mine.examples)} scores and the champion {len(other.examples)}: "
            "both must be scored on the same examples, in the same order"
        )
    sign = -1 if smaller else 1
    gains = [sign * (a - b) for a, b in zip(mine.examples, other.examples, strict=True)]
    if not all(map(math.isfinite, gains)):
        return None
    return lower_bound(gains, confidence, seed)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
