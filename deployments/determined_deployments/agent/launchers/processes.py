"""Processes the agent did not start itself, and so cannot wait for in the usual way."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal

from determined_tasks.supervision import ProcessName

POLL_SECONDS = 0.5


class Child:
    """A process forked for the agent. ``ended`` gives its wait status, or None when nobody knows."""

    def __init__(self, pid: int, name: ProcessName | None = None) -> None:
        self.pid = pid
        self.name = name or ProcessName.of(pid)
        self.ended: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()
        self.waiter: asyncio.Task[None] | None = None
        """The task that sets ``ended``, where nobody else holds on to it."""

    def set_ended(self, status: int | None) -> None:
        if not self.ended.done():
            self.ended.set_result(status)

    @property
    def is_running(self) -> bool:
        return not self.ended.done()

    def send_signal(self, number: signal.Signals) -> None:
        """Does nothing when the process is gone, or its id is another's by now. SIGKILL goes to the group."""
        if not (self.is_running and self.name is not None and self.name.is_alive()):
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if number != signal.SIGKILL:
                os.kill(self.pid, number)
                return
            try:
                os.killpg(self.pid, number)
            except ProcessLookupError:  # not yet the leader of its group
                os.kill(self.pid, number)


async def watch(child: Child) -> None:
    """Waits for a process that is not a child of this one or of a zygote (any more)."""
    if child.name is None or not child.name.is_alive():
        child.set_ended(None)
        return
    with contextlib.suppress(OSError, AttributeError):
        descriptor = os.pidfd_open(child.pid)
        try:
            # The id may have passed to another process before it was opened.
            if child.name.is_alive():
                await _readable(descriptor)
        finally:
            os.close(descriptor)
    while child.name.is_alive():  # noqa: ASYNC110
        await asyncio.sleep(POLL_SECONDS)
    child.set_ended(None)


async def _readable(descriptor: int) -> None:
    loop = asyncio.get_running_loop()
    event = asyncio.Event()
    loop.add_reader(descriptor, event.set)
    try:
        await event.wait()
    finally:
        loop.remove_reader(descriptor)
