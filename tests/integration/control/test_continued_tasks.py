"""A trial that runs again after its experiment was continued has a new task, and keeps its data."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any, cast

import orjson
import pytest

from determined_service.deleting.erasure import erase, runs_of
from determined_service.lifecycle import tasks as tasking
from determined_service.prefect.gateway import Gateway
from determined_service.prefect.mirror import Mirror
from determined_service.prefect.mirrored_tasks import find_tasks
from determined_service.prefect.pages.writing import RunPages
from determined_service.search import beginning
from determined_service.state.change import changing
from determined_service.views.logs import LogFilter, follow_logs_of_trial
from tests.integration.control.test_continue import FOUR, end, go_on
from tests.integration.control.test_custom_search_service import CUSTOM
from tests.integration.control.test_exits import begin
from tests.integration.control.test_search_path import SINGLE
from tests.integration.control.world import Driver, Trial, World, ok
from tests.waiting import TIMEOUT_S, until_async

CHECKPOINT = "3f0d8a52-7c0f-4c5c-9a57-0d1f0e9a1b11"
RUN = "6f3f2bd4-86d5-4f35-9cd5-8c3a9f2a4a11"
SAID = ("one\n", "two\n", "three\n")
ONE_TRY = SINGLE.replace("max_restarts: 1", "max_restarts: 0")


async def say(trial: Trial, text: str) -> None:
    line = {"taskId": trial.spec["task_id"], "log": text, "source": text.strip()}
    ok(await trial.client.post("/api/v1/task/logs", json={"logs": [line]}))


async def said(world: World, path: str, **params: Any) -> list[str]:
    answer = await world.user.get(f"/api/v1/{path}/logs", params=params)
    assert answer.status_code == 200, answer.text
    return [orjson.loads(line)["result"]["log"] for line in answer.content.splitlines()]


async def sources(world: World, path: str) -> list[str]:
    """The sources of log lines, without the service's own."""
    answer = await world.user.get(f"/api/v1/{path}/logs/fields")
    return [one for one in orjson.loads(answer.content)["result"]["sources"] if f"{one}\n" in SAID]


async def fail(world: World, driver: Driver, trial: Trial, state: str = "ERROR") -> None:
    """The trial's process fails, and with it the experiment."""
    ok(await trial.exited(exit_code=1))
    assert await end(world, driver) == state


async def again(
    world: World, experiment_id: int, config: str | None = None
) -> tuple[Driver, Trial]:
    """The experiment is continued: its new driver, and the running process of its trial."""
    ok(await go_on(world, experiment_id, config))
    driver = Driver(world, experiment_id)
    await driver.attach()
    trial = await world.launched()
    ok(await trial.started())
    return driver, trial


async def shown(world: World, trial: Trial) -> dict[str, Any]:
    return dict(ok(await world.user.get(f"/api/v1/trials/{trial.id}"))["trial"])


async def task(world: World, task_id: str) -> dict[str, Any]:
    return dict(ok(await world.user.get(f"/api/v1/tasks/{task_id}"))["task"])


