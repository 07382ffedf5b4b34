"""The SDK's users, at the place of early releases."""

from __future__ import annotations

from determined.experimental.client import User

__all__ = [
    "User",
]
