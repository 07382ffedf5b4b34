"""How the leader looks after flow runs that it makes: pass after pass."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Protocol
from uuid import UUID

import httpx
import sqlalchemy as sa

from determined_service.base.hub import Hub, wait_at_most
from determined_service.prefect.gateway import ENDED, NotDeployed, RunGone, RunState

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


class States(Protocol):
    """The calls to Prefect; implemented by :class:`~determined_service.prefect.gateway.PrefectGateway`."""

    async def read_state(self, run_id: UUID) -> RunState:
        """The present state. Raises RunGone."""

    async def set_state(self, run_id: UUID, type: str, name: str, message: str) -> None:
        """Sets the state whatever the present one is. Raises RunGone."""


async def settle(
    prefect: States, run_id: UUID, end: tuple[str, str], message: str, *, overdue: bool
) -> bool:
    """Whether the flow run of something that has ended says so.

    A flow that died, or that was killed with the last word on its lips, cannot say it: then it is said here.
    So it is for a flow that is ``overdue``, though its run has no final state.

    Args:
        end: type and name of the state that the run is to have.
    """
    try:
        state = await prefect.read_state(run_id)
        # One that has waited for a person has completed long before it is, say, cancelled.
        if state.type in (end[0], "COMPLETED"):
            return True
        if state.type not in ENDED and not overdue:
            return False
        await prefect.set_state(run_id, *end, message)
    except RunGone:
        pass
    return True