async def test_each_continuation_gives_the_trial_another_task(world: World) -> None:
    driver, first = await begin(world, ONE_TRY)
    experiment = driver.experiment_id
    began = (await shown(world, first))["startTime"]
    await say(first, "one\n")
    await fail(world, driver, first)
    driver, second = await again(world, experiment, "max_restarts: 2")
    await say(second, "two\n")
    ok(await second.exited(exit_code=1))
    retried = await world.launched()
    ok(await retried.started())
    ok(await world.act(experiment, "kill"))
    ok(await retried.exited(exit_code=None, signal=9))
    assert await end(world, driver) == "CANCELED"
    driver, third = await again(world, experiment, "searcher: {max_length: 20}")
    await say(third, "three\n")

    base = first.spec["task_id"]
    ids = [base, f"{base}-1", f"{base}-2"]
    legs = (first, second, retried, third)
    assert [leg.spec["task_id"] for leg in legs] == [ids[0], ids[1], ids[1], ids[2]]
    assert [leg.allocation_id for leg in legs] == [
        f"{base}.1", f"{base}-1.2", f"{base}-1.3", f"{base}-2.4",
    ]  # fmt: skip
    found = await shown(world, first)
    assert (found["taskId"], found["taskIds"]) == (ids[2], ids)
    assert (found["startTime"], found["restarts"]) == (began, 0)
    assert [(leg["runId"], leg["state"]) for leg in found["legs"]] == [
        (1, "STATE_ERROR"), (2, "STATE_ERROR"), (3, "STATE_CANCELED"), (4, "STATE_RUNNING"),
    ]  # fmt: skip
    (listed,) = ok(await world.user.get(f"/api/v1/experiments/{experiment}/trials"))["trials"]
    assert listed["taskIds"] == ids
    assert listed["wallClockTime"] >= found["wallClockTime"] > 0
    explained = ok(await world.user.get(f"/api/v1/experiments/{experiment}/explanation"))["legs"]
    assert [leg["allocationId"] for leg in explained] == [leg.allocation_id for leg in legs]

    # A request for each task's id returns its state at its end.
    tasks = [await task(world, one) for one in ids]
    assert [one["taskState"] for one in tasks] == [
        "GENERIC_TASK_STATE_ERROR", "GENERIC_TASK_STATE_CANCELED", "GENERIC_TASK_STATE_ACTIVE",
    ]  # fmt: skip
    assert [len(one["allocations"]) for one in tasks] == [1, 2, 1]
    assert "process exited with code 1" in tasks[0]["reason"]
    assert all(tasks[place]["endTime"] for place in (0, 1))
    assert tasks[2]["endTime"] is None
    configs = [orjson.loads(one["config"]) for one in tasks]
    assert [one["max_restarts"] for one in configs] == [0, 2, 2]
    assert [one["searcher"]["max_length"] for one in configs] == [8, 8, 20]
    answer = ok(await world.user.get("/api/v1/tasks", params={"taskTypes": ["TASK_TYPE_TRIAL"]}))
    assert [one["taskId"] for one in answer["tasks"]] == ids[::-1]

    for one, line in zip(ids, ("one\n", "two\n", "three\n"), strict=True):
        lines = [text for text in await said(world, f"tasks/{one}") if text in SAID]
        assert lines == [line]
    trial = f"trials/{first.id}"
    whole = [text for text in await said(world, trial) if text in SAID]
    assert whole == ["one\n", "two\n", "three\n"]
    backwards = await said(world, trial, orderBy="ORDER_BY_DESC")
    assert [text for text in backwards if text in SAID] == whole[::-1]
    assert await said(world, trial, orderBy="ORDER_BY_DESC", limit=1) == ["three\n"]
    assert await said(world, trial, searchText="one", limit=1) == ["one\n"]
    assert await said(world, trial, searchText="three", limit=5) == ["three\n"]
    assert await sources(world, f"tasks/{base}") == ["one"]
    assert await sources(world, trial) == ["one", "three", "two"]


async def test_leftover_processes_of_the_former_task_can_change_nothing(world: World) -> None:
    driver, first = await begin(world, ONE_TRY)
    await fail(world, driver, first)
    _, second = await again(world, driver.experiment_id)
    assert (await first.complete(8, 0.5)).status_code == 409
    # The agent says once more that the process has ended.
    ok(await first.exited(exit_code=1))
    async with changing(world.app.state.db) as change:
        await tasking.kill(change, first.spec["task_id"])
    found = await world.trial(first.id)
    assert (found["state"], found["op_complete"]) == ("ACTIVE", False)
    ok(await second.complete(8, 0.5))


async def test_the_run_in_prefect_and_its_untold_states_go_on(world: World) -> None:
    driver, first = await begin(world, ONE_TRY)
    path = f"/internal/v1/trials/{first.id}/run"
    ok(await world.agent.post(path, json={"flow_run_id": RUN}))
    await fail(world, driver, first)
    untold = await world.told_prefect(first.entity)
    assert untold[-1] == "Failed"
    _, second = await again(world, driver.experiment_id)
    assert second.spec["flow_run_id"] == RUN
    assert await world.told_prefect(first.entity) == []
    told = await world.told_prefect(second.entity)
    assert told[: len(untold)] == untold
    assert told[len(untold) :] == ["AwaitingSlots", "Pending", "Running"]
    async with world.app.state.db.tx() as conn:
        owners = await find_tasks(conn, [uuid.UUID(RUN)])
    assert [owner.id for owner in owners] == [second.spec["task_id"]]


