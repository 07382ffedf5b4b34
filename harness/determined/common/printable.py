"""Texts that other people wrote, so that they do not control the terminal of whoever reads them.

Control characters are shown as text: ``\\x1b``, ``\\u202e``.
"""

from __future__ import annotations

import re

# C0 without tab and line feed, DEL, C1, the marks and overrides of writing direction, Unicode's line
# separators, and halves of surrogate pairs, which cannot be written at all.
_CONTROL = "\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufff9-\ufffb"
_UNSAFE = re.compile(f"[{_CONTROL}]")
# Colours and bold type (SGR), which training scripts print on purpose, or another control character.
_SGR = "\x1b\\[[0-9;:]{0,60}m"
_UNSAFE_IN_LOGS = re.compile(f"({_SGR})|[{_CONTROL}]")
_ONLY_SGR = re.compile(_SGR)
_RESETS = ("\x1b[0m", "\x1b[m")

FORMULAS = ("=", "+", "-", "@", "\uff1d", "\uff0b", "\uff0d", "\uff20", "\t", "\r")
"""What spreadsheets take for the begin of a formula; the second four are wide ones, of Japanese keyboards."""


def _as_text(found: re.Match[str]) -> str:
    code = ord(found.group())
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def counted(number: int, noun: str, plural: str | None = None) -> str:
    """``1 slot``, ``2 slots``; ``plural`` where an s does not make it."""
    return f"{number} {noun if number == 1 else plural or f'{noun}s'}"


def plain(text: str) -> str:
    """``text`` with its control characters as text; line feeds and tabs stay."""
    # isprintable() is a scan in C, and almost every text passes it.
    return text if text.isprintable() else _UNSAFE.sub(_as_text, text)


def one_line(text: str, *, breaks: tuple[str, str] = (" ", " ")) -> str:
    """:func:`plain`, with ``breaks`` for each line feed and tab."""
    if text.isprintable():
        return text
    return plain(text).replace("\n", breaks[0]).replace("\t", breaks[1])


def log_text(text: str) -> str:
    """A log line: like :func:`plain`, but colours stay, and end with the line."""
    if text.isprintable():
        return text
    last = ""

    def shown(found: re.Match[str]) -> str:
        nonlocal last
        if found.group(1):
            last = found.group(1)
            return last
        return _as_text(found)

    safe = _UNSAFE_IN_LOGS.sub(shown, text)
    return safe if not last or last in _RESETS else f"{safe}{_RESETS[0]}"


def without_colours(text: str) -> str:
    """``text`` without the sequences for colours and bold type."""
    return _ONLY_SGR.sub("", text)


def json_text(text: str) -> str:
    """JSON with escapes for the control characters: the same document, safe to show."""
    if text.isprintable():
        return text
    return _UNSAFE.sub(lambda found: f"\\u{ord(found.group()):04x}", text)


def cut(text: str, width: int) -> str:
    """``text``, or its first ``width`` characters and its length."""
    return text if len(text) <= width else f"{text[:width]}… ({len(text)} characters)"
