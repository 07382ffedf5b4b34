"""Makes the Prefect runs of an experiment's trials beside the search, which never waits for Prefect."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from uuid import UUID

import httpx
from prefect.client.orchestration import PrefectClient
from prefect.exceptions import ObjectNotFound

from determined.common.api import Session
from determined.common.backoff import Backoff
from determined.common.wire import paths
from determined.common.wire.search import TrialRef, TrialRun
from determined_tasks.trial_runs import TrialRunFactory

logger = logging.getLogger(__name__)

# About a minute of a server that answers with errors (Prefect's client sits out some by itself).
TRIES = 8
RETRY_SECONDS = (0.5, 15.0)
# The deployment may appear about half a minute later.
DEPLOYED_TRIES = 12
DEPLOYED_SECONDS = (0.1, 5.0)
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
        owner: str | None = None,
    ) -> None:
        self._session = session
        self._group = group
        self._places = asyncio.Semaphore(AT_A_TIME)
        opening = _open(client, experiment_id, flow_run_id, owner)
        self._factory = group.create_task(opening)

    def make(self, trials: Iterable[TrialRef]) -> None:
        """Begins to make the runs of ``trials``."""
        for trial in trials:
            self._group.create_task(self.create(trial))

    async def create(self, trial: TrialRef) -> None:
        """Makes the run and tells the service its id. May be repeated."""
        factory = await self._factory
        backoff = Backoff(*RETRY_SECONDS)
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
                logger.warning(
                    "cannot create the Prefect run of trial %s yet, trying again: %s",
                    trial.trial_id,
                    error,
                )
            await asyncio.sleep(backoff.next_delay())
        await asyncio.to_thread(
            self._session.post,
            paths.TRIAL_RUN.format(trial_id=trial.trial_id),
            json=TrialRun(run_id).to_json(),
        )


async def _open(
    client: PrefectClient, experiment_id: int, flow_run_id: UUID, owner: str | None = None
) -> TrialRunFactory:
    """On a new cluster the first experiment may run before the deployment of trials is registered."""
    backoff = Backoff(*DEPLOYED_SECONDS)
    for tries_left in reversed(range(DEPLOYED_TRIES)):
        try:
            return await TrialRunFactory.open(
                client, experiment_id=experiment_id, flow_run_id=flow_run_id, owner=owner
            )
        except ObjectNotFound:
            if not tries_left:
                raise
        await asyncio.sleep(backoff.next_delay())
    raise AssertionError  # the last try returns or raises
