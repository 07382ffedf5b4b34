"""Places inside a configuration: how they are held, written and read."""

import re

#: A place in a configuration: mapping keys (text) and list positions (numbers, from 0).
Path = tuple[str | int, ...]

_STEP = re.compile(r"\[(\d+)\]|([^.\[\]]+)")


def render(path: Path) -> str:
    """Write a path as users read it: ``bind_mounts[0].host_path``."""
    text = ""
    for step in path:
        if isinstance(step, int):
            text += f"[{step}]"
        else:
            text += f".{step}" if text else step
    return text


def parse(text: str) -> Path:
    """Read what :func:`render` writes. Keys that hold dots or brackets need a tuple instead."""
    return tuple(int(index) if index else key for index, key in _STEP.findall(text))
