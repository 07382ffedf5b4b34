"""Checkpoints on a file system that every agent mounts at the same place."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from determined import errors
from determined.storage.directory import DirectoryStorageManager, _absolute


class SharedFSStorageManager(DirectoryStorageManager):
    """``host_path``, or ``storage_path`` within it.

    If the task runs in a container, the agent mounts ``host_path`` at ``container_path`` (the
    argument; the configuration's legacy field of that name is ignored).
    """

    @classmethod
    def from_config(
        cls, config: dict[str, Any], container_path: str | None = None
    ) -> SharedFSStorageManager:
        """``{"type": "shared_fs", "host_path": …, "storage_path": …}``; raises StorageError."""
        host_path = _absolute(config, "host_path")
        mounted = host_path if container_path is None else Path(container_path)
        storage_path = config.get("storage_path")
        if not storage_path:
            return cls(mounted)
        # normpath, not resolve: the path need not exist here.
        full = Path(os.path.normpath(host_path / storage_path))
        normal = Path(os.path.normpath(host_path))
        if not full.is_relative_to(normal):
            raise errors.StorageError(
                f"checkpoint_storage.storage_path {storage_path!r} must be relative to host_path "
                f"{host_path} or a directory within it"
            )
        return cls(mounted / full.relative_to(normal))
