"""The Prefect runs of an experiment's trials, made beside the search: that never waits for Prefect."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from typing import Any
from uuid import UUID

import httpx
from prefect.client.orchestration import PrefectClient

from determined.common.api import Session
from determined_tasks.trial_runs import TrialRunFactory

logger = logging.getLogger(__name__)

# About a minute of a server that answers with errors (Prefect's client sits out some by itself).
TRIES = 8
RETRY_SECONDS = (0.5, 15.0)
# More at a time would only wait for the server longer, each.
AT_A_TIME = 4


class TrialRuns:
    """Makes runs as tasks of ``group``, which fails when Prefect refuses or does not recover."""

    def __init__(
        self,
        session: Session,
        client: PrefectClient,
        group: asyncio.TaskGroup,
        *,
        experiment_id: int,
        flow_run_id: UUID,
    ) -> None:
        self._session = session
        self._group = group
        self._places = asyncio.Semaphore(AT_A_TIME)
        opening = TrialRunFactory.open(client, experiment_id=experiment_id, flow_run_id=flow_run_id)
        self._factory = group.create_task(opening)

    def make(self, trials: Iterable[Mapping[str, Any]]) -> None:
        """Begins to make the runs of ``trials`` (the service's references to them)."""
        for trial in trials:
            self._group.create_task(self.create(trial))

    async def create(self, trial: Mapping[str, Any]) -> None:
        """Makes the run and tells the service its id. May be repeated."""
        factory = await self._factory
        delay, longest = RETRY_SECONDS
        for tries_left in reversed(range(TRIES)):
            try:
                async with self._places:
                    run_id = await factory.create(trial)
                break
            except httpx.HTTPError as error:
                refused = (
                    isinstance(error, httpx.HTTPStatusError) and not error.response.is_server_error
                )
                if refused or not tries_left:
                    raise
                logger.warning("no run yet for trial %s: %s", trial["trial_id"], error)
            await asyncio.sleep(delay)
            delay = min(delay * 2, longest)
        await asyncio.to_thread(
            self._session.post,
            f"/internal/v1/trials/{trial['trial_id']}/run",
            json={"flow_run_id": str(run_id)},
        )
