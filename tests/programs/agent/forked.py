"""Runs in forks of the fork server."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def write(order: dict[str, Any]) -> int:
    """Evaluates ``code`` and writes the value to ``path``."""
    Path(order["path"]).write_text(str(eval(order["code"])))
    return 0
