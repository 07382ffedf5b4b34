"""Durations such as ``1h30m``, in a configuration."""

import re

#: As Determined's: numbers, each with a unit, one after the other.
DURATION_PATTERN = r"^([0-9]+(\.[0-9]+)?(ns|us|ms|s|m|h))+$"
_SECONDS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ns|us|ms|s|m|h)")


def seconds(duration: str) -> float:
    """``"1h30m"`` → 5400. Raises ValueError for an invalid duration."""
    if not re.fullmatch(DURATION_PATTERN, duration):
        raise ValueError(f"{duration!r} is not a duration such as '1h30m'")
    return sum(float(number) * _SECONDS[unit] for number, unit in _PART.findall(duration))
