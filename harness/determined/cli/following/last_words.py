"""The end of a failed trial's logs, cut so that it contains the error."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from determined.cli.printing import cut, without_colours
from determined.common.printable import counted
from determined.common.tracebacks import BEGIN, without_ranks

ASKED = 200
"""How many log entries to fetch. A traceback that begins further back is cut."""

_USUAL = 20
_HEAD, _TAIL = 12, 18
_WIDTH = 300
_CRASH = "Fatal Python error"
_CONNECTION = re.compile(
    r"\W{0,400}(The above exception was|During handling of the above exception)"
)
# What is inside of an exception group.
_GROUPED = re.compile(r"\s+[|+]")


def last_words(entries: Sequence[Mapping[str, Any]]) -> list[str]:
    """Lines for a terminal, oldest first: the last 20, or more if the last traceback begins earlier.

    If there are too many lines, those in the middle are left out. Long lines are cut.
    """
    texts = [without_ranks(without_colours(str(entry.get("log") or "")))[1] for entry in entries]
    start = min(_traceback(texts), max(0, len(texts) - _USUAL))
    shown = [
        cut(without_colours(str(entry["message"])).rstrip(), _WIDTH) for entry in entries[start:]
    ]
    left_out = len(shown) - _HEAD - _TAIL
    if left_out <= 0:
        return shown
    return [*shown[:_HEAD], f"({counted(left_out, 'line')} left out)", *shown[-_TAIL:]]


def _traceback(texts: Sequence[str]) -> int:
    """The index where the last traceback begins, or the first one of a chain of tracebacks.

    Returns ``len(texts)`` if there is none.
    """
    found = len(texts)
    for index in reversed(range(len(texts))):
        if texts[index].startswith(_CRASH) or BEGIN.match(texts[index]):
            if found < len(texts) and not _connected(texts[index : found + 1]):
                break
            found = index
    return found


def _connected(texts: Sequence[str]) -> bool:
    """True if the traceback that begins with the last line belongs to the traceback of the first line."""
    return all(map(_GROUPED.match, texts)) or any(map(_CONNECTION.match, texts))