class SlowPrefect:
    """Takes the first state only when ``let`` is set."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.let = asyncio.Event()

    async def set_state(self, run_id: uuid.UUID, type: str, name: str, message: str) -> None:
        self.told.append(name)
        await self.let.wait()

    async def artifacts(self, *args: Any, **how: Any) -> dict[str, uuid.UUID]:
        return {}

    async def create_artifact(self, *args: Any, **how: Any) -> uuid.UUID:
        return uuid.uuid4()

    def is_away(self, error: BaseException) -> bool:
        return False


async def test_a_state_that_is_on_its_way_is_not_told_twice(world: World) -> None:
    driver, first = await begin(world, ONE_TRY)
    path = f"/internal/v1/trials/{first.id}/run"
    ok(await world.agent.post(path, json={"flow_run_id": RUN}))
    await fail(world, driver, first)
    state, prefect, woken = world.app.state, SlowPrefect(), asyncio.Event()
    gateway = cast(Gateway, prefect)
    pages = RunPages(state.db, gateway, state.settings)
    mirror = Mirror(state.db, state.hub, gateway, state.settings, pages)
    await mirror._dispatch(woken)

    async def told() -> list[str]:
        return prefect.told

    await until_async("the first state on its way", told, equals=["Running"])
    _, second = await again(world, driver.experiment_id)
    await mirror._dispatch(woken)
    assert second.entity not in mirror._tasks
    prefect.let.set()

    async def left() -> list[Any]:
        await mirror._dispatch(woken)
        return await world.rows("SELECT * FROM prefect_outbox WHERE entity LIKE 'task:%'")

    await until_async("everything told", left, equals=[])
    assert prefect.told == ["Running", "Failed", "Running"]


async def test_only_trials_that_run_again_get_another_task(world: World) -> None:
    await world.register(slots=2)
    driver = await world.started(FOUR)
    good, bad = (Trial(world, spec) for spec in (await world.both())["launch"])
    for trial in (good, bad):
        ok(await trial.started())
    ok(await good.complete(8, 0.5))
    ok(await good.exited())
    ok(await bad.exited(exit_code=1))
    ok(await world.act(driver.experiment_id, "kill"))
    await world.work()
    ok(await go_on(world, driver.experiment_id))
    assert (await shown(world, good))["taskIds"] == [good.spec["task_id"]]
    base = bad.spec["task_id"]
    assert (await shown(world, bad))["taskIds"] == [base, f"{base}-1"]


async def test_nothing_is_half_done_when_continuing_fails(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver, first = await begin(world, ONE_TRY)
    await fail(world, driver, first)
    tables = ("experiments", "trials", "tasks", "allocations", "searches", "prefect_outbox")

    async def everything() -> list[Any]:
        return [await world.rows(f"SELECT * FROM {table} ORDER BY 1") for table in tables]

    before = await everything()
    whole = beginning.store_again

    async def interrupted(*args: Any) -> None:
        await whole(*args)
        raise ConnectionError("the service was killed here")

    monkeypatch.setattr(beginning, "store_again", interrupted)
    assert (await go_on(world, driver.experiment_id, "max_restarts: 3")).status_code == 500
    assert await everything() == before
    monkeypatch.undo()
    _, second = await again(world, driver.experiment_id)
    assert second.spec["task_id"] == f"{first.spec['task_id']}-1"


async def test_a_follower_of_the_trial_goes_on_to_its_next_task(world: World) -> None:
    driver, first = await begin(world, ONE_TRY)
    await say(first, "one\n")
    seen: list[str] = []
    heard = asyncio.Event()
    over = asyncio.Event()

    async def follow() -> None:
        state = world.app.state
        rows_of = follow_logs_of_trial(state.db, state.hub, first.id, LogFilter())
        async for rows in rows_of:
            seen.extend(row.log.decode() for row in rows)
            if "one\n" in seen and not heard.is_set():
                heard.set()
                # The end of a task becomes visible only together with the next task.
                await over.wait()

    following = asyncio.create_task(follow())
    await asyncio.wait_for(heard.wait(), TIMEOUT_S)
    await fail(world, driver, first)
    driver, second = await again(world, driver.experiment_id)
    over.set()
    await say(second, "two\n")

    async def has_two() -> bool:
        return "two\n" in seen

    await until_async("the line of the second task", has_two)
    await fail(world, driver, second)
    await asyncio.wait_for(following, TIMEOUT_S)
    assert [text for text in seen if text in SAID] == ["one\n", "two\n"]


async def test_its_process_may_change_its_predecessors_objects(world: World) -> None:
    driver, first = await begin(world, ONE_TRY)
    made = ok(
        await first.client.post("/api/v1/experiments", json={"config": CUSTOM, "activate": False})
    )["experiment"]["id"]
    path = f"/api/v1/experiments/{made}"
    # The right is stored from here on.
    ok(await first.client.patch(path, json={"notes": "one"}))
    body = {"uuid": CHECKPOINT, "resources": {}, "metadata": {"steps_completed": 8}}
    ok(await first.client.post("/api/v1/checkpoints", json=body))
    await fail(world, driver, first)
    _, second = await again(world, driver.experiment_id)
    ok(await second.client.patch(path, json={"notes": "two"}))
    change = {"checkpoint": {"uuid": CHECKPOINT, "metadata": {"a": "1"}}}
    answer = await second.client.post(f"/api/v1/checkpoints/{CHECKPOINT}/metadata", json=change)
    assert answer.status_code == 200, answer.text
    assert (await world.experiment(made))["submitted_by"] == second.spec["task_id"]


async def test_nothing_is_left_when_the_experiment_is_deleted(world: World) -> None:
    driver, first = await begin(world, ONE_TRY)
    path = f"/internal/v1/trials/{first.id}/run"
    ok(await world.agent.post(path, json={"flow_run_id": RUN}))
    for _ in range(2):
        await say(first, "one\n")
        await fail(world, driver, first)
        driver, first = await again(world, driver.experiment_id)
    await fail(world, driver, first)
    async with changing(world.app.state.db) as change:
        runs = await runs_of(change.conn, driver.experiment_id)
        assert [str(run) for run in runs].count(RUN) == 1
        await erase(change, driver.experiment_id)
    for table in ("tasks", "trials", "allocations", "legs", "task_logs", "prefect_outbox"):
        assert await world.rows(f"SELECT 1 FROM {table}") == [], table
