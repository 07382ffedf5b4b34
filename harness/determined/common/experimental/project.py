"""The module in which early releases had this class."""

from __future__ import annotations

from determined.experimental._workspace import Project

__all__ = ["Project"]
