"""The whole way of an experiment: submit, drive, train, end."""

from __future__ import annotations

import asyncio
import datetime
import uuid

import httpx
import pytest

from determined_service.app import create_app
from determined_service.base import hub
from determined_service.base.settings import Settings
from determined_service.state.run_records import QUIET_S
from tests.integration.conftest import AGENT_TOKEN, serve
from tests.integration.control.world import CONFIG, Driver, World, ok
from tests.waiting import TIMEOUT_S, until_async

SINGLE = CONFIG.replace(
    "{name: random, metric: loss, max_length: 8, max_trials: 4, max_concurrent_trials: 2}",
    "{name: single, metric: loss, max_length: 8}",
)
ASHA = CONFIG.replace(
    "{name: random, metric: loss, max_length: 8, max_trials: 4, max_concurrent_trials: 2}",
    "{name: async_halving, metric: loss, max_length: {batches: 8}, num_rungs: 2, divisor: 2,"
    " max_trials: 4, max_concurrent_trials: 2}",
)


async def test_a_random_search_from_submission_to_completion(world: World) -> None:
    await world.register(slots=2)
    driver = await world.started()
    finished = asyncio.Event()
    agent = asyncio.create_task(world.train_all(finished))
    assert await asyncio.wait_for(driver.drive(), TIMEOUT_S) == "COMPLETED"
    finished.set()
    assert await agent == 4
    experiment = await world.experiment(driver.experiment_id)
    assert experiment["progress"] == 1.0
    assert experiment["end_time"] is not None
    trials = await world.rows("SELECT * FROM trials ORDER BY id")
    assert [trial["state"] for trial in trials] == ["COMPLETED"] * 4
    assert all(trial["run_count"] == 1 and trial["end_time"] for trial in trials)
    legs = await world.rows("SELECT * FROM legs")
    assert [leg["state"] for leg in legs] == ["COMPLETED"] * 4
    kinds = [event["type"] for event in await world.events(driver.experiment_id)]
    assert sorted(kinds) == sorted(["trial_created", "validation_completed", "trial_closed"] * 4)
    assert not await world.rows("SELECT 1 FROM allocations WHERE token IS NOT NULL")
    for trial in trials:
        assert await world.told_prefect(f"task:{trial['task_id']}") == [
            "Pending",
            "Running",
            "Completed",
        ]


async def test_a_promotion_gives_a_paused_trial_its_next_leg(world: World) -> None:
    await world.register(slots=1)
    driver = await world.started(ASHA)
    finished = asyncio.Event()
    agent = asyncio.create_task(world.train_all(finished))
    assert await asyncio.wait_for(driver.drive(), TIMEOUT_S) == "COMPLETED"
    finished.set()
    assert await agent == 6
    trials = await world.rows("SELECT run_count, state, restarts FROM trials ORDER BY id")
    assert sorted(trial["run_count"] for trial in trials) == [1, 1, 2, 2]
    assert {trial["state"] for trial in trials} == {"COMPLETED"}
    assert {trial["restarts"] for trial in trials} == {0}


async def test_the_next_operation_is_waited_for(world: World) -> None:
    await world.register(slots=1)
    driver = await world.started(ASHA)
    trial = await world.launched()
    ok(await trial.started())
    first = await trial.operation()
    assert first["op"]["validateAfter"]["length"] == "4"
    ok(await trial.complete(4, 0.1))
    waiting = asyncio.create_task(trial.operation())
    await asyncio.sleep(0.1)
    assert not waiting.done()
    await driver.step()
    answer = await asyncio.wait_for(waiting, TIMEOUT_S)
    # One report of four is not enough to promote anybody: the trial waits without slots.
    assert answer["completed"]


@pytest.fixture
def only_announcements(monkeypatch: pytest.MonkeyPatch) -> None:
    """No wait of the service ends because its time is up."""

    async def wait(event: asyncio.Event, seconds: float) -> bool:
        return await event.wait()

    monkeypatch.setattr(hub, "wait_at_most", wait)


async def test_placements_follow_requests_by_announcements(
    only_announcements: None, world: World
) -> None:
    await world.register(slots=1)
    driver = Driver(world, await world.submit(SINGLE))
    waiting = asyncio.create_task(world.work(10))
    await driver.attach()
    assert (await asyncio.wait_for(waiting, TIMEOUT_S))["launch"]


