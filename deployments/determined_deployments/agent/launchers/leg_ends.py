"""Reads the end of a leg's supervisor, for launchers whose jobs are processes of this machine."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

from determined_deployments.agent.launchers.base import Exit
from determined_tasks.context_dir import ALLOCATIONS
from determined_tasks.supervision import LegRecord, lock


def records(work_dir: Path) -> list[LegRecord]:
    """The supervisors that earlier agents left, alive or dead; removes directories without one."""
    root = work_dir / ALLOCATIONS
    found = []
    for path in root.iterdir() if root.is_dir() else ():
        record = LegRecord.read(path)
        if record is not None:
            found.append(record)
            continue
        with lock(path) as free:
            if free and not (path / "workdir").exists():  # else it is kept for debugging
                shutil.rmtree(path, ignore_errors=True)
    return found


async def read(work_dir: Path, allocation_id: str, pid: int, status: int | None) -> Exit:
    """The leg's Exit after its supervisor ``pid`` ended with the wait status; None: not known.

    Kills the processes that a killed supervisor left running.
    """
    record = LegRecord.read(work_dir / ALLOCATIONS / allocation_id)
    tidied_up = status is None and record is None
    # This one came second and left the allocation alone.
    came_second = record is not None and record.supervisor.pid != pid
    if status == 0 or tidied_up or came_second:
        return Exit(code=0)
    if record is not None:
        await asyncio.to_thread(record.clear_up)
    return Exit.of_status(status)


def remove(work_dir: Path, allocation_id: str) -> None:
    """Deletes what a lost leg left on disk."""
    shutil.rmtree(work_dir / ALLOCATIONS / allocation_id, ignore_errors=True)
