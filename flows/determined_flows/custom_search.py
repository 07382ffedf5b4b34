"""A custom search in its experiment's flow: somebody else decides, this makes the trials' runs.

The search method runs where its user started it (docs/custom-searchers.md) and the service carries its
operations out. What is left for the flow is to have a Prefect run for each trial, and to end when the
experiment does. It keeps nothing: the service answers which trials have no run yet.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from determined.common.api import Session

from .service import POLL_SECONDS


def is_custom(config: Mapping[str, Any]) -> bool:
    """Whether the experiment's search method is not ours to run."""
    return bool(config["searcher"]["name"] == "custom")


async def follow_custom_search(
    session: Session,
    path: str,
    driver: str,
    create_run: Callable[[dict[str, Any]], Coroutine[Any, Any, None]],
) -> tuple[str, str | None]:
    """Makes the runs of trials as they appear, until the experiment has ended: (state, reason).

    ``path`` is the search's at the service. Raises ConflictException when another driver has attached.
    """
    state: str | None = None
    while True:
        answer = await asyncio.to_thread(
            session.get,
            f"{path}/follow",
            params={"driver": driver, "state": state or "", "timeout_s": POLL_SECONDS},
            timeout=POLL_SECONDS + 30,
        )
        state = str(answer["state"])
        # Awaited, or the next answer would name them again.
        async with asyncio.TaskGroup() as runs:
            for trial in answer["trials"]:
                runs.create_task(create_run(trial))
        if answer["ended"]:
            return state, answer["reason"]
