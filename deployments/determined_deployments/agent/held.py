"""A job that the agent holds: started or adopted, and waited for."""

from __future__ import annotations

import asyncio
import signal

from determined_deployments.agent.launchers.base import Exit, Launcher, Running


class Held:
    """``ended`` is the task that waits for the job's end."""

    def __init__(self, launcher: Launcher, running: Running) -> None:
        self.running = running
        self._launcher = launcher
        self.ended: asyncio.Task[Exit] = asyncio.create_task(launcher.wait(running))

    @property
    def identifier(self) -> str:
        return self.running.identifier

    async def signal(self, number: signal.Signals) -> None:
        """Does nothing when the job has ended."""
        if not self.ended.done():
            await self._launcher.signal(self.running, number)

    async def clean_up(self) -> None:
        """To be called after the service or Prefect has learnt of the end."""
        await self._launcher.clean_up(self.running)

    async def end(self, timeout: float, at_once: bool = False) -> None:
        """SIGTERM to the job, after ``timeout`` seconds SIGKILL to it and to everything that it started."""
        for number in (signal.SIGKILL,) if at_once else (signal.SIGTERM, signal.SIGKILL):
            if not self.ended.done():
                await self.signal(number)
                await asyncio.wait([self.ended], timeout=timeout)
