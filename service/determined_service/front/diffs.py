"""Differences of two texts, line by line, for pages."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from dataclasses import dataclass

from determined_service.base.aside import aside

MOST_LINES = 2000
"""Of each text: the time that a difference takes may grow with the square."""
MOST_CHARACTERS = 200_000


@dataclass(frozen=True, slots=True)
class Diff:
    """``lines``: kind (``add``, ``del``, ``at``, empty: in both) and text, without any if both are equal.
    ``too_long``: they were not compared."""

    lines: list[tuple[str, str]]
    too_long: bool = False


async def diff(before: str, after: str, names: tuple[str, str]) -> Diff:
    """The difference in the unified form. ``names``: of the two texts, in its first lines."""
    size = len(before) + len(after)
    longest = max(before.count("\n"), after.count("\n"))
    if longest > MOST_LINES or max(len(before), len(after)) > MOST_CHARACTERS:
        return Diff([], too_long=before != after)
    return Diff(await aside(size, _lines, before, after, names))


def _lines(before: str, after: str, names: tuple[str, str]) -> list[tuple[str, str]]:
    found = difflib.unified_diff(before.splitlines(), after.splitlines(), *names, lineterm="")
    return list(_kinds(found))


def _kinds(lines: Iterator[str]) -> Iterator[tuple[str, str]]:
    for number, line in enumerate(lines):
        if number < 2 or line.startswith("@@"):
            yield "at", line
        else:
            yield {"+": "add", "-": "del"}.get(line[:1], ""), line
