"""The end of a failed trial's logs, cut so that it contains the error."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from determined.cli.printing import cut, without_colours

ASKED = 200
"""How many log entries to fetch. A traceback that begins further back is cut."""

_USUAL = 20
_HEAD, _TAIL = 12, 18
_WIDTH = 300
_BEGINNINGS = ("Traceback (most recent call last)", "Fatal Python error")
_CONNECTIONS = ("The above exception was", "During handling of the above exception")


def last_words(entries: Sequence[Mapping[str, Any]]) -> list[str]:
    """Lines for a terminal, oldest first: the last 20, or more if the last traceback begins earlier.

    If there are too many lines, those in the middle are left out. Long lines are cut.
    """
    texts = [str(entry.get("log") or "") for entry in entries]
    start = min(_traceback(texts), max(0, len(texts) - _USUAL))
    shown = [
        cut(without_colours(str(entry["message"])).rstrip(), _WIDTH) for entry in entries[start:]
    ]
    left_out = len(shown) - _HEAD - _TAIL
    if left_out <= 0:
        return shown
    return [*shown[:_HEAD], f"({left_out} lines left out)", *shown[-_TAIL:]]


def _traceback(texts: Sequence[str]) -> int:
    """The index where the last traceback begins, or the first one of a chain of tracebacks.

    Returns ``len(texts)`` if there is none.
    """
    found = len(texts)
    for index in reversed(range(len(texts))):
        if texts[index].startswith(_BEGINNINGS):
            if found < len(texts) and not _connected(texts[index:found]):
                break
            found = index
    return found


def _connected(texts: Sequence[str]) -> bool:
    return any(text.startswith(_CONNECTIONS) for text in texts)
