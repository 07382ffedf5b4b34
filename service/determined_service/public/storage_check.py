"""The cluster's default checkpoint storage, tried: a file is written, read and deleted."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import shutil
import time
from pathlib import Path
from typing import Any

import orjson

from determined.common.wire import storage

TIMEOUT_S = 10.0
KEPT_S = 60.0
"""Seconds that an answer about a cloud's storage is kept: every user may ask for it."""


def try_folder(section: dict[str, Any]) -> dict[str, Any]:
    """The result for a storage that is a folder; it is tried if this machine has it. Blocks."""
    kind = section.get("type")
    root = section.get("host_path") if kind == "shared_fs" else section.get("container_path")
    found = {"type": kind, "path": root, "tried": False, "problem": None, "disk": None}
    if not root or (kind == "directory" and not Path(root).is_dir()):
        return found
    folder = Path(root) / (section.get("storage_path") or "")
    problem = _probe(folder)
    disk = disk_of(folder) if problem is None else None
    return {**found, "path": str(folder), "tried": True, "problem": problem, "disk": disk}


def disk_of(folder: Path) -> dict[str, Any]:
    """``path``, ``freeBytes`` and ``totalBytes`` of the disk of a folder. Raises OSError."""
    usage = shutil.disk_usage(folder)
    return {"path": str(folder.absolute()), "freeBytes": usage.free, "totalBytes": usage.total}


def _probe(folder: Path) -> str | None:
    """Write, read and delete a small file. Returns the error, if any."""
    probe = folder / f".probe-{secrets.token_hex(8)}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        try:
            probe.write_bytes(b"determined")
            found = probe.read_bytes()
        finally:
            probe.unlink(missing_ok=True)
    except OSError as error:
        return f"{error.filename or folder}: {error.strerror}"
    return None if found == b"determined" else f"{probe}: the test file cannot be read back"


class CloudChecks:
    """Tries storages of clouds, at most one at a time and each once in :data:`KEPT_S`. One per process."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._known: tuple[dict[str, Any], float, str | None] | None = None

    async def look(self, section: dict[str, Any]) -> dict[str, Any]:
        """As of :func:`try_folder`, from the machine and with the environment of this process."""
        async with self._lock:
            known = self._known
            if known is None or known[0] != section or time.monotonic() - known[1] > KEPT_S:
                known = self._known = (section, time.monotonic(), await _try(section))
        path = section.get("bucket") or section.get("container")
        found = {"type": section.get("type"), "path": path, "tried": True, "disk": None}
        return {**found, "problem": known[2]}


async def _try(section: dict[str, Any]) -> str | None:
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        *storage.CHECK, stdin=pipe, stdout=pipe, stderr=asyncio.subprocess.DEVNULL
    )
    try:
        async with asyncio.timeout(TIMEOUT_S):
            said, _ = await process.communicate(orjson.dumps(section))
    except TimeoutError:
        return storage.late(TIMEOUT_S)
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    if process.returncode == 0:
        return None
    return said.decode(errors="replace").strip() or f"exit code {process.returncode}"
