"""The message of the cluster: what administrators tell all its users for some time.

There is one at most. Each process of the service holds it in memory, because ``GET /api/v1/master`` shows it
without asking the database.
"""

from __future__ import annotations

import asyncio
import datetime
import itertools
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from determined_registry.database.tables import cluster
from determined_service.base import topics
from determined_service.base.db import Database
from determined_service.base.hub import Hub
from determined_service.state.change import Change, reader

logger = logging.getLogger(__name__)

SWEEP_S = 300.0
"""Seconds after which a process reads the message again, even if nothing was announced."""


@dataclass(frozen=True, slots=True)
class ClusterMessage:
    """``v1ClusterMessage``: shown from ``start`` on, until ``end`` if there is one."""

    text: str
    start: datetime.datetime
    end: datetime.datetime | None
    created: datetime.datetime

    def is_shown(self, now: datetime.datetime) -> bool:
        """Whether users see it at that time."""
        return self.start <= now and not self.has_ended(now)

    def has_ended(self, now: datetime.datetime) -> bool:
        """Whether its end has passed."""
        return self.end is not None and self.end <= now


class MessageBoard:
    """The message that this process of the service knows."""

    def __init__(self) -> None:
        self._message: ClusterMessage | None = None
        self._turns = itertools.count()
        self._turn = -1

    def find(self, *, coming: bool = False) -> ClusterMessage | None:
        """The message that users see now. ``coming``: also one that they see later."""
        message, now = self._message, datetime.datetime.now(datetime.UTC)
        if message is None or message.has_ended(now):
            return None
        return message if coming or message.is_shown(now) else None

    async def load(self, db: Database) -> None:
        """Reads the stored message."""
        # Of two that read at the same time, the one that began last is right.
        turn = next(self._turns)
        async with reader(db).connect() as conn:
            found = await conn.scalar(sa.select(cluster.c.message))
        if turn > self._turn:
            self._turn, self._message = turn, None if found is None else _restored(found)

    async def follow(self, db: Database, hub: Hub) -> None:
        """Takes over what other processes of the service set."""
        while True:
            try:
                await hub.poll([topics.CLUSTER_MESSAGE], lambda: self.load(db), SWEEP_S)
            except sa.exc.OperationalError as error:
                logger.warning("Postgres does not answer, the cluster message stays: %s", error)
                await asyncio.sleep(SWEEP_S / 30)


async def put(change: Change, message: ClusterMessage | None) -> None:
    """Sets the message in place of the one before; None: there is none any more."""
    await change.conn.execute(
        sa.update(cluster).values(message=None if message is None else _stored(message))
    )
    change.notify(topics.CLUSTER_MESSAGE)


def _stored(message: ClusterMessage) -> dict[str, Any]:
    return {
        "message": message.text,
        "startTime": message.start.isoformat(),
        "endTime": None if message.end is None else message.end.isoformat(),
        "createdTime": message.created.isoformat(),
    }


def _restored(stored: Mapping[str, Any]) -> ClusterMessage:
    read = datetime.datetime.fromisoformat
    end = stored["endTime"]
    return ClusterMessage(
        stored["message"],
        read(stored["startTime"]),
        None if end is None else read(end),
        read(stored["createdTime"]),
    )
