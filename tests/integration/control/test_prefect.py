"""The calls that a real Prefect server gets, and their small number."""

from __future__ import annotations

import contextlib
import datetime
import json
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from asgi_lifespan import LifespanManager
from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.actions import WorkPoolCreate
from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterFlowRunId
from prefect.client.schemas.objects import FlowRun, State, StateType
from prefect.states import Scheduled

from determined.common.wire.prefect import FAR_FUTURE, awaiting_slots, waiting_run
from determined.common.wire.search import TrialRef
from determined_service.app import create_app
from determined_service.base.settings import Settings
from determined_service.loops.reconciler import Reconciler
from determined_service.prefect.gateway import PrefectGateway, RunGone
from determined_service.prefect.keeper import Keeper
from determined_service.prefect.pages.writing import RunPages
from determined_service.state import prefect_states
from determined_service.state.change import changing
from determined_tasks.trial_runs import TrialRunFactory
from tests.integration.conftest import AGENT_TOKEN, client_of
from tests.integration.control.prefect_server import with_prefect
from tests.integration.control.test_exits import begin
from tests.integration.control.test_search_path import SINGLE
from tests.integration.control.world import Driver, Trial, World, ok
from tests.waiting import TIMEOUT_S, until_async

RunOf = Callable[[uuid.UUID], Awaitable[FlowRun]]


@pytest.fixture
def settings(settings: Settings, prefect_url: str) -> Settings:
    return with_prefect(settings, prefect_url)


async def create_trial_run(
    client: PrefectClient, deployment: uuid.UUID, pool: str | None = None
) -> uuid.UUID:
    """A run that waits, as the experiment flow makes one."""
    body = waiting_run(
        flow_id=(await client.read_deployment(deployment)).flow_id,
        deployment_id=deployment,
        work_pool=pool,
        parameters={"trial_id": 1},
        name="trial 1",
        tags=["trial-1"],
        key=uuid.uuid4().hex,
    )
    return uuid.UUID((await client.request("POST", "/flow_runs/", json=body)).json()["id"])


async def names(client: PrefectClient, run_id: uuid.UUID) -> list[str]:
    states = await client.read_flow_run_states(run_id)
    return [state.name or "" for state in sorted(states, key=lambda state: state.timestamp)]


async def outbox_delivered(world: World, of: str = "") -> None:
    """Returns once Prefect has been told of everything, or of everything ``of`` an entity."""
    query = "SELECT entity, kind, last_error FROM prefect_outbox WHERE starts_with(entity, :of)"
    await until_async("an empty outbox", lambda: world.rows(query, of=of), equals=[])


async def experiment_run(world: World, experiment_id: int) -> uuid.UUID:
    async def known() -> Any:
        return (await world.experiment(experiment_id))["flow_run_id"]

    return uuid.UUID(str(await until_async("the run of the experiment", known)))


async def test_an_experiment_gets_its_run_and_agents_are_told_to_look(
    world: World, client: PrefectClient, deployments: dict[str, uuid.UUID]
) -> None:
    await world.register()
    experiment = await world.submit(SINGLE)

    async def told_to_look() -> int:
        return int((await world.work(5))["prefect_poll_seq"])

    await until_async("the agent told to look", told_to_look, equals=1)
    run = await client.read_flow_run(await experiment_run(world, experiment))
    assert run.name == f"scripted #{experiment}"
    assert run.parameters == {"experiment_id": experiment}
    assert run.deployment_id == deployments["experiment"]
    assert run.state is not None
    assert run.state.type == StateType.SCHEDULED
    assert sorted(run.tags) == ["determined", f"experiment-{experiment}", "owner-determined"]
    # Then its page. (Its trial has no run, because no flow makes one.)
    await outbox_delivered(world, "experiment:")


async def shown(client: PrefectClient, run_id: uuid.UUID) -> dict[str, Any]:
    """The data of the run's artifacts by their type; there is one of each."""
    of_run = ArtifactFilter(flow_run_id=ArtifactFilterFlowRunId(any_=[run_id]))
    found = await client.read_artifacts(artifact_filter=of_run)
    assert len({one.type for one in found}) == len(found)
    return {str(one.type): one.data for one in found}


async def report(world: World, trial: Trial, loss: float) -> None:
    """A validation after eight steps of the trial's present leg."""
    found = {"group": "validation", "steps_completed": 8, "metrics": {"loss": loss}}
    batch = {"run_id": trial.spec["run_id"], "reports": [found]}
    ok(await world.user.post(f"/api/v1/trials/{trial.id}/metrics/batch", json=batch))


