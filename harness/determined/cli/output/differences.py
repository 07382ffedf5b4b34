"""The differences between two documents, name by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from determined.cli.output.render import Column, Record


def flat(document: Mapping[str, Any] | None) -> dict[str, Any]:
    """``{"a": {"b": 1}}`` → ``{"a.b": 1}``. Lists and empty objects stay whole."""
    found: dict[str, Any] = {}
    for name, value in (document or {}).items():
        if isinstance(value, Mapping) and value:
            found |= {f"{name}.{inner}": item for inner, item in flat(value).items()}
        else:
            found[str(name)] = value
    return found


def differences(
    first: Mapping[str, Any] | None, second: Mapping[str, Any] | None, *, ids: bool = False
) -> list[dict[str, Any]]:
    """A record for each name whose values differ, by name: ``name``, ``first``, ``second`` (a missing one is
    left out) and, for two numbers that are no ``ids``, ``change``."""
    one, other = flat(first), flat(second)
    found = []
    for name in sorted(one.keys() | other.keys()):
        if name in one and name in other and one[name] == other[name]:
            continue
        record: dict[str, Any] = {"name": name}
        if name in one:
            record["first"] = one[name]
        if name in other:
            record["second"] = other[name]
        if not ids and _is_number(one.get(name)) and _is_number(other.get(name)):
            record["change"] = other[name] - one[name]
        found.append(record)
    return found


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def columns(first: str, second: str) -> tuple[Column, ...]:
    """For such records; the titles of the two documents."""

    def signed(record: Record) -> str | None:
        change = record.get("change")
        return None if change is None else f"{change:+.6g}"

    return (
        Column("Name", "name"),
        Column(first, "first"),
        Column(second, "second"),
        Column("Change", signed),
    )
