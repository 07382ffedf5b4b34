"""The bytes of a visitor's connection: read no faster than they are used, and not waited for without end."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from typing import cast

from determined_service.proxy.task_connection import Stage, TaskConnection
from determined_service.proxy.tunnel_frames import TunnelFrames

HEAD_S = 30.0
IDLE_S = 75.0
"""Between two requests of a connection."""
QUIET_S = 3600.0
"""Within a request, a websocket or a tunnel: so long may both sides say nothing."""
MOST_HELD = 128 << 10
"""Bytes that a visitor may send before the present request is answered."""


class VisitorStream(asyncio.Protocol):
    """``task``: the connection whose bytes go to this visitor; it waits while the visitor takes none."""

    __slots__ = ("_held", "_paused", "frames", "seen", "stage", "task", "transport")

    def __init__(self) -> None:
        self.transport: asyncio.Transport = cast("asyncio.Transport", None)
        self.stage = Stage.HEAD
        self.task: TaskConnection | None = None
        self.frames: TunnelFrames | None = None
        self.seen = time.monotonic()
        self._held = b""
        self._paused = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        raw = transport.get_extra_info("socket")
        with contextlib.suppress(OSError):
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def eof_received(self) -> bool:
        task = self.task
        if self.stage is Stage.RAW and task is not None and task.transport.can_write_eof():
            task.transport.write_eof()
            return True
        return False

    def pause_writing(self) -> None:
        if self.task is not None:
            self.task.transport.pause_reading()

    def resume_writing(self) -> None:
        if self.task is not None and (self.frames is None or not self.frames.is_full):
            self.task.transport.resume_reading()

    def pause(self) -> None:
        """Read nothing more from the visitor until :meth:`resume`."""
        if not self._paused and not self.transport.is_closing():
            self._paused = True
            self.transport.pause_reading()

    def resume(self) -> None:
        if self._paused and not self.transport.is_closing():
            self._paused = False
            self.transport.resume_reading()

    def hold(self, data: bytes) -> None:
        """Keep bytes that nothing can use yet."""
        self._held += data
        if len(self._held) > MOST_HELD:
            self.pause()

    def take_held(self) -> bytes:
        """The bytes that were kept, which are kept no more."""
        held, self._held = self._held, b""
        return held

    def drop_task(self) -> bool:
        """End the task's connection, if there is one. True if its answer had begun."""
        task, self.task = self.task, None
        if task is None:
            return False
        task.visitor = None
        task.transport.abort()
        return task.answer is not None

    def is_late(self, now: float) -> bool:
        """True if nothing was received for too long."""
        if self.stage is Stage.HEAD:
            return now - self.seen > (HEAD_S if self._held else IDLE_S)
        return now - self.seen > QUIET_S