async def test_pages_tell_the_end_of_an_experiment_and_its_trial(
    world: World, client: PrefectClient, deployments: dict[str, uuid.UUID]
) -> None:
    driver, trial = await begin(world, SINGLE.replace("name: scripted", "name: '[a](b)'"))
    run = await create_trial_run(client, deployments["trial"])
    path = f"/internal/v1/trials/{trial.id}/run"
    ok(await world.agent.post(path, json={"flow_run_id": str(run)}))
    lines = {"task_id": trial.spec["task_id"], "lines": [{"t": 1.0, "log": "``` it failed\n"}]}
    ok(await world.agent.post("/internal/v1/logs", json=lines))
    ok(await trial.exited(exit_code=1))
    trial = await world.launched()
    await outbox_delivered(world, "task:")
    # After a failure, before the next leg ends.
    assert "``` it failed" in (await shown(client, run))["markdown"]
    ok(await trial.started())
    await report(world, trial, 0.1)
    ok(await trial.complete(8, 0.1))
    ok(await trial.exited())
    assert await driver.drive() == "COMPLETED"
    await outbox_delivered(world)
    page = (await shown(client, run))["markdown"]
    assert "| validation | loss | 0\\.1 |" in page
    assert "**COMPLETED** after 8 steps, 1 restart" in page
    of_experiment = await shown(client, await experiment_run(world, driver.experiment_id))
    assert of_experiment["progress"] == 100
    assert "**COMPLETED**" in of_experiment["markdown"]
    assert r"\[a\]\(b\)" in of_experiment["markdown"]
    (row,) = json.loads(of_experiment["table"])
    assert (row["trial"], row["state"], row["loss"], row["steps"]) == (
        trial.id,
        "COMPLETED",
        "0.1",
        8,
    )


async def test_the_page_of_an_experiment_that_runs_is_written_now_and_then(
    world: World, client: PrefectClient, deployments: dict[str, uuid.UUID]
) -> None:
    _, trial = await begin(world)
    (row,) = await world.rows("SELECT id FROM experiments ORDER BY id DESC LIMIT 1")
    run = await experiment_run(world, row["id"])
    await outbox_delivered(world, "experiment:")
    state = world.app.state
    async with PrefectGateway(state.settings) as gateway:
        pages = RunPages(state.db, gateway, state.settings, pass_s=0)
        await report(world, trial, 0.25)

        async def told() -> bool:
            await pages.look()  # one call each time, for the reason that has been shown longest
            return "0\\.25" in (await shown(client, run))["markdown"]

        await until_async("the best metric on the page", told)

        # After its end the page changes only by the links to TensorBoards that show it.
        ok(await world.act(row["id"], "kill"))
        ok(await trial.exited(exit_code=None, exit_signal=9))
        board = ok(await world.user.post("/api/v1/tensorboards", json={"trialIds": [trial.id]}))
        link = f"/task-login?task={board['tensorboard']['id']}&next="

        async def linked() -> bool:
            await pages.look()
            return link in (await shown(client, run))["markdown"]

        await until_async("the TensorBoard on the page", linked)
        ok(await world.user.post(f"/api/v1/tensorboards/{board['tensorboard']['id']}/kill"))
        await until_async("no TensorBoard on the page", linked, equals=False)


async def test_a_missing_deployment_is_waited_for(world: World, client: PrefectClient) -> None:
    experiment = await world.submit(SINGLE)
    await until_async(
        "a first attempt",
        lambda: world.rows("SELECT 1 FROM kept_runs WHERE last_error IS NOT NULL"),
    )
    flow = await client.create_flow_from_name("experiment")
    deployment = await client.create_deployment(flow_id=flow, name="experiment")
    await experiment_run(world, experiment)
    await client.delete_deployment(deployment)


async def test_two_calls_tell_a_leg(
    world: World, client: PrefectClient, deployments: dict[str, uuid.UUID]
) -> None:
    _, trial = await begin(world)
    run = await create_trial_run(client, deployments["trial"])
    ok(
        await world.agent.post(
            f"/internal/v1/trials/{trial.id}/run", json={"flow_run_id": str(run)}
        )
    )
    await outbox_delivered(world)
    running = await client.read_flow_run(run)
    assert running.state is not None
    assert (running.state.name, running.run_count) == ("Running", 1)
    assert running.state.message == "leg 1 on agent a1"
    ok(await trial.complete(8, 0.1))
    ok(await trial.exited())
    await outbox_delivered(world)
    ended = await client.read_flow_run(run)
    assert ended.state is not None
    assert (ended.state.type, ended.run_count) == (StateType.COMPLETED, 1)
    assert await names(client, run) == ["AwaitingSlots", "Running", "Completed"]


