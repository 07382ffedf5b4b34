"""Metrics as the engine sees them: ordered, never NaN, and writable as strict JSON."""

from __future__ import annotations

import math
import sys
from typing import Any

from determined_searchers.errors import SearcherError

WORST = sys.float_info.max
"""The metric that is ranked last, whichever direction is better: that of a trial that exited early,
reported NaN or nothing.

The largest finite double rather than infinity, so that a rung's list stays plain JSON numbers."""

_NAMES = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def rank_metric(metric: Any, smaller_is_better: bool) -> float:
    """``metric`` turned so that smaller is better; ``None`` and NaN become :data:`WORST`.

    Raises SearcherError for anything that is not a number.
    """
    if type(metric) is float and metric == metric:  # the usual case, in a hot path
        return metric if smaller_is_better else -metric
    if metric is None:
        return WORST
    if isinstance(metric, bool) or not isinstance(metric, (int, float)):
        raise SearcherError(
            f"the searcher's metric must be a number, but a trial reported {metric!r} "
            f"({type(metric).__name__})"
        )
    value = float(metric)
    if math.isnan(value):
        return WORST
    return value if smaller_is_better else -value


def encode_metric(value: Any) -> Any:
    """A metric for JSON: NaN and infinities, which JSON has no numbers for, become strings."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


def decode_metric(value: Any) -> Any:
    """The inverse of :func:`encode_metric`."""
    return _NAMES.get(value, value) if isinstance(value, str) else value
