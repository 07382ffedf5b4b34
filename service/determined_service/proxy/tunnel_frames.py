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


class TunnelFrames:
    """Unpacks the visitor's frames for the port, and packs the port's bytes for the visitor."""

    __slots__ = ("_frames", "_port", "_visitor")

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
            subprotocols=[Subprotocol(subprotocol)] if subprotocol else None, max_size=FRAME_BYTES
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
                if event.data:
                    self._port.write(bytes(event.data))
                elif self._frames.subprotocol and not self._port.is_closing():
                    # Our clients' way to say that nothing more will come.
                    self._port.write_eof()
        self._flush()

    def send(self, data: bytes) -> None:
        """Bytes of the port."""
        if self.is_open:
            self._frames.send_binary(data)
            self._flush()

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
