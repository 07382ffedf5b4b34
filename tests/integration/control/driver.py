"""The product's driver of a search, as tests of the service use it."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterable
from typing import TYPE_CHECKING, cast

import httpx
from fastapi import FastAPI
from prefect.logging import disable_run_logger

from determined.common.api import Session
from determined.common.wire import paths
from determined.common.wire.search import Attached, Attachment, Events, TrialRef
from determined_flows.experiment import SearchDriver
from determined_flows.recorded_search import RecordedSearch
from determined_flows.trial_runs import TrialRuns
from determined_searchers import Operation, Searcher
from tests.integration.conftest import AGENT_TOKEN

if TYPE_CHECKING:
    from tests.integration.control.world import World


class Wire(httpx.BaseTransport):
    """Requests of the driver's threads to the service in the test's loop."""

    def __init__(self, app: FastAPI) -> None:
        self._service = httpx.ASGITransport(app)
        self._loop = asyncio.get_running_loop()

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        sent = httpx.Request(
            request.method, request.url, headers=request.headers, content=request.read()
        )
        return asyncio.run_coroutine_threadsafe(self._call(sent), self._loop).result()

    async def _call(self, request: httpx.Request) -> httpx.Response:
        answer = await self._service.handle_async_request(request)
        content = await answer.aread()
        return httpx.Response(answer.status_code, headers=answer.headers, content=content)


class Driver(SearchDriver):
    """The product's driver, one step at a time.

    The search, how it is restored, its requests for events and its commits are the product's. This class
    replaces only ``run``, the loop around them: :meth:`attach`, :meth:`step` and :meth:`drive`. A test has to
    look at the service between two steps, so a step commits every event at once; and there is neither a flow
    run nor a Prefect in which trials would get theirs. The product's own loop is tested in
    ``test_driver_dies.py``.

    Attributes:
        state: the experiment's, as the service told it last.
    """

    def __init__(self, world: World, experiment_id: int) -> None:
        session = Session("http://service", AGENT_TOKEN, transport=Wire(world.app))
        world.sessions.append(session)
        with disable_run_logger():
            super().__init__(session, experiment_id, uuid.uuid4())
        self.world = world
        self.path = paths.SEARCH.format(experiment_id=experiment_id)
        self.state = ""
        self.search: RecordedSearch

    @property
    def searcher(self) -> Searcher:
        return self.search._searcher

    async def attach(self) -> Attached:
        answer = Attached.from_json(await self._post(paths.ATTACH, Attachment(self.driver)))
        self.state = answer.experiment.state
        self.search = await self._restore(answer)
        if self.search.last_event_id < 0:
            await self.commit(self.search.begin())
        return answer

    async def commit(self, operations: list[Operation]) -> list[TrialRef]:
        """The trials that the operations created."""
        runs = _Runs()
        self.state = await self._commit(self.search, operations, cast(TrialRuns, runs))
        return runs.trials

    async def events(self, timeout_s: float = 0, state: str | None = None) -> Events:
        return await self._events(self.search.last_event_id, state, timeout_s)

    async def step(self, timeout_s: float = 0) -> list[TrialRef]:
        """Answer the pending events and return the trials created."""
        answer = await self.events(timeout_s, self.state)
        self.state = answer.state
        if not answer.events:
            return []
        return await self.commit(self.search.handle(answer.events))

    async def drive(self) -> str:
        """Drives until the experiment has ended."""
        while self.state not in ("COMPLETED", "CANCELED", "ERROR"):
            await self.step(5)
        return self.state


class _Runs:
    """Instead of making runs in Prefect, return the trials that would get a run."""

    def __init__(self) -> None:
        self.trials: list[TrialRef] = []

    def make(self, trials: Iterable[TrialRef]) -> None:
        self.trials += trials
