"""The SDK's entrance, at the place of early releases."""

from __future__ import annotations

from determined.experimental.client import Determined

__all__ = [
    "Determined",
]
