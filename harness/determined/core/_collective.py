"""Collective calls over sockets: the chief in the middle, every other worker with one connection to it.

These calls are for small things (metrics, paths, decisions), not for tensors. An object is sent as its
pickle, after a handshake that only processes of the same trial can make.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import pickle
import selectors
import socket
import struct
import sys
import time
from typing import Any, TypeAlias

from determined import errors
from determined.common.backoff import Backoff

RENDEZVOUS_S = 600.0
"""Seconds that workers wait for each other at the start."""
HELLO_S = 10.0
KEEPALIVE_S = 30
CHUNK = 1 << 20

Address: TypeAlias = tuple[str, int] | str
"""(host, port), or the name of a Unix socket; a name that begins with NUL is in no directory."""

_LENGTH = struct.Struct("!Q")
_RANK = struct.Struct("!I")


def secret() -> bytes:
    """The secret that the processes of one trial share. On the cluster it is the trial's token. Off the
    cluster it only keeps two jobs of one user apart that use the same port.
    """
    shared = os.environ.get("DET_SESSION_TOKEN") or ":".join(
        os.environ.get(name, "") for name in ("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID")
    )
    return hashlib.sha256(f"determined {os.getuid()} {shared}".encode()).digest()


class Peer:
    """A connection to another worker."""

    def __init__(self, sock: socket.socket, rank: int) -> None:
        sock.setblocking(True)
        if sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            # A machine that vanishes closes nothing.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for option in ("TCP_KEEPIDLE", "TCP_KEEPINTVL"):
                if hasattr(socket, option):
                    sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), KEEPALIVE_S)
        self.sock = sock
        self.rank = rank

    def send(self, body: bytes) -> None:
        """Raises errors.WorkerLost."""
        try:
            self.sock.sendall(_LENGTH.pack(len(body)))
            self.sock.sendall(body)
        except OSError as error:
            raise _lost(self.rank, error) from error

    def receive(self) -> bytes:
        """Raises errors.WorkerLost."""
        (length,) = _LENGTH.unpack(self._read(_LENGTH.size))
        return self._read(length)

    def _read(self, length: int) -> bytes:
        parts = bytearray()
        while len(parts) < length:
            try:
                part = self.sock.recv(min(length - len(parts), CHUNK))
            except OSError as error:
                raise _lost(self.rank, error) from error
            if not part:
                raise _lost(self.rank, None)
            parts += part
        return bytes(parts)


def _lost(rank: int, error: OSError | None) -> errors.WorkerLost:
    why = f": {error}" if error is not None else ""
    return errors.WorkerLost(f"the worker of rank {rank} is gone: its connection has ended{why}")


class Group:
    """The collective calls of one worker; worker 0 is in the middle. Every worker makes the same calls in
    the same order. A worker without peers sends nothing. Not thread-safe.

    Raises (all calls) errors.WorkerLost when a worker that is needed has gone, RuntimeError when the
    workers do not make the same call.
    """

    def __init__(self, rank: int, peers: dict[int, Peer]) -> None:
        self.rank = rank
        self._peers = peers

    @property
    def peers(self) -> dict[int, Peer]:
        """The connections to other workers by rank, for callers that speak another protocol over them."""
        return dict(self._peers)

    @classmethod
    def lead(cls, listener: socket.socket, size: int, key: bytes) -> Group:
        """As worker 0, with a socket of :func:`listen`. Raises TimeoutError, naming who is missing."""
        peers: dict[int, Peer] = {}
        deadline = time.monotonic() + RENDEZVOUS_S
        with listener:
            while len(peers) < size - 1:
                listener.settimeout(max(deadline - time.monotonic(), 0.001))
                try:
                    sock, _ = listener.accept()
                except TimeoutError:
                    missing = sorted(set(range(1, size)) - peers.keys())
                    raise TimeoutError(
                        f"workers of rank {', '.join(map(str, missing))} did not come "
                        f"within {RENDEZVOUS_S:.0f} s"
                    ) from None
                peer = _welcome(sock, size, key, peers)
                if peer is not None:
                    peers[peer.rank] = peer
        return cls(0, peers)

    @classmethod
    def join(cls, address: Address, rank: int, key: bytes) -> Group:
        """As another worker. Raises TimeoutError when worker 0 is not there in time, ConnectionError
        when it refuses."""
        deadline = time.monotonic() + RENDEZVOUS_S
        backoff = Backoff(0.01, 0.5)
        while True:
            try:
                sock = _connect(address)
                break
            except OSError as error:
                if time.monotonic() > deadline:
                    raise TimeoutError(
                        f"the chief did not listen at {_said(address)} within {RENDEZVOUS_S:.0f} s: "
                        f"{error}"
                    ) from error
            time.sleep(backoff.next_delay())
        peer = Peer(sock, 0)
        hello = _RANK.pack(rank)
        # Not as a message: bytes of an unknown peer are not measured, let alone unpickled.
        sock.sendall(hello + _proof(key, hello))
        try:
            answer = peer.receive()
        except errors.WorkerLost as error:
            raise ConnectionError(
                f"the process at {_said(address)} does not accept this worker (rank {rank}): is it "
                "another trial's port, or does another worker have this rank?"
            ) from error
        if not hmac.compare_digest(answer, _proof(key, b"chief" + hello)):
            raise ConnectionError(
                f"the process that listens at {_said(address)} is not this trial's chief; choose "
                "another port_offset"
            )
        return cls(rank, {0: peer})

    def gather(self, call: str, stuff: Any) -> list[Any] | None:
        """Worker 0 gets everybody's ``stuff`` in the order of ranks, the others None."""
        if self.rank:
            self._peers[0].send(pickle.dumps((call, stuff), pickle.HIGHEST_PROTOCOL))
            return None
        found = {0: stuff}
        with selectors.DefaultSelector() as waiting:
            for peer in self._peers.values():
                waiting.register(peer.sock, selectors.EVENT_READ, peer)
            # Whoever comes first: one that is gone is noticed though others take their time.
            while waiting.get_map():
                for key, _ in waiting.select():
                    peer = key.data
                    found[peer.rank] = _opened(peer.receive(), call, peer.rank)
                    waiting.unregister(peer.sock)
        return [found[rank] for rank in sorted(found)]

    def broadcast(self, call: str, stuff: Any) -> Any:
        """Worker 0's ``stuff``."""
        if self.rank:
            return _opened(self._peers[0].receive(), call, 0)
        if self._peers:
            body = pickle.dumps((call, stuff), pickle.HIGHEST_PROTOCOL)
            for peer in self._peers.values():
                peer.send(body)
        return stuff

    def allgather(self, call: str, stuff: Any) -> list[Any]:
        """Everybody's ``stuff`` in the order of ranks."""
        found: list[Any] = self.broadcast(call, self.gather(call, stuff))
        return found

    def close(self) -> None:
        """May be called twice."""
        for peer in self._peers.values():
            peer.sock.close()
        self._peers = {}


