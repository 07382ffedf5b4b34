"""The type of a metric value, and whether it counts among the finite numbers."""

from __future__ import annotations

from typing import Any

NON_FINITE = frozenset({"NaN", "Infinity", "-Infinity"})
# The profiler's groups count time, not steps.
PROFILER_GROUPS = frozenset({"gpu", "cpu", "memory", "disk", "network"})
"""The strings that stand for floats that JSON cannot hold."""


def replace_nul(value: Any) -> Any:
    """``value`` with NUL characters, which jsonb cannot hold, replaced by U+FFFD at any depth."""
    if isinstance(value, str):
        return value.replace("\0", "\ufffd")
    if isinstance(value, dict):
        return {replace_nul(key): replace_nul(item) for key, item in value.items()}
    if isinstance(value, list):
        return [replace_nul(item) for item in value]
    return value


def type_name(value: Any) -> str:
    """``number``, ``boolean``, ``string``, ``object``, ``array`` or ``null``."""
    kind = type(value)
    if kind is float or kind is int:
        return "number"
    if kind is str:
        return "number" if value in NON_FINITE else "string"
    if kind is bool:
        return "boolean"
    if value is None:
        return "null"
    return "object" if kind is dict else "array"


def finite(value: Any) -> float | None:
    """``value`` as a float if it is a finite number, else None."""
    kind = type(value)
    if kind is float:
        # orjson reads neither NaN nor infinities, so a float that came as JSON is finite.
        return float(value)
    if kind is int:
        return float(value)
    return None
