"""Copying a checkpoint's files, straight from its storage or through the service."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from determined import errors
from determined.common.api.session import Session
from determined.expconf.problems import MASK
from determined.experimental._local_files import (
    is_there,
    move_into,
    wrong_contents,
    wrong_sizes,
)
from determined.experimental._proxied import fetch_through_service

logger = logging.getLogger("determined.download")


def fetch_somehow(
    session: Session,
    uuid: str,
    storage_config: Mapping[str, Any],
    resources: Mapping[str, int],
    checksums: Mapping[str, str],
    target: Path,
) -> None:
    """As :func:`fetch`, or through the service where the storage cannot be reached from here.

    Raises errors.MultipleDownloadsFailed with both reasons; errors.CheckpointCorrupted at once, because the
    service would read the same files.
    """
    try:
        fetch(uuid, storage_config, resources, checksums, target)
    except errors.CheckpointCorrupted:
        raise
    except (errors.NoDirectStorageAccess, errors.StorageError) as direct:
        logger.info("%s; trying through the service", direct)
        try:
            fetch_through_service(session, uuid, target)
        except errors.ProxiedDownloadFailed as proxied:
            raise errors.MultipleDownloadsFailed(
                f"checkpoint {uuid} was not downloaded. From its storage: {direct}. Through the service: "
                f"{proxied}"
            ) from proxied


def fetch(
    uuid: str,
    storage_config: Mapping[str, Any],
    resources: Mapping[str, int],
    checksums: Mapping[str, str],
    target: Path,
) -> None:
    """Copies checkpoint ``uuid`` to ``target``, completely or not at all.

    ``resources`` (path to bytes) and ``checksums`` (path to ``sha256:<hex>``) are those that were
    reported when the checkpoint was written. Other files in ``target`` are left alone.

    Raises the same as :meth:`determined.experimental.Checkpoint.download`.
    """
    if resources and is_there(target, resources, checksums):
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    # Beside the target, so that moving it there is a rename.
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}-") as staging:
        copied = Path(staging)
        _copy(uuid, storage_config, resources, copied)
        wrong = wrong_sizes(copied, resources)
        if wrong:
            raise errors.CheckpointCorrupted(
                f"checkpoint {uuid}: {wrong[0]} is missing or has another size than when it was"
                " written"
            )
        changed = wrong_contents(copied, checksums)
        if changed:
            raise errors.CheckpointCorrupted(
                f"checkpoint {uuid}: {changed[0]} is not what was written (its checksum differs)"
            )
        move_into(copied, target)


def _copy(
    uuid: str, storage_config: Mapping[str, Any], resources: Mapping[str, int], target: Path
) -> None:
    from determined import storage

    if not storage_config:
        raise errors.NoDirectStorageAccess(f"checkpoint {uuid}: its storage is not known")
    known = storage_config.get("type")
    try:
        manager = storage.build(_with_own_keys(uuid, dict(storage_config)))
    except errors.StorageError as error:
        raise errors.NoDirectStorageAccess(str(error)) from error
    root = getattr(manager, "root", None)
    if isinstance(root, Path) and not root.is_dir():
        raise errors.NoDirectStorageAccess(
            f"checkpoint {uuid} is in {root} ({known}), which does not exist on this machine"
        )
    selector = None if not resources else resources.__contains__
    manager.download(uuid, target, selector)


def _with_own_keys(uuid: str, storage_config: dict[str, Any]) -> dict[str, Any]:
    """The section to open the storage with: another user's keys are masked, so S3's are this machine's."""
    hidden = sorted(key for key, value in storage_config.items() if value == MASK)
    if not hidden:
        return storage_config
    if storage_config.get("type") != "s3":
        fields = ", ".join(f"checkpoint_storage.{key}" for key in hidden)
        raise errors.NoDirectStorageAccess(
            f"checkpoint {uuid} is another user's, and only that user and administrators see the keys of "
            f"its storage ({fields}): ask one of them to download it"
        )
    return {key: value for key, value in storage_config.items() if value != MASK}
