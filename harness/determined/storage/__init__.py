"""Storages of checkpoints: one small interface, one module per ``checkpoint_storage.type``."""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

from determined import errors
from determined.constants import SHARED_FS_CONTAINER_PATH
from determined.storage.base import Manifest, Selector, Staging, StorageManager

__all__ = ["Manifest", "Selector", "Staging", "StorageManager", "build", "from_string"]

# Imported when a configuration asks for it: a storage may need a client library.
_BUILT_IN = {
    "azure": "determined.storage.azure:AzureStorageManager",
    "directory": "determined.storage.directory:DirectoryStorageManager",
    "gcs": "determined.storage.gcs:GCSStorageManager",
    "s3": "determined.storage.s3:S3StorageManager",
    "shared_fs": "determined.storage.shared_fs:SharedFSStorageManager",
}

_OBJECT_STORAGES = ("azure", "gcs", "s3")


def build(config: dict[str, Any], container_path: str | None = None) -> StorageManager:
    """The storage manager for a ``checkpoint_storage`` section.

    ``container_path`` is the path of a shared_fs' host_path inside a container; by default the path at
    which agents mount it, if something is mounted there. Raises errors.StorageError for a type that is not
    supported or a section that is not valid.
    """
    kind = config.get("type")
    if kind not in _BUILT_IN:
        raise errors.StorageError(
            f"checkpoint_storage.type {kind!r} is not supported in this release; "
            f"supported are {', '.join(sorted(_BUILT_IN))}"
        )
    if config.get("pack_small_files") and kind not in _OBJECT_STORAGES:
        raise errors.StorageError(
            f"checkpoint_storage.pack_small_files is for {', '.join(_OBJECT_STORAGES)}, not "
            f"for {kind}"
        )
    if container_path is None and os.path.ismount(SHARED_FS_CONTAINER_PATH):
        container_path = SHARED_FS_CONTAINER_PATH
    module, _, name = _BUILT_IN[kind].partition(":")
    manager: StorageManager = getattr(importlib.import_module(module), name).from_config(
        config, container_path
    )
    return manager


def from_string(shortcut: str, on_cluster: bool = True) -> dict[str, Any]:
    """The ``checkpoint_storage`` section for ``/path``, ``file:///path``, ``s3://…`` or ``gs://…``; off the
    cluster also for a path from the working directory."""
    url = urlparse(shortcut)
    scheme = url.scheme.lower()
    if not shortcut or url.params or url.query or url.fragment:
        raise ValueError(
            f"checkpoint storage {shortcut!r} is neither a path nor a URL of a storage; use "
            "an absolute path, file://, s3:// or gs://"
        )
    if scheme in ("", "file"):
        if on_cluster:
            return {"type": "shared_fs", "host_path": url.path}
        return {"type": "directory", "container_path": str(Path(url.path).expanduser().absolute())}
    if scheme in ("s3", "gs"):
        kind = {"s3": "s3", "gs": "gcs"}[scheme]
        return {"type": kind, "bucket": url.netloc, "prefix": url.path.lstrip("/")}
    raise ValueError(
        f"checkpoint storage {shortcut!r}: the scheme {scheme}:// is not known; use a path, "
        "file://, s3:// or gs://"
    )
