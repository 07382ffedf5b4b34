"""Copying an experiment's TensorBoard files from checkpoint storage."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from determined import errors


def fetch(storage_config: Mapping[str, Any], prefix: str, target: Path) -> None:
    """Copies what is stored below ``prefix`` to ``target``.

    Files of a running trial are as of its last upload; those that are there already in the same size
    are not copied again. Raises errors.NoDirectStorageAccess.
    """
    from determined import storage

    try:
        storage.build(dict(storage_config)).fetch(prefix, target)
    except errors.StorageError as error:
        raise errors.NoDirectStorageAccess(
            f"the TensorBoard files are not to be had on this machine: {error}"
        ) from error
