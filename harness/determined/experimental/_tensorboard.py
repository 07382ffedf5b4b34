"""Copying an experiment's TensorBoard files from checkpoint storage."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from determined import errors


def fetch(storage_config: Mapping[str, Any], prefix: str, target: Path) -> None:
    """Copies the files below ``prefix`` in the storage to ``target``.

    A running trial's files are those of its last upload. A file that exists already in the same size is
    not copied again. Raises errors.NoDirectStorageAccess.
    """
    from determined import storage

    try:
        storage.build(dict(storage_config)).fetch(prefix, target)
    except errors.StorageError as error:
        raise errors.NoDirectStorageAccess(
            f"the TensorBoard files cannot be read on this machine: {error}"
        ) from error