async def test_states_of_a_run_that_comes_late_keep_their_order(
    world: World, client: PrefectClient, deployments: dict[str, uuid.UUID]
) -> None:
    _, trial = await begin(world)
    ok(await trial.exited(exit_code=1))
    second = await world.launched()
    ok(await second.started())
    ok(await second.exited(exit_code=1))
    run = await create_trial_run(client, deployments["trial"])
    ok(
        await world.agent.post(
            f"/internal/v1/trials/{trial.id}/run", json={"flow_run_id": str(run)}
        )
    )
    await outbox_delivered(world)
    ended = await client.read_flow_run(run)
    assert ended.state is not None
    assert (ended.state.type, ended.run_count) == (StateType.FAILED, 2)
    assert ended.state.message == "process exited with code 1"


async def test_pause_and_requeue_are_shown_while_they_last(
    world: World, client: PrefectClient, deployments: dict[str, uuid.UUID]
) -> None:
    driver, trial = await begin(world)
    run = await create_trial_run(client, deployments["trial"])
    ok(
        await world.agent.post(
            f"/internal/v1/trials/{trial.id}/run", json={"flow_run_id": str(run)}
        )
    )
    ok(await world.act(driver.experiment_id, "pause"))
    await trial.acknowledge()
    ok(await trial.exited())
    await outbox_delivered(world)
    assert await names(client, run) == ["AwaitingSlots", "Running", "Paused"]
    await world.register(slots=0)
    ok(await world.act(driver.experiment_id, "activate"))
    await outbox_delivered(world)
    waiting = await client.read_flow_run(run)
    assert waiting.state is not None
    assert waiting.state.name == "AwaitingSlots"
    # No worker may take it from the queue.
    assert waiting.next_scheduled_start_time == FAR_FUTURE
    ok(await world.act(driver.experiment_id, "kill"))
    await outbox_delivered(world)
    assert (await names(client, run))[-1] == "Cancelled"


async def test_a_delivery_whose_answer_was_lost_is_not_a_second_leg(
    world: World, client: PrefectClient, deployments: dict[str, uuid.UUID]
) -> None:
    _, trial = await begin(world)
    run = await create_trial_run(client, deployments["trial"])
    body = {"flow_run_id": str(run)}
    ok(await world.agent.post(f"/internal/v1/trials/{trial.id}/run", json=body))
    await outbox_delivered(world)
    await world.rows(
        "INSERT INTO prefect_outbox (entity, kind, payload, attempts)"
        " VALUES (:e, 'set_state', :p, 1) RETURNING pg_notify('determined', 'outbox')",
        e=trial.entity,
        p='{"type": "RUNNING", "name": "Running", "message": "leg 1 on agent a1"}',
    )
    await outbox_delivered(world)
    assert (await client.read_flow_run(run)).run_count == 1


async def test_a_deleted_run_holds_nothing_up(
    world: World, client: PrefectClient, deployments: dict[str, uuid.UUID]
) -> None:
    _, trial = await begin(world)
    run = await create_trial_run(client, deployments["trial"])
    await client.delete_flow_run(run)
    ok(
        await world.agent.post(
            f"/internal/v1/trials/{trial.id}/run", json={"flow_run_id": str(run)}
        )
    )
    await outbox_delivered(world)


async def silent(world: World, seconds: int) -> None:
    """Nothing was heard of the driver for so long."""
    await world.rows(
        f"UPDATE kept_runs SET seen_at = now() - interval '{seconds} s', look_at = now() RETURNING 1"
    )


async def test_a_crashed_driver_is_started_again(
    world: World,
    client: PrefectClient,
    deployments: dict[str, uuid.UUID],
    settings: Settings,
) -> None:
    driver = Driver(world, await world.submit(SINGLE))
    run = await experiment_run(world, driver.experiment_id)
    await driver.attach()
    crashed: State[Any] = State(type=StateType.CRASHED, name="Crashed", message="killed")
    await client.set_flow_run_state(run, crashed, force=True)
    async with PrefectGateway(settings) as gateway:
        keeper = Keeper(world.app.state.db, gateway, settings)
        await keeper.run_pass()
        assert (await names(client, run))[-1] == "Crashed"  # it was heard of just now
        await silent(world, 30)
        await keeper.run_pass()
        await keeper.run_pass()
    found = await client.read_flow_run(run)
    assert found.state is not None
    assert found.state.name == "Scheduled"
    assert found.next_scheduled_start_time is not None
    assert found.next_scheduled_start_time < datetime.datetime.now(datetime.UTC)
    assert (await world.row("SELECT prefect_poll_seq AS n FROM pools"))["n"] >= 2


