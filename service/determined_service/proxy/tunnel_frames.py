"""A tunnel: a websocket whose frames carry the bytes of a task's port."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, cast

from determined_service.proxy.answers import Refusal
from determined_service.proxy.http1 import RequestHead

if TYPE_CHECKING:
    from websockets.server import ServerProtocol

NORMAL, CUT_OFF = 1000, 1011
"""Close codes of a tunnel's websocket: the task's connection ended, or the tunnel was cut."""
FRAME_BYTES = 4 << 20
"""The largest message of a visitor."""
TERMINAL_BYTES = 128 << 10
"""The same of a page with a terminal."""
AHEAD_BYTES = 256 << 10
"""Bytes that such a page has been sent and has not shown."""


class TunnelFrames:
    """Unpacks the visitor's frames for the port, and packs the port's bytes for the visitor."""

    __slots__ = ("_frames", "_port", "_visitor")
    MOST = FRAME_BYTES

    def __init__(
        self, frames: ServerProtocol, visitor: asyncio.Transport, port: asyncio.Transport
    ) -> None:
        self._frames = frames
        self._visitor = visitor
        self._port = port

    @classmethod
    def open(
        cls,
        request: RequestHead,
        subprotocol: str | None,
        visitor: asyncio.Transport,
        port: asyncio.Transport,
    ) -> TunnelFrames | Refusal:
        """Answer the request for a websocket. See :attr:`is_open` for whether the library accepted it.

        A refusal says that the request is not one for a websocket; nothing was written then.
        """
        from websockets.exceptions import InvalidHandshake
        from websockets.server import ServerProtocol
        from websockets.typing import Subprotocol

        frames = ServerProtocol(
            subprotocols=[Subprotocol(subprotocol)] if subprotocol else None, max_size=cls.MOST
        )
        # The library reads the request itself, and checks it in its own way.
        lines = [b"%b: %b\r\n" % item for item in request.headers]
        frames.receive_data(b"GET / HTTP/1.1\r\n" + b"".join(lines) + b"\r\n")
        events = frames.events_received()
        try:
            if not events:
                raise InvalidHandshake("no request for a websocket")
            frames.send_response(frames.accept(cast("Any", events[0])))
        except (InvalidHandshake, ValueError) as error:
            return Refusal(400, f"no websocket: {error}")
        visitor.write(b"".join(frames.data_to_send()))
        return cls(frames, visitor, port)

    @property
    def is_open(self) -> bool:
        from websockets.protocol import State

        return self._frames.state is State.OPEN

    def receive(self, data: bytes) -> None:
        """Bytes of the visitor."""
        from websockets.frames import Frame, Opcode

        self._frames.receive_data(data)
        for event in self._frames.events_received():
            if not isinstance(event, Frame):
                continue
            if event.opcode in (Opcode.BINARY, Opcode.TEXT, Opcode.CONT):
                self._received(bytes(event.data), event.opcode is Opcode.TEXT)
        self._flush()

    def _received(self, data: bytes, is_text: bool) -> None:
        if data:
            self._port.write(data)
        elif self._frames.subprotocol and not self._port.is_closing():
            # Our clients' way to say that nothing more will come.
            self._port.write_eof()

    def send(self, data: bytes) -> None:
        """Bytes of the port."""
        if self.is_open:
            self._frames.send_binary(data)
            self._flush()

    @property
    def is_full(self) -> bool:
        """True if the visitor has more of the port's bytes than it has used: the port waits."""
        return False

    def end(self, code: int = NORMAL) -> None:
        """The port says nothing more."""
        if self.is_open:
            self._frames.send_close(code)
            self._flush()

    def _flush(self) -> None:
        for piece in self._frames.data_to_send():
            if piece:
                self._visitor.write(piece)
            else:
                self._visitor.close()


class TerminalFrames(TunnelFrames):
    """As above for a page with a terminal (:data:`~determined_service.proxy.passing.TERMINAL`).

    A page's script cannot make a websocket wait, so a program that prints without end would fill the browser.
    Its text messages are numbers: so many more bytes were shown. The port is read no further than
    :data:`AHEAD_BYTES` beyond that.
    """

    __slots__ = ("_ahead",)
    MOST = TERMINAL_BYTES

    def __init__(
        self, frames: ServerProtocol, visitor: asyncio.Transport, port: asyncio.Transport
    ) -> None:
        super().__init__(frames, visitor, port)
        self._ahead = 0

    @property
    def is_full(self) -> bool:
        return self._ahead > AHEAD_BYTES

    def send(self, data: bytes) -> None:
        super().send(data)
        self._ahead += len(data)
        if self.is_full:
            self._port.pause_reading()

    def _received(self, data: bytes, is_text: bool) -> None:
        if not is_text:
            self._port.write(data)
        elif data.isdigit() and len(data) < 10:
            self._ahead = max(0, self._ahead - int(data))
            if not self.is_full:
                self._port.resume_reading()
