"""Paths to values in a configuration: their type, their text form, reading and writing it."""

import re

#: The path to a value: mapping keys (text) and list positions (numbers, from 0).
Path = tuple[str | int, ...]

_STEP = re.compile(r"\[(\d+)\]|([^.\[\]]+)")


def render(path: Path) -> str:
    """The text form of a path: ``bind_mounts[0].host_path``."""
    text = ""
    for step in path:
        if isinstance(step, int):
            text += f"[{step}]"
        else:
            text += f".{step}" if text else step
    return text


def parse(text: str) -> Path:
    """Reads the text form of :func:`render`. A path with dots or brackets in a key must be a tuple."""
    return tuple(int(index) if index else key for index, key in _STEP.findall(text))
