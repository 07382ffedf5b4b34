"""The flow that drives a search dies at every possible point: the result equals that of a search without
deaths.

The real driver, service and searcher; the agent and its processes are scripted. One slot, so that
the order of events is that of the simulation.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import uuid
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from determined.common.api import Session
from determined_flows import experiment as flow
from determined_flows import recorded_search, trial_runs
from determined_searchers import simulate
from tests.integration.conftest import AGENT_TOKEN
from tests.integration.control.driver import Wire
from tests.integration.control.test_search_path import ASHA
from tests.integration.control.world import CONFIG, Trial, World, ok
from tests.waiting import TIMEOUT_S

RANDOM = CONFIG.replace("max_trials: 4", "max_trials: 7")
SEARCHES = {
    "random": RANDOM,
    "promotions": ASHA.replace("max_trials: 4", "max_trials: 7"),
    "stop once": ASHA.replace("max_trials: 4", "max_trials: 7, stop_once: true"),
}
COMMIT = "/search/commit"
EVENTS = "/search/events"


class Death(BaseException):
    """``kill -9``: the driver does nothing more."""


class FatalWire(Wire):
    """``fatal``: called with each request and "before" or "after"; True kills the driver there."""

    def __init__(self, app: FastAPI, fatal: Callable[[str, str], bool]) -> None:
        super().__init__(app)
        self._fatal = fatal

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        if self._fatal(request.url.path, "before"):
            raise Death
        response = super().handle_request(request)
        if self._fatal(request.url.path, "after"):
            raise Death
        return response


class Deaths:
    """Kills the driver at each ``every``-th request to ``path``: "before" it is sent or "after" it was
    answered, which the driver does not hear."""

    def __init__(self, path: str, when: str, every: int) -> None:
        self._point = (path, when)
        self._every = every
        self._seen = 0
        self.count = 0

    def __call__(self, path: str, when: str) -> bool:
        if not path.endswith(self._point[0]) or when != self._point[1]:
            return False
        self._seen += 1
        if self._seen % self._every:
            return False
        self.count += 1
        return True


class Runs:
    """Replaces Prefect: every trial gets a run."""

    @classmethod
    async def open(cls, client: Any, **kwargs: Any) -> Runs:
        return cls()

    async def create(self, trial: Any) -> uuid.UUID:
        return uuid.uuid5(uuid.NAMESPACE_OID, trial.request_id)


@contextlib.asynccontextmanager
async def no_client() -> AsyncIterator[None]:
    yield None


@pytest.fixture
def without_prefect(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flow, "get_run_logger", lambda: logging.getLogger("driver"))
    monkeypatch.setattr(flow, "get_client", no_client)
    monkeypatch.setattr(trial_runs, "TrialRunFactory", Runs)
    monkeypatch.setattr(flow, "DRIVER_POLL_S", 1.0)


def loss(hparams: dict[str, Any], length: int, trial: int) -> float:
    return float(hparams["x"]) / length


async def drive(world: World, experiment_id: int, fatal: Callable[[str, str], bool]) -> None:
    """One driver after the other, until one reports the end of the search."""
    run = uuid.uuid4()
    for _ in range(200):
        wire = FatalWire(world.app, fatal)
        with Session("http://service", AGENT_TOKEN, transport=wire) as session:
            try:
                state = await flow.SearchDriver(session, experiment_id, run).run()
            except BaseExceptionGroup as group:
                assert group.split(Death)[1] is None, group
            except Death:
                pass
            else:
                assert state.name == "Completed", state.message
                return
    raise AssertionError("no driver came to the end")


async def train(world: World, finished: asyncio.Event) -> None:
    """One process at a time, as on one slot; it trains each operation, and reports it once."""
    while not finished.is_set():
        for spec in (await world.work(0.2))["launch"]:
            trial = Trial(world, spec)
            ok(await trial.started())
            while not (found := await trial.operation(timeout_s=20))["completed"]:
                length = int(found["op"]["validateAfter"]["length"])
                ok(await trial.complete(length, loss(spec["hparams"], length, 0)))
            await trial.acknowledge()
            ok(await trial.exited())


async def search(
    world: World, config: str, fatal: Callable[[str, str], bool]
) -> tuple[list[Any], list[Any]]:
    """The trials of the search with these deaths, and the trials of the simulation."""
    await world.register(slots=1)
    experiment_id = await world.submit(config)
    finished = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        training = group.create_task(train(world, finished))
        try:
            await asyncio.wait_for(drive(world, experiment_id, fatal), TIMEOUT_S)
        finally:
            finished.set()
        await training
    rows = await world.rows(
        "SELECT t.request_id, t.hparams, t.seed, t.state, t.restarts, k.flow_run_id "
        "FROM trials t JOIN tasks k ON k.id = t.task_id ORDER BY t.id"
    )
    events = await world.events(experiment_id)
    lengths: dict[str, list[int]] = {row["request_id"]: [] for row in rows}
    for event in events:
        if event["type"] == "validation_completed":
            lengths[event["request_id"]].append(event["length"])
    found = [(row["request_id"], row["hparams"], row["seed"], lengths[row["request_id"]])
             for row in rows]  # fmt: skip
    assert {(row["state"], row["restarts"]) for row in rows} == {("COMPLETED", 0)}
    assert all(row["flow_run_id"] for row in rows)
    complete = (await world.experiment(experiment_id))["config"]
    expected = simulate(complete, loss, workers=1).trials
    return found, [(t.request_id, t.hparams, t.seed, t.lengths) for t in expected]


@pytest.mark.parametrize(
    "deaths",
    [
        pytest.param((COMMIT, "before", 2), id="before the commit"),
        pytest.param((COMMIT, "after", 1), id="inside every commit"),
        # A driver that replays reads twice before its first commit.
        pytest.param((EVENTS, "after", 3), id="after it read events"),
    ],
)
@pytest.mark.parametrize("name", SEARCHES)
async def test_the_search_is_that_of_a_driver_that_lives(
    world: World,
    without_prefect: None,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    deaths: tuple[str, str, int],
) -> None:
    # Some drivers begin at the start, some at a snapshot, most with events to replay.
    monkeypatch.setattr(recorded_search, "SNAPSHOT_EVENTS", 4)
    monkeypatch.setattr(recorded_search, "EVENT_BYTES", 10**9)
    killer = Deaths(*deaths)
    found, expected = await search(world, SEARCHES[name], killer)
    assert found == expected
    assert killer.count > 5


async def test_the_flow_says_why_the_experiment_ended_in_error(
    world: World, without_prefect: None, caplog: pytest.LogCaptureFixture
) -> None:
    """The answer to a commit that ends the experiment has no reason in it."""
    await world.register(slots=1)
    single = "searcher: {name: single, metric: loss, max_length: {batches: 1}}\n"
    experiment_id = await world.submit(
        f"{CONFIG.partition('searcher:')[0]}max_restarts: 0\n{single}"
    )
    with Session(
        "http://service", AGENT_TOKEN, transport=FatalWire(world.app, no_death)
    ) as session:
        driver = flow.SearchDriver(session, experiment_id, uuid.uuid4())
        async with asyncio.timeout(TIMEOUT_S), asyncio.TaskGroup() as group:
            driving = group.create_task(driver.run())
            (spec,) = (await world.work(TIMEOUT_S))["launch"]
            trial = Trial(world, spec)
            ok(await trial.started())
            ok(await trial.exited(exit_code=1, reason="ValueError: no luck"))
    reason = f"trial {trial.id}: process exited with code 1: ValueError: no luck"
    state = driving.result()
    assert (state.name, state.message) == ("Failed", f"experiment {experiment_id} error: {reason}")
    assert f"experiment {experiment_id} ended in error: {reason}" in caplog.messages


def no_death(path: str, when: str) -> bool:
    return False
