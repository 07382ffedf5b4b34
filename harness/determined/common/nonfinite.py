"""NaN and the infinities in JSON, which lacks them: they travel as texts."""

from __future__ import annotations

import math
from typing import Any

_FLOATS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def numbers(value: Any) -> Any:
    """``value`` with floats for the texts ``NaN``, ``Infinity`` and ``-Infinity``, at every level."""
    if isinstance(value, str):
        return _FLOATS.get(value, value)
    if isinstance(value, dict):
        return {name: numbers(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [numbers(inner) for inner in value]
    return value