async def test_cancelling_in_prefects_ui_stops_the_trial_or_all(
    world: World,
    client: PrefectClient,
    deployments: dict[str, uuid.UUID],
    settings: Settings,
) -> None:
    driver, trial = await begin(world)
    run = await create_trial_run(client, deployments["trial"])
    ok(
        await world.agent.post(
            f"/internal/v1/trials/{trial.id}/run", json={"flow_run_id": str(run)}
        )
    )
    await outbox_delivered(world)
    cancelling: State[Any] = State(type=StateType.CANCELLING, name="Cancelling")
    await client.set_flow_run_state(run, cancelling, force=True)
    async with PrefectGateway(settings) as gateway:
        await Reconciler(world.app.state.db, gateway, 30.0).run_pass()
        assert (await world.work())["kill"] == [trial.allocation_id]
        ok(await trial.exited(exit_code=None, signal=9))
        await outbox_delivered(world)
        assert (await names(client, run))[-1] == "Cancelled"
        whole = await experiment_run(world, driver.experiment_id)
        # A run without a process would be cancelled by Prefect itself.
        await client.update_flow_run(whole, infrastructure_pid="1")
        running: State[Any] = State(type=StateType.RUNNING, name="Running")
        await client.set_flow_run_state(whole, running, force=True)
        await client.set_flow_run_state(whole, cancelling, force=True)
        await Reconciler(world.app.state.db, gateway, 30.0).run_pass()

    async def state_of_all() -> str:
        return str((await world.experiment(driver.experiment_id))["state"])

    await until_async("the experiment canceled", state_of_all, equals="CANCELED")


async def test_runs_of_dead_drivers_are_settled(
    world: World,
    client: PrefectClient,
    deployments: dict[str, uuid.UUID],
    settings: Settings,
) -> None:
    driver = Driver(world, await world.submit(SINGLE))
    run = await experiment_run(world, driver.experiment_id)
    await driver.attach()
    ok(await world.act(driver.experiment_id, "kill"))
    running: State[Any] = State(type=StateType.RUNNING, name="Running")
    await client.set_flow_run_state(run, running, force=True)
    crashed: State[Any] = State(type=StateType.CRASHED, name="Crashed")
    await client.set_flow_run_state(run, crashed, force=True)
    await silent(world, 70)
    async with PrefectGateway(settings) as gateway:
        keeper = Keeper(world.app.state.db, gateway, settings)
        # As long as a trial has no run, somebody has to make it.
        await keeper.run_pass()
        trials = await world.rows(
            "SELECT id FROM tasks WHERE kind = 'TRIAL' AND flow_run_id IS NULL"
        )
        if trials:
            found = await gateway.read_state(run)
            assert (found.type, found.message) == (
                "SCHEDULED",
                "started again: runs of its trials are missing",
            )
        await world.rows("UPDATE tasks SET flow_run_id = gen_random_uuid() RETURNING 1")
        await silent(world, 70)
        await keeper.run_pass()

        # The trial's run does not exist, so no message is sent.
        waiting = "SELECT kind FROM prefect_outbox WHERE entity LIKE 'experiment:%'"
        await until_async("Prefect told of the end", lambda: world.rows(waiting), equals=[])
        assert (await names(client, run))[-1] == "Cancelled"
        with pytest.raises(RunGone):
            await gateway.read_state(uuid.uuid4())


@contextlib.asynccontextmanager
async def served(settings: Settings) -> AsyncIterator[World]:
    """A service with these settings."""
    app = create_app(settings)
    async with (
        LifespanManager(app, startup_timeout=TIMEOUT_S, shutdown_timeout=TIMEOUT_S),
        client_of(app, AGENT_TOKEN) as agent,
    ):
        world = World(app, agent, agent)
        yield world
        await world.close()


async def test_prefect_away_delays_only_its_own_states(
    settings: Settings, client: PrefectClient, deployments: dict[str, uuid.UUID]
) -> None:
    away = settings.model_copy(update={"prefect_api_url": "http://127.0.0.1:9/api"})
    async with served(away) as world:
        _, trial = await begin(world)
        await trial.complete(8, 0.1)
        ok(await trial.exited())
        assert (await world.trial(trial.id))["state"] == "COMPLETED"
        waiting = "SELECT 1 FROM kept_runs WHERE flow_run_id IS NULL AND last_error <> ''"
        await until_async("a failed attempt", lambda: world.rows(waiting))
        experiment = int((await world.row("SELECT id FROM experiments"))["id"])
    async with served(settings) as world:
        await experiment_run(world, experiment)


