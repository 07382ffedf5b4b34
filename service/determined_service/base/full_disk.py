"""Checks if a full disk may be the reason why the database does not answer."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

from determined.common.wire import disk

PATIENCE_S = 1.0
"""A network's disk that is away may never answer."""


def _free(folder: Path) -> tuple[Path, int]:
    return folder.absolute(), shutil.disk_usage(folder).free


async def hint(folder: Path) -> str:
    """The rest of a sentence about the disk of ``folder``, where it is full; else empty."""
    try:
        async with asyncio.timeout(PATIENCE_S):
            path, free = await asyncio.to_thread(_free, folder)
    except (TimeoutError, OSError):
        return ""
    if free >= disk.FULL_BYTES:
        return ""
    return (
        f": the disk at {path} is full ({disk.words(free)} free); free some space there, then"
        " run `det deploy local cluster-up` if it is a local cluster"
    )
