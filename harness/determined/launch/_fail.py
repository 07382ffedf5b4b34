"""Ends a launch layer after a user's mistake."""

from __future__ import annotations

import sys
from typing import NoReturn


def fail(message: str) -> NoReturn:
    """One line for the user, exit code 1."""
    print(f"error: {message}", file=sys.stderr)
    raise SystemExit(1)