async def test_no_worker_takes_a_waiting_run_until_a_user_schedules_it(
    world: World, client: PrefectClient, deployments: dict[str, uuid.UUID]
) -> None:
    """Neither when it is new nor when its reason was told; its date is the time when it was made."""
    pool = f"pool-{uuid.uuid4().hex[:8]}"
    await client.create_work_pool(WorkPoolCreate(name=pool, type="process"))

    async def offered() -> list[uuid.UUID]:
        soon = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=30)
        found = await client.get_scheduled_flow_runs_for_work_pool(pool, scheduled_before=soon)
        return [one.flow_run.id for one in found]

    began = datetime.datetime.now(datetime.UTC)
    new, told, untold = [
        await create_trial_run(client, deployments["trial"], pool) for _ in range(3)
    ]
    assert await offered() == []
    async with PrefectGateway(world.app.state.settings) as gateway:
        name = awaiting_slots("needs 4, 1 free; 2 jobs ahead")
        await gateway.set_state(told, "SCHEDULED", name, "resource pool 'a': needs 4, 1 free")
        assert await offered() == []
        for run_id, shown in ((new, "AwaitingSlots"), (told, name)):
            run = await client.read_flow_run(run_id)
            assert run.state is not None
            assert (run.state.type, run.state.name) == (StateType.SCHEDULED, shown)
            assert (run.work_pool_name, run.work_queue_name) == (pool, "default")
            assert run.expected_start_time is not None
            assert began <= run.expected_start_time <= datetime.datetime.now(datetime.UTC)
            assert run.deployment_id == deployments["trial"]
        # Somebody schedules them on Prefect's page.
        await client.set_flow_run_state(told, Scheduled())
        assert await offered() == [told]
        await client.set_flow_run_state(untold, Scheduled())
        await gateway.let_workers_take(untold)
        assert set(await offered()) == {told, untold}
        with pytest.raises(RunGone):
            await gateway.let_workers_take(uuid.uuid4())
    await client.delete_work_pool(pool)


async def test_a_reason_for_waiting_does_not_change_a_run_scheduled_meanwhile(
    world: World, client: PrefectClient, deployments: dict[str, uuid.UUID]
) -> None:
    """The reason may be written before the run exists, and is delivered once it does."""
    for scheduled in (True, False):
        driver = await world.started(SINGLE)
        trial = await world.row(
            "SELECT id, task_id FROM trials WHERE experiment_id = :id", id=driver.experiment_id
        )
        async with changing(world.app.state.db) as change:
            prefect_states.show_reason(change, trial["task_id"], "needs 1, 0 free", "needs 1")
        run = await create_trial_run(client, deployments["trial"])
        if scheduled:
            await client.set_flow_run_state(run, Scheduled())
        body = {"flow_run_id": str(run)}
        ok(await world.agent.post(f"/internal/v1/trials/{trial['id']}/run", json=body))
        await outbox_delivered(world, f"task:{trial['task_id']}")
        told = await names(client, run)
        if scheduled:
            assert told == ["AwaitingSlots", "Scheduled"]
        else:
            # The leader may have told another reason since.
            assert told[:2] == ["AwaitingSlots", "AwaitingSlots: needs 1"]


async def test_the_runs_of_trials_stand_in_the_work_pool_of_their_resource_pool(
    client: PrefectClient, deployments: dict[str, uuid.UUID]
) -> None:
    pool = f"pool-{uuid.uuid4().hex[:8]}"
    await client.create_work_pool(WorkPoolCreate(name=pool, type="process"))
    parent = await client.create_flow_run_from_deployment(deployments["experiment"])
    factory = await TrialRunFactory.open(client, experiment_id=7, flow_run_id=parent.id)
    made = await factory.create(TrialRef(1, "a", "trial 1", resource_pool=pool))
    again = await factory.create(TrialRef(1, "a", "trial 1", resource_pool=pool))
    assert made == again
    run = await client.read_flow_run(made)
    assert (run.work_pool_name, run.parameters) == (pool, {"trial_id": 1})
    assert run.parent_task_run_id is not None
    assert {"experiment-7", "trial-1"} <= set(run.tags)
    # A pool that Prefect does not know: where its deployment stands.
    elsewhere = await factory.create(TrialRef(2, "b", "trial 2", resource_pool="nowhere"))
    assert (await client.read_flow_run(elsewhere)).work_pool_name is None
    # An agent of a release that did not say the pool.
    older = await factory.create(TrialRef(3, "c"))
    assert (await client.read_flow_run(older)).work_pool_name is None
    await client.delete_work_pool(pool)