def listen(address: Address) -> socket.socket:
    """Raises OSError with the address and with advice."""
    family = socket.AF_UNIX if isinstance(address, str) else socket.AF_INET
    listener = socket.socket(family)
    try:
        if family == socket.AF_INET:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(1024)
    except OSError as error:
        listener.close()
        raise OSError(
            error.errno,
            f"workers cannot meet at {_said(address)}: {os.strerror(error.errno or 0)}; give "
            "another trial on this machine another port_offset",
        ) from error
    return listener


def _connect(address: Address) -> socket.socket:
    if not isinstance(address, str):
        return socket.create_connection(address, timeout=HELLO_S)
    sock = socket.socket(socket.AF_UNIX)
    try:
        sock.connect(address)
    except OSError:
        sock.close()
        raise
    return sock


def _welcome(sock: socket.socket, size: int, key: bytes, peers: dict[int, Peer]) -> Peer | None:
    """The worker behind a new connection, None for a process that is not of this trial."""
    sock.settimeout(HELLO_S)
    length = _RANK.size + hashlib.sha256().digest_size
    hello = b""
    with contextlib.suppress(OSError):
        while len(hello) < length and (part := sock.recv(length - len(hello))):
            hello += part
    head, proof = hello[: _RANK.size], hello[_RANK.size :]
    if not hmac.compare_digest(proof, _proof(key, head)):
        sock.close()
        return None
    (rank,) = _RANK.unpack(head)
    if not 0 < rank < size or rank in peers:
        sock.close()
        return None
    peer = Peer(sock, rank)
    peer.send(_proof(key, b"chief" + head))
    return peer


def _proof(key: bytes, text: bytes) -> bytes:
    return hmac.digest(key, text, "sha256")


def _opened(body: bytes, call: str, rank: int) -> Any:
    theirs, stuff = pickle.loads(body)
    if theirs != call:
        raise RuntimeError(
            f"rank {rank} called {theirs}() while this worker called {call}(): every worker must "
            "make the same calls in the same order"
        )
    return stuff


def _said(address: Address) -> str:
    if isinstance(address, str):
        return f"the socket {address.lstrip(chr(0))}"
    return f"{address[0]}:{address[1]}"


def has_abstract_sockets() -> bool:
    """True if Unix sockets may have names outside of the file system."""
    return sys.platform == "linux"
