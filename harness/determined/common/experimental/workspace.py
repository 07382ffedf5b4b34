"""The module in which early releases had this class."""

from __future__ import annotations

from determined.experimental._workspace import Workspace

__all__ = ["Workspace"]
