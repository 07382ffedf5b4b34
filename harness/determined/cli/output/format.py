"""The text forms of states, times, sizes and numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any


def state(value: str | None) -> str:
    """``STATE_RUNNING`` → ``RUNNING``."""
    return (value or "").removeprefix("STATE_")


def time(value: str | None) -> str:
    """An ISO 8601 time to the second, in UTC, as upstream prints it."""
    if not value:
        return ""
    return datetime.fromisoformat(value).astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S%z")


def percent(value: float | None) -> str:
    """0.5 → ``50.00%``."""
    return "" if value is None else f"{value * 100:.2f}%"


def duration(seconds: float) -> str:
    """``4.2s``, ``3m20s``, ``2h05m``."""
    if seconds < 60:
        return f"{seconds:.1f}s"
    minutes, rest = divmod(int(seconds), 60)
    if minutes < 60:
        return f"{minutes}m{rest:02d}s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02d}m"


def size(count: int | str | None) -> str:
    """A number of bytes, in the largest unit of which there is at least one."""
    if count is None:
        return ""
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def number(value: Any) -> str:
    """A metric's value with at most five digits."""
    return f"{value:.5g}" if isinstance(value, float) else str(value)


def pairs(values: Mapping[str, Any]) -> str:
    """``lr=0.1 hidden=64``; nested names are joined with dots."""
    return " ".join(f"{name}={number(value)}" for name, value in _flat(values))


def _flat(values: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for name, value in values.items():
        if isinstance(value, Mapping):
            found += _flat(value, f"{prefix}{name}.")
        else:
            found.append((f"{prefix}{name}", value))
    return found


def field(key: str, how: Callable[[Any], str]) -> Callable[[Mapping[str, Any]], str]:
    """A column's source: the record's value of ``key``, formatted by ``how``."""
    return lambda record: how(record.get(key))