async def test_the_leg_spec_says_all_a_leg_needs(world: World) -> None:
    await world.register(slots=3)
    config = (
        SINGLE + "resources: {slots_per_trial: 2}\nenvironment: {environment_variables: [A=1]}\n"
    )
    driver = Driver(
        world,
        await world.submit(
            config,
            modelDefinition=[{"path": "train.py", "type": 48, "content": "cHJpbnQoMSkK"}],
        ),
    )
    await driver.attach()
    trial = await world.launched()
    spec = trial.spec
    assert spec["slot_ids"] == [0, 1]
    assert spec["entrypoint"] == "python3 train.py"
    assert spec["task_id"] == f"{driver.experiment_id}.{trial.spec['task_id'].split('.')[1]}"
    assert spec["allocation_id"] == f"{spec['task_id']}.1"
    assert (spec["run_id"], spec["latest_checkpoint"], spec["steps_completed"]) == (1, None, 0)
    assert spec["environment_variables"] == ["A=1"]
    assert spec["owner"] == "determined"
    assert spec["config"]["searcher"]["metric"] == "loss"
    assert 1 <= spec["hparams"]["x"] <= 1000
    archive = await world.agent.get(f"/internal/v1/model_defs/{spec['model_def_hash']}")
    assert archive.content[:2] == b"\x1f\x8b"
    # A launch repeated to an agent that did not get it carries the same token.
    world.running.clear()
    (again,) = (await world.work())["launch"]
    assert again["session_token"] == spec["session_token"]


async def test_a_second_driver_takes_over_where_the_first_was(world: World) -> None:
    await world.register(slots=2)
    driver = await world.started()
    trial = (await world.work(5))["launch"][0]
    del trial
    second = Driver(world, driver.experiment_id)
    answer = await second.attach()
    assert answer.committed_event_id == 0
    assert len(answer.trials_without_run) == 2
    gone = await world.agent.get(
        f"{driver.path}/events", params={"driver": str(driver.driver), "after": 0}
    )
    assert gone.status_code == 409
    refused = await world.agent.post(
        f"{driver.path}/commit",
        json={"driver": str(driver.driver), "last_event_id": 99, "operations": [], "snapshot": {}},
    )
    assert refused.status_code == 409
    await second.step()
    assert second.searcher.trials_created == 2


async def test_a_commit_that_is_repeated_changes_nothing(world: World) -> None:
    await world.register(slots=2)
    driver = await world.started()
    again = await world.agent.post(
        f"{driver.path}/commit",
        json={
            "driver": str(driver.driver),
            "last_event_id": 0,
            "operations": [{"type": "shutdown", "cancel": False, "failure": True}],
            "snapshot": {},
        },
    )
    answer = ok(again)
    # Their runs in Prefect may not have been made: the first answer may have been lost.
    assert len(answer.pop("trials")) == 2
    assert answer == {"state": "ACTIVE", "duplicate": True}
    assert len(await world.rows("SELECT 1 FROM trials")) == 2


async def test_operations_that_make_no_sense_are_refused_whole(world: World) -> None:
    driver = await world.started()
    for operations, text in (
        ([{"type": "close", "request_id": "nobody"}], "no such trial: nobody"),
        ([{"type": "explode"}], "unknown searcher operation 'explode'"),
    ):
        refused = await world.agent.post(
            f"{driver.path}/commit",
            json={
                "driver": str(driver.driver),
                "last_event_id": 5,
                "operations": operations,
                "snapshot": {},
            },
        )
        assert refused.status_code == 400
        assert text in refused.text
    assert (await driver.events()).events


async def test_a_failing_searcher_ends_the_experiment_in_error(world: World) -> None:
    await world.register(slots=1)
    driver = await world.started()
    trial = await world.launched()
    ok(await trial.started())
    body = {"driver": str(driver.driver), "error": "metric is no number"}
    ok(await world.agent.post(f"{driver.path}/fail", json=body))
    assert (await world.work(1))["kill"] == [trial.allocation_id]
    ok(await trial.exited(exit_code=None, signal=9))
    experiment = await world.experiment(driver.experiment_id)
    assert experiment["state"] == "ERROR"
    assert "metric is no number" in experiment["reason"]
    assert (await driver.events(state="STOPPING_ERROR")).state == "ERROR"


async def test_a_driver_that_hangs_up_is_looked_after_soon(settings: Settings) -> None:
    with serve(create_app(settings)) as url:
        headers = {"Authorization": f"Bearer {AGENT_TOKEN}"}
        async with httpx.AsyncClient(base_url=url, headers=headers, trust_env=False) as client:
            answer = await client.post("/api/v1/experiments", json={"config": SINGLE})
            path = f"/internal/v1/experiments/{ok(answer)['experiment']['id']}/search"
            driver = str(uuid.uuid4())
            ok(await client.post(f"{path}/attach", json={"driver": driver}))
            waiting = asyncio.create_task(
                client.get(f"{path}/events", params={"driver": driver, "after": 0, "timeout_s": 10})
            )
            await asyncio.sleep(0.3)
            waiting.cancel()

            async def seen_at() -> datetime.datetime:
                return datetime.datetime.fromisoformat(ok(await client.get(path))["driver_seen_at"])

            async def suspected() -> bool:
                silence = datetime.datetime.now(datetime.UTC) - await seen_at()
                return silence.total_seconds() >= QUIET_S

            await until_async("the silence noticed", suspected)
            # It was only a broken connection: it reads on.
            ok(await client.get(f"{path}/events", params={"driver": driver}))
            assert not await suspected()
