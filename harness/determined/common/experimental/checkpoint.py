"""The SDK's checkpoints, at the place of early releases."""

from __future__ import annotations

from determined.experimental.client import (
    Checkpoint,
    CheckpointOrderBy,
    CheckpointSortBy,
    CheckpointState,
    DownloadMode,
)

__all__ = [
    "Checkpoint",
    "CheckpointOrderBy",
    "CheckpointSortBy",
    "CheckpointState",
    "DownloadMode",
]
