"""A TCP proxy that can cut, delay and swallow what passes."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from dataclasses import dataclass, field

CHUNK = 1 << 16


@dataclass
class Proxy:
    """Forwards connections to ``(host, port)`` in a thread; it listens on ``port_here`` of ``host_here``.

    Attributes:
        delay_s: each piece of data waits so long.
        refusing: new connections are closed at once.
        swallowing: requests reach the other side, answers do not come back: their connection breaks.
        returned: bytes that have come from the other side.
    """

    host: str
    port: int
    port_here: int = 0
    host_here: str = "127.0.0.1"
    delay_s: float = 0.0
    refusing: bool = False
    swallowing: bool = False
    returned: int = 0
    _writers: set[asyncio.StreamWriter] = field(default_factory=set)
    _ready: threading.Event = field(default_factory=threading.Event)

    def start(self) -> None:
        threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True).start()
        assert self._ready.wait(10)

    @property
    def url(self) -> str:
        return f"http://{self.host_here}:{self.port_here}"

    def cut(self) -> int:
        """Breaks every connection there is; how many."""
        count = len(self._writers) // 2
        self._loop.call_soon_threadsafe(self._abort_all)
        return count

    def heal(self) -> None:
        self.delay_s, self.refusing, self.swallowing = 0.0, False, False

    def _abort_all(self) -> None:
        for writer in list(self._writers):
            writer.transport.abort()

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        server = await asyncio.start_server(self._connected, self.host_here, 0)
        self.port_here = server.sockets[0].getsockname()[1]
        self._ready.set()
        await server.serve_forever()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.refusing:
            writer.transport.abort()
            return
        try:
            far_reader, far_writer = await asyncio.open_connection(self.host, self.port)
        except OSError:
            writer.transport.abort()
            return
        self._writers |= {writer, far_writer}
        try:
            await asyncio.gather(
                self._pipe(reader, far_writer, back=False),
                self._pipe(far_reader, writer, back=True),
                return_exceptions=True,
            )
        finally:
            self._writers -= {writer, far_writer}
            for one in (writer, far_writer):
                one.transport.abort()

    async def _pipe(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, back: bool
    ) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(CHUNK):
                if self.delay_s:
                    await asyncio.sleep(self.delay_s)
                if back and self.swallowing:
                    break
                self.returned += len(data) if back else 0
                writer.write(data)
                await writer.drain()
        # Half-closed connections are of no use to HTTP.
        writer.transport.abort()
        reader.feed_eof()
