"""The flow's part in a custom search: the user's search method decides, the flow makes the trials' runs.

The search method runs where its user started it (docs/search/custom-searchers.md), and the service carries
out its operations. The flow makes a Prefect run for each trial, and ends when the experiment does. It keeps
no state: the service answers which trials have no run yet.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any
from uuid import UUID

from determined.common.api import Session
from determined.common.wire import paths
from determined.common.wire.search import Followed, TrialRef
from determined.common.wire.times import DRIVER_POLL_S


async def follow_custom_search(
    session: Session,
    experiment_id: int,
    driver: UUID,
    create_run: Callable[[TrialRef], Coroutine[Any, Any, None]],
) -> tuple[str, str | None]:
    """Makes the runs of trials as they appear, until the experiment has ended: (state, reason).

    Raises ConflictException when another driver has attached.
    """
    state: str | None = None
    while True:
        found = await asyncio.to_thread(
            session.get,
            paths.FOLLOW.format(experiment_id=experiment_id),
            params={"driver": str(driver), "state": state or "", "timeout_s": DRIVER_POLL_S},
            timeout=DRIVER_POLL_S + 30,
        )
        answer = Followed.from_json(found)
        state = answer.state
        # Awaited, or the next answer would name them again.
        async with asyncio.TaskGroup() as runs:
            for trial in answer.trials:
                runs.create_task(create_run(trial))
        if answer.ended:
            return state, answer.reason
