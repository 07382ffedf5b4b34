"""Why the service does not store a text; its packages raise what they find here."""

from __future__ import annotations

from typing import Any

SHOWN = 80


def show(value: Any) -> str:
    """``value`` as in a message: one short line; lists and objects without their contents."""
    if isinstance(value, dict):
        return f"an object of {len(value)}"
    if isinstance(value, list | tuple):
        return f"a list of {len(value)}"
    if isinstance(value, int) and not -(10**30) < value < 10**30:
        return f"a number of {value.bit_length()} bits"
    text = repr(value[: SHOWN + 1] if isinstance(value, str) else value)
    text = text.encode("utf-8", "backslashreplace").decode()
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"


def text_problem(text: str) -> str | None:
    """Why the database cannot hold ``text``, or None."""
    if "\0" in text:
        return "holds the character NUL, which cannot be stored"
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            return "holds half of a surrogate pair, which is not a character"
    return None


def refusal(text: Any, path: str, most: int) -> str | None:
    """Why ``text``, which stands at ``path``, is not text of at most ``most`` characters, or None."""
    if not isinstance(text, str):
        return f"{path}: expected text, found {show(text)}"
    if len(text) > most:
        return f"{path}: {len(text)} characters found, at most {most} are allowed"
    problem = text_problem(text)
    return f"{path}: {problem}: {show(text)}" if problem else None
