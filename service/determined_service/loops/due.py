"""Loops that begin due runs: at once after an announcement, else every few seconds."""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from typing import ClassVar

import sqlalchemy as sa

from determined_service.base.hub import Hub, wait_at_most

logger = logging.getLogger(__name__)

PASS_S = 5.0


class Due(ABC):
    """One per cluster (the leader's), where there is a Prefect. Every pass may be repeated.

    The times are the service's own: each is a row, which the transaction that begins a run moves on. So times
    missed while the cluster was down give one run. (Prefect makes no runs for times at which its server was
    down, and starts every late one.) ``topic``: after an announcement of it a pass comes at once.
    """

    topic: ClassVar[str]
    _next_look = 0.0

    def may_look(self) -> bool:
        """Whether this pass looks for events: announcements are more frequent than that is worth."""
        now = time.monotonic()
        if now < self._next_look:
            return False
        self._next_look = now + PASS_S
        return True

    async def run(self, hub: Hub) -> None:
        """Repeat passes for ever."""
        with hub.subscribe([self.topic]) as event:
            while True:
                event.clear()
                try:
                    await self.run_pass()
                except sa.exc.OperationalError as error:
                    logger.warning("%s wait: %s", self.topic, error)
                await wait_at_most(event, PASS_S)

    @abstractmethod
    async def run_pass(self) -> None:
        """Begin the due runs."""
