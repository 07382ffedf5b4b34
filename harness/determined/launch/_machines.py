"""Connects the launchers of a gang on several machines: each learns when another launcher's part has ended
or is gone.

The first machine's launcher is in the middle, connected with all the others.
"""

from __future__ import annotations

import contextlib
import json
import socket
import time

from determined import errors
from determined.core._collective import Peer

# A machine that vanishes, its cable pulled, closes nothing: it is given up after 20 seconds.
KEEPALIVE = {"TCP_KEEPIDLE": 5, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 20_000}

CLOSE_S = 2.0
"""Seconds that the others have to read the last messages."""


class Machines:
    """``peers``: connections to the other launchers by their machines' numbers; ``addresses``: all
    machines, in their order."""

    def __init__(self, peers: dict[int, Peer], addresses: list[str]) -> None:
        self._addresses = addresses
        self._peers = {peer.sock.fileno(): peer for peer in peers.values()}
        for peer in peers.values():
            for option, value in KEEPALIVE.items():
                if hasattr(socket, option):
                    peer.sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
        # The first machine serves the store by which workers meet: it stays to the end.
        self._is_first = self.awaited = 0 not in peers
        self._has_told = False

    def descriptors(self) -> list[int]:
        """The objects to wait on; when one is readable, call :meth:`hear`."""
        return list(self._peers)

    def listens_to(self, descriptor: int) -> bool:
        """True if more messages may come from that launcher."""
        return descriptor in self._peers

    def hear(self, descriptor: int) -> str | None:
        """Read one message. Returns why this part of the gang must end, or None if it need not end."""
        peer = self._peers[descriptor]
        try:
            why: str | None = json.loads(peer.receive())
        except errors.WorkerLost:
            self._forget(descriptor)
            if self._has_told and not self._is_first:
                # The first machine stays only until it knows of all ends, and this part has told its own.
                return None
            return f"the launcher on {self._addresses[peer.rank]} is gone"
        if why is None and self._is_first:
            # It has nothing more to say. The others keep the connection: their own end is still to be told.
            self._forget(descriptor)
        return why

    def _forget(self, descriptor: int) -> None:
        self._peers.pop(descriptor).sock.close()
        self.awaited = self.awaited and bool(self._peers)

    def tell(self, why: str | None) -> None:
        """Tell the other launchers that this part has ended: because of ``why``, or well (None)."""
        self._has_told = True
        for peer in self._peers.values():
            try:
                peer.send(json.dumps(why).encode())
            except errors.WorkerLost:
                continue  # heard of when it is read

    def close(self) -> None:
        """End the connections, once the others have read their messages: closing a connection discards its
        unread messages.
        """
        for peer in self._peers.values():
            with contextlib.suppress(OSError):
                peer.sock.shutdown(socket.SHUT_WR)
        until = time.monotonic() + CLOSE_S
        for peer in self._peers.values():
            with contextlib.suppress(OSError):
                peer.sock.settimeout(max(until - time.monotonic(), 0.01))
                while peer.sock.recv(4096):
                    pass
            peer.sock.close()
        self._peers.clear()
