"""Connections from which the service waits for bytes: :class:`Lobby`.

Every client that reaches the port can open connections and send half a request on each, without any login. So
a head and a body have their time, and when there are too many connections, those that have been silent for
the longest time go first: a client that sends its request is served, whatever number of connections others
hold open.
"""

from __future__ import annotations

import asyncio
import logging
import resource
import time
from collections import OrderedDict
from itertools import islice
from typing import Protocol

logger = logging.getLogger(__name__)

HEAD_S = 30.0
"""Within this time a connection sends the whole head of its first request, or of one that it has begun."""
BODY_S, BODY_BYTES = 60.0, 1024
"""A body that the service reads must bring this number of bytes in each such span of seconds."""
UNTAKEN_S = 300
"""Seconds after which a connection ends whose client takes nothing of its answer."""
LOOK_S = 2.0
AT_ONCE, PAUSE_S = 500, 0.01
"""So many are ended at a time, and then others have their turn: to end 16,000 takes 0.1 s."""
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


class Connection(Protocol):
    """A connection in the lobby."""

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
        self._all: set[Connection] = set()
        self._awaited: OrderedDict[Connection, None] = OrderedDict()
        self._looking: asyncio.TimerHandle | None = None
        self._ended = 0
        self._said = 0.0

    def __len__(self) -> int:
        return len(self._all)

    def enter(self, one: Connection) -> None:
        """A new connection, from which a request is awaited."""
        if self._most is None:
            self._most = most_connections()
        self._all.add(one)
        self.awaits(one)
        if len(self._all) > self._most:
            silent = next(iter(self._awaited))
            self.leave(silent)
            silent.drop()
            self._ended += 1
        if self._looking is None:
            self._look_later(LOOK_S)

    def awaits(self, one: Connection) -> None:
        """More bytes of a request are awaited, and some may just have come."""
        self._awaited[one] = None
        self._awaited.move_to_end(one)

    def serves(self, one: Connection) -> None:
        """The request has arrived completely; it is being answered."""
        self._awaited.pop(one, None)

    def leave(self, one: Connection) -> None:
        """The connection has ended, or is another process'."""
        self._all.discard(one)
        self._awaited.pop(one, None)

    def _look_later(self, after_s: float) -> None:
        self._looking = asyncio.get_running_loop().call_later(after_s, self._look)

    def _look(self) -> None:
        now = time.monotonic()
        slow = list(islice((one for one in self._awaited if not one.has_time(now)), AT_ONCE))
        for one in slow:
            self.leave(one)
            one.refuse()
        self._ended += len(slow)
        # One line a minute, however many they are.
        if self._ended and now - self._said > 60:
            logger.warning("ended %d connections that sent no whole request in time", self._ended)
            self._ended, self._said = 0, now
        self._looking = None
        if self._all:
            self._look_later(PAUSE_S if len(slow) == AT_ONCE else LOOK_S)
