"""How the leader looks after flow runs that it makes: pass after pass."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

import httpx
import sqlalchemy as sa

from determined_service.base.hub import Hub, wait_at_most
from determined_service.prefect.gateway import NotDeployed

logger = logging.getLogger(__name__)


async def repeat(
    run_pass: Callable[[], Awaitable[None]], hub: Hub, topic: str, every_s: float, what: str
) -> None:
    """Repeats ``run_pass`` for ever: at once when ``topic`` is announced, else every ``every_s`` seconds.

    While Prefect or the database does not answer, ``what`` waits, and the log says so once.
    """
    told: str | None = None
    while True:
        try:
            await run_pass()
            told = None
        except (httpx.HTTPError, sa.exc.OperationalError, NotDeployed) as error:
            if str(error) != told:
                logger.warning("%s wait: %s", what, error)
            told = str(error)
        with hub.subscribe([topic]) as event:
            await wait_at_most(event, every_s)
