"""Programs of this machine, each in a separate empty directory."""

from __future__ import annotations

import asyncio
import os
import tempfile

from determined_deployments.agent.launchers.base import JobCommand
from determined_deployments.agent.launchers.processes import Child


async def run_command(command: JobCommand) -> Child:
    """Starts the program as the leader of a session. Raises OSError.

    The directory is empty because Prefect's own command begins with a copy of the one that it runs in.
    """
    folder = tempfile.TemporaryDirectory(prefix="determined-flow-run-", ignore_cleanup_errors=True)
    try:
        process = await asyncio.create_subprocess_exec(
            *command.argv,
            env={**os.environ, **command.env},
            cwd=folder.name,
            start_new_session=True,
        )
    except OSError:
        folder.cleanup()
        raise
    child = Child(process.pid)

    async def wait() -> None:
        code = await process.wait()
        folder.cleanup()
        # As a wait status, which is what a fork server reports.
        child.set_ended(-code if code < 0 else code << 8)

    child.waiter = asyncio.create_task(wait())
    return child
