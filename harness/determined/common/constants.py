"""Numbers and names that published scripts import."""

from __future__ import annotations

from determined.common.context import BUILT_IN_IGNORES
from determined.constants import SHARED_FS_CONTAINER_PATH

DEFAULT_DETERMINED_USER = "determined"
DEFAULT_DETERMINED_PASSWORD = ""  # Determined's; the clusters of this release choose a random one
DEFAULT_CHECKPOINT_PATH = "checkpoints"
DEFAULT_DETIGNORE = list(BUILT_IN_IGNORES)

__all__ = [
    "DEFAULT_CHECKPOINT_PATH",
    "DEFAULT_DETERMINED_PASSWORD",
    "DEFAULT_DETERMINED_USER",
    "DEFAULT_DETIGNORE",
    "SHARED_FS_CONTAINER_PATH",
]
