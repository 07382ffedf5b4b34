"""Markdown of what people and programs wrote: shown as it is, never read as markup."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from typing import Any
from urllib.parse import quote

import orjson

from determined.common.printable import one_line

MOST_CHARACTERS = 300
"""Of one text in a table."""
_MARKUP = re.compile(r"([\\`*_{}\[\]()<>#+\-.!|~&:/@=^$])")


def text(value: object, most: int = MOST_CHARACTERS) -> str:
    """``value`` in one line, without a link, a tag or emphasis."""
    return _MARKUP.sub(r"\\\1", cut(one_line(str(value)), most))


def cut(value: str, most: int) -> str:
    return value if len(value) <= most else f"{value[: most - 1]}…"


def address(url: str) -> str:
    """``url`` between the parentheses of a link."""
    return "".join(quote(one, safe="") if one in "()<> \\" else one for one in url)


def number(value: object) -> str:
    """A metric or hyperparameter; floats to six digits."""
    if isinstance(value, float):
        return f"{value:.6g}" if math.isfinite(value) else str(value)
    if isinstance(value, dict | list):
        return orjson.dumps(value).decode()
    return str(value)


def fenced(lines: Iterable[str]) -> str:
    """A block of code; its fence is longer than any in ``lines``."""
    body = "\n".join(lines)
    longest = max((len(found) for found in re.findall(r"`+", body)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}text\n{body}\n{fence}"


def table(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Cells are texts; ``header`` is ours."""
    lines = [f"| {' | '.join(header)} |", f"|{'---|' * len(header)}"]
    lines += [f"| {' | '.join(text(number(cell)) for cell in row)} |" for row in rows]
    return "\n".join(lines)


def facts(pairs: Iterable[tuple[str, str]]) -> str:
    """A table of two columns: ours, and markdown that is safe already."""
    return "\n".join(["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in pairs)])
