"""Waits for work that a block has begun on the cluster; it ends when the flow is cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Container
from typing import Protocol, TypeVar

from prefect.client.orchestration import get_client
from prefect.context import FlowRunContext
from prefect.logging import get_run_logger

from determined.common.api import Session
from determined.common.api.patience import patiently

POLL_S = (0.2, 5.0)


class _WithState(Protocol):
    @property
    def state(self) -> str: ...


T = TypeVar("T", bound=_WithState)


async def until_ended(
    session: Session, address: str, what: str, read: Callable[[], T], ended: Container[str]
) -> T:
    """Call ``read`` repeatedly, and return its result as soon as its state is one of ``ended``.

    When the flow is cancelled meanwhile, ``what`` is killed: by the path ``address`` and ``/kill``.
    """
    pause, longest = POLL_S
    try:
        while True:
            found = await asyncio.to_thread(patiently, read)
            if found.state in ended:
                return found
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, longest)
    except asyncio.CancelledError:
        _end_with_flow(session, address, what)
        raise


def _end_with_flow(session: Session, address: str, what: str) -> None:
    """Kill the work if the flow was cancelled. A flow that only loses its process leaves it alone: the next
    process finds it again by its key."""
    flow = FlowRunContext.get()
    if flow is None or flow.flow_run is None:
        return
    logger = get_run_logger()
    with get_client(sync_client=True) as client:
        state = client.read_flow_run(flow.flow_run.id).state
    if state is None or state.type.value not in ("CANCELLING", "CANCELLED"):
        logger.warning("%s goes on; this flow finds it again", what)
        return
    session.post(f"{address}/kill", json={})
    logger.warning("the flow was cancelled, so %s is killed", what)
