"""Connections from which the service waits for bytes: :class:`Lobby`.

Every client that reaches the port can open connections and send half a request on each, without any login. So
a head and a body have their time, and when there are too many connections, those that have been silent for
the longest time go first: a client that sends its request is served, whatever number of connections others
hold open. One address has a smaller number (``quotas.connections``), within which the same holds.
"""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import socket
import time
from collections import Counter, OrderedDict
from itertools import islice
from typing import Protocol

from determined_service.base.networks import is_loopback, network
from determined_service.base.trusted_proxies import TrustedProxies

logger = logging.getLogger(__name__)

HEAD_S = 30.0
"""Within this time a connection sends the whole head of its first request, or of one that it has begun."""
BODY_S, BODY_BYTES = 60.0, 1024
"""A body that the service reads must bring this number of bytes in each such span of seconds."""
UNTAKEN_S = 300
"""Seconds after which a connection ends whose client takes nothing of its answer."""
LOOK_S = 2.0
AT_ONCE, PAUSE_S = 100, 0.01
"""Connections that are ended at a time, and seconds for others until the next ones: 500 took 20 ms."""
SAY_S = 60.0
"""One line in this time, however many connections there are."""
MOST = 16_384
SPARE = 512
"""Descriptors that are left for the database, files, the proxy and processes."""


def most_connections() -> int:
    """The number of connections that this process holds at once: the limit of descriptors is raised as far as
    possible."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = resource.RLIM_INFINITY
    wanted = MOST + SPARE if hard == unlimited else min(hard, MOST + SPARE)
    if soft != unlimited and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        soft = wanted
    return MOST if soft == unlimited else max(min(MOST, soft - SPARE), soft // 2)


def trusted_proxies() -> list[str]:
    """The reverse proxies that this process believes."""
    allowed = os.environ.get("FORWARDED_ALLOW_IPS", "")
    return [one.strip() for one in allowed.split(",") if one.strip()]


def counted_address(connection: socket.socket, trusted: TrustedProxies) -> str:
    """The network whose connections are counted together with this one; "": it is not counted, because it
    comes from this machine, or from a proxy with many people behind it."""
    try:
        peer, own = connection.getpeername(), connection.getsockname()
    except OSError:
        return ""
    if not isinstance(peer, tuple) or peer[0] == own[0]:
        return ""
    address = str(peer[0])
    return "" if is_loopback(address) or address in trusted else network(address)


class LobbyConnection(Protocol):
    """A connection in the lobby. ``address``: of :func:`counted_address`."""

    address: str

    def refuse(self) -> None:
        """End the connection, whose request is not there after its time."""

    def drop(self) -> None:
        """End the connection at once."""

    def has_time(self, now: float) -> bool:
        """True if its head, or its body, has time left."""


class Lobby:
    """The connections of one process; used in its event loop only."""

    def __init__(self, most: int | None = None) -> None:
        self._most = most
        self._all: set[LobbyConnection] = set()
        self._awaited: OrderedDict[LobbyConnection, None] = OrderedDict()
        self._of_address: Counter[str] = Counter()
        self._awaited_of: dict[str, OrderedDict[LobbyConnection, None]] = {}
        self._looking: asyncio.TimerHandle | None = None
        self._ended = 0
        self._said = 0.0
        self._said_full = 0.0

    def __len__(self) -> int:
        return len(self._all)

    def enter(self, one: LobbyConnection, most_of_address: int) -> None:
        """A new connection, from which a request is awaited. ``most_of_address``: connections that its
        address may have."""
        if self._most is None:
            self._most = most_connections()
        self._all.add(one)
        self._of_address[one.address] += 1
        self.awaits(one)
        if one.address and self._of_address[one.address] > most_of_address:
            self._end_silent(self._awaited_of[one.address])
            self._say_full(one.address, most_of_address)
        elif len(self._all) > self._most:
            self._end_silent(self._awaited)
        if self._looking is None:
            self._look_later(LOOK_S)

    def awaits(self, one: LobbyConnection) -> None:
        """More bytes of a request are awaited, and some may just have come."""
        for awaited in (self._awaited, self._awaited_of.setdefault(one.address, OrderedDict())):
            awaited[one] = None
            awaited.move_to_end(one)

    def serves(self, one: LobbyConnection) -> None:
        """The request has arrived completely; it is being answered."""
        if one in self._awaited:
            del self._awaited[one]
            del self._awaited_of[one.address][one]
            if not self._awaited_of[one.address]:
                del self._awaited_of[one.address]

    def leave(self, one: LobbyConnection) -> None:
        """The connection has ended, or is another process'."""
        self.serves(one)
        if one in self._all:
            self._all.remove(one)
            self._of_address[one.address] -= 1
            if not self._of_address[one.address]:
                del self._of_address[one.address]

    def _end_silent(self, awaited: OrderedDict[LobbyConnection, None]) -> None:
        silent = next(iter(awaited))
        self.leave(silent)
        silent.drop()
        self._ended += 1

    def _say_full(self, address: str, most: int) -> None:
        now = time.monotonic()
        if now - self._said_full > SAY_S or not self._said_full:
            self._said_full = now
            logger.warning(
                "%s has %d connections, which is the most of one address (quotas.connections of the cluster "
                "configuration): each new one ends the one that has been silent for the longest time. A "
                "reverse proxy belongs into trusted_proxies of the service's settings",
                address,
                most,
            )

    def _look_later(self, after_s: float) -> None:
        self._looking = asyncio.get_running_loop().call_later(after_s, self._look)

    def _look(self) -> None:
        now = time.monotonic()
        slow = list(islice((one for one in self._awaited if not one.has_time(now)), AT_ONCE))
        for one in slow:
            self.leave(one)
            one.refuse()
        self._ended += len(slow)
        if self._ended and now - self._said > SAY_S:
            logger.warning("ended %d connections that sent no whole request in time", self._ended)
            self._ended, self._said = 0, now
        self._looking = None
        if self._all:
            self._look_later(PAUSE_S if len(slow) == AT_ONCE else LOOK_S)
