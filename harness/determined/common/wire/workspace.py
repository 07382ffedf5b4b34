"""The one workspace, and its one project: both have this id and this name."""

from __future__ import annotations

ID, NAME = 1, "Uncategorized"
