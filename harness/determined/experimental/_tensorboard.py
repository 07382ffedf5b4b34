"""Copying an experiment's TensorBoard files from checkpoint storage."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from determined import errors


def fetch(storage_config: Mapping[str, Any], prefix: str, target: Path) -> list[Path]:
    """Copies what is stored below ``prefix`` to ``target``; the files' paths there.

    Files of a running trial are as of its last upload; those that are there already in the same size
    are not copied again. Raises errors.NoDirectStorageAccess.
    """
    from determined import storage

    try:
        manager = storage.build(dict(storage_config))
    except errors.StorageError as error:
        raise errors.NoDirectStorageAccess(str(error)) from error
    root = getattr(manager, "root", None)
    if not isinstance(root, Path):
        raise errors.NoDirectStorageAccess(
            f"TensorBoard files in {storage_config.get('type')} cannot be downloaded yet: copy "
            f"{prefix}/ with the storage's own tool"
        )
    if not root.is_dir():
        raise errors.NoDirectStorageAccess(
            f"the TensorBoard files are in {root / prefix}, which is not there on this machine"
        )
    copied = []
    for source in sorted((root / prefix).rglob("*")):
        # Hidden: a file that is being replaced.
        if not source.is_file() or source.name.startswith("."):
            continue
        copy = target / source.relative_to(root / prefix)
        if not copy.is_file() or copy.stat().st_size != source.stat().st_size:
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, copy)
        copied.append(copy)
    return copied
