"""Ends a launch layer after a user's mistake."""

from __future__ import annotations

import sys
from typing import NoReturn


def fail(message: str, code: int = 1) -> NoReturn:
    """One line for the user, and the exit code."""
    print(f"error: {message}", file=sys.stderr)
    raise SystemExit(code)
