"""The end of a failed trial's logs, cut so that what went wrong is in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

ASKED = 200
"""Entries to look through: tracebacks that begin further back are cut."""

_USUAL = 20
_HEAD, _TAIL = 12, 18
_WIDTH = 300
_BEGINNINGS = ("Traceback (most recent call last)", "Fatal Python error")
_CONNECTIONS = ("The above exception was", "During handling of the above exception")


def last_words(entries: Sequence[Mapping[str, Any]]) -> list[str]:
    """Lines for a terminal, oldest first: the last twenty, or all since the traceback that they end
    begins; the middle of long ones is left out, and so is the rest of long lines."""
    texts = [str(entry.get("log") or "") for entry in entries]
    start = min(_traceback(texts), max(0, len(texts) - _USUAL))
    shown = [_shorter(str(entry["message"]).rstrip()) for entry in entries[start:]]
    left_out = len(shown) - _HEAD - _TAIL
    if left_out <= 0:
        return shown
    return [*shown[:_HEAD], f"({left_out} lines left out)", *shown[-_TAIL:]]


def _traceback(texts: Sequence[str]) -> int:
    """Where the last traceback begins, with those that led to it; ``len(texts)`` without one."""
    found = len(texts)
    for index in reversed(range(len(texts))):
        if texts[index].startswith(_BEGINNINGS):
            if found < len(texts) and not _connected(texts[index:found]):
                break
            found = index
    return found


def _connected(texts: Sequence[str]) -> bool:
    return any(text.startswith(_CONNECTIONS) for text in texts)


def _shorter(line: str) -> str:
    if len(line) <= _WIDTH:
        return line
    return f"{line[:_WIDTH]}… ({len(line)} characters)"
