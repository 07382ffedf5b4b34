"""People's actions on runs in a real Prefect, and runs that are stuck in it."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.objects import State, StateType

from determined_service.base.settings import Settings
from determined_service.lifecycle.kinds.table import KINDS
from determined_service.loops.reconciler import Reconciler
from determined_service.prefect import watch as prefect_watch
from determined_service.prefect.gateway import PrefectGateway
from determined_service.prefect.mirrored_tasks import MirroredTask
from determined_service.prefect.watch import STUCK_PASS_S, PrefectWatch
from determined_service.scheduling.pools import PoolSchedulers
from determined_service.scheduling.reading import SnapshotReader
from tests.integration.control.prefect_server import with_prefect
from tests.integration.control.test_exits import begin
from tests.integration.control.test_prefect import create_trial_run, names, outbox_delivered
from tests.integration.control.test_search_path import SINGLE
from tests.integration.control.world import Driver, World, ok
from tests.waiting import until_async

Deployments = dict[str, uuid.UUID]


@pytest.fixture
def settings(settings: Settings, prefect_url: str) -> Settings:
    return with_prefect(settings, prefect_url)


def state(type_: StateType, name: str, message: str | None = None) -> State[Any]:
    return State(type=type_, name=name, message=message)


async def waiting_trial(
    world: World, client: PrefectClient, deployments: Deployments
) -> tuple[Driver, int, uuid.UUID]:
    """A trial that waits for slots, with its run in Prefect."""
    await world.register(slots=1)
    driver = Driver(world, await world.submit(SINGLE, activate=False))
    await world.rows("UPDATE slots SET enabled = false RETURNING 1")
    ok(await world.act(driver.experiment_id, "activate"))
    await driver.attach()
    trial_id = (await world.row("SELECT id FROM trials"))["id"]
    run = await create_trial_run(client, deployments["trial"])
    await tell_run(world, trial_id, run)
    await outbox_delivered(world)
    return driver, trial_id, run


async def tell_run(world: World, trial_id: int, run: uuid.UUID) -> None:
    body = {"flow_run_id": str(run)}
    ok(await world.agent.post(f"/internal/v1/trials/{trial_id}/run", json=body))


async def look(world: World, settings: Settings, stuck_run_s: float = 300.0) -> None:
    async with PrefectGateway(settings) as gateway:
        await PrefectWatch(
            world.app.state.db, gateway, stuck_run_s, SnapshotReader(PoolSchedulers(), 60.0)
        ).look()


async def test_cancelling_a_trial_that_waits_for_slots(
    world: World, client: PrefectClient, deployments: Deployments
) -> None:
    # The service's own reconciler has to notice: Prefect itself ends such a run.
    _, trial_id, run = await waiting_trial(world, client, deployments)
    answer = await client.set_flow_run_state(run, state(StateType.CANCELLING, "Cancelling"))
    assert answer.state is not None
    assert answer.state.type == StateType.CANCELLED

    async def state_of_trial() -> str:
        return str((await world.trial(trial_id))["state"])

    await until_async("the trial canceled", state_of_trial, equals="CANCELED")
    (row,) = await world.rows("SELECT state FROM allocations")
    assert row["state"] == "TERMINATED"


async def test_a_state_unknown_to_prefect_is_not_a_cancel(
    world: World, client: PrefectClient, deployments: Deployments, settings: Settings
) -> None:
    _, trial_id, run = await waiting_trial(world, client, deployments)
    entity = f"task:{(await world.trial(trial_id))['task_id']}"
    # Delivered only when the run's address is right again: as a trial that has just been continued.
    await world.rows("UPDATE tasks SET flow_run_id = NULL RETURNING 1")
    await world.rows(
        "INSERT INTO prefect_outbox (entity, kind, payload) VALUES (:e, 'set_state', :p) RETURNING 1",
        e=entity,
        p='{"type": "SCHEDULED", "name": "AwaitingSlots", "message": "continued"}',
    )
    await client.set_flow_run_state(run, state(StateType.CANCELLED, "Cancelled"), force=True)
    async with PrefectGateway(settings) as gateway:
        watch = PrefectWatch(
            world.app.state.db, gateway, 300.0, SnapshotReader(PoolSchedulers(), 60.0)
        )
        task_id = entity.removeprefix("task:")
        found = MirroredTask(run, entity, "ACTIVE", None, task_id, KINDS["TRIAL"])
        await watch._stop_if_cancelled(found)
        assert (await world.trial(trial_id))["state"] == "ACTIVE"
        await world.rows("DELETE FROM prefect_outbox RETURNING 1")
        await watch._stop_if_cancelled(found)
        assert (await world.trial(trial_id))["state"] == "CANCELED"


async def test_an_unknown_run_stuck_in_pending_is_ended(
    world: World, client: PrefectClient, deployments: Deployments, settings: Settings
) -> None:
    pending = state(StateType.PENDING, "InfrastructurePending")
    lost = await client.create_flow_run_from_deployment(deployments["experiment"], state=pending)
    cancelled = await client.create_flow_run_from_deployment(deployments["trial"])
    # Prefect itself would end a waiting run.
    for kind in (StateType.RUNNING, StateType.CANCELLING):
        await client.set_flow_run_state(cancelled.id, state(kind, kind.value.title()), force=True)
    flow = await client.create_flow_from_name("experiment")
    other = await client.create_deployment(flow_id=flow, name="somebody-elses")
    theirs = await client.create_flow_run_from_deployment(other, state=pending)
    await look(world, settings)
    # No run is stuck yet.
    assert (await client.read_flow_run(lost.id)).state_type == StateType.PENDING
    await look(world, settings, stuck_run_s=0.0)
    found = (await client.read_flow_run(lost.id)).state
    assert found is not None
    assert found.type == StateType.CRASHED
    assert "no process began it" in (found.message or "")
    found = (await client.read_flow_run(cancelled.id)).state
    assert found is not None
    assert found.type == StateType.CANCELLED
    assert "its process was not ended" in (found.message or "")
    # A deployment of another name is not ours, even if its flow has our name.
    assert (await client.read_flow_run(theirs.id)).state_type == StateType.PENDING
    await client.delete_deployment(other)


@pytest.mark.parametrize(
    "stuck", [(StateType.PENDING, "Pending"), (StateType.CANCELLING, "Cancelling")]
)
async def test_a_stuck_run_of_a_trial_that_has_ended_gets_its_end(
    world: World,
    client: PrefectClient,
    deployments: Deployments,
    settings: Settings,
    stuck: tuple[StateType, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Sooner than for a trial that goes on, because this state cannot be intended."""
    driver, trial = await begin(world)
    run = await create_trial_run(client, deployments["trial"])
    await tell_run(world, trial.id, run)
    ok(await trial.complete(8, 0.1))
    ok(await trial.exited())
    await outbox_delivered(world)
    await client.set_flow_run_state(run, state(*stuck), force=True)
    await driver.step()
    await world.rows("UPDATE experiments SET state = 'COMPLETED' RETURNING 1")
    monkeypatch.setattr(prefect_watch, "CANCEL_GRACE_S", 0.0)
    await look(world, settings, stuck_run_s=300.0)
    await outbox_delivered(world)
    assert (await names(client, run))[-1] == "Completed"


async def test_a_waiting_trial_whose_run_is_stuck_pending_waits_again(
    world: World, client: PrefectClient, deployments: Deployments, settings: Settings
) -> None:
    _, trial_id, run = await waiting_trial(world, client, deployments)
    # As when somebody pressed "Run now" and the worker died.
    await client.set_flow_run_state(run, state(StateType.PENDING, "Pending"), force=True)
    await look(world, settings, stuck_run_s=0.0)
    await outbox_delivered(world)
    found = await client.read_flow_run(run)
    assert found.state is not None
    assert found.state.name == "AwaitingSlots"
    assert found.state.message is not None
    assert found.state.message.startswith("wants 1 slot of resource pool 'default'")
    assert (await world.trial(trial_id))["state"] == "ACTIVE"


async def test_a_claimed_leg_whose_run_crashed_is_lost(
    world: World,
    client: PrefectClient,
    deployments: Deployments,
    settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _, trial_id, run = await waiting_trial(world, client, deployments)
    spec = ok(
        await world.agent.post(
            f"/internal/v1/trials/{trial_id}/claim",
            json={"flow_run_id": str(run), "agent_id": "prefect-worker@elsewhere"},
        )
    )
    path = f"/internal/v1/allocations/{spec['allocation_id']}/running"
    ok(await world.agent.post(path, json={"pid": 1}))
    await outbox_delivered(world)
    await world.rows("UPDATE allocations SET started_at = now() - interval '99 s' RETURNING 1")
    await look(world, settings)
    assert (await world.row("SELECT state FROM allocations"))["state"] == "RUNNING"
    crashed = state(StateType.CRASHED, "Crashed", "the worker's machine went away")
    await client.set_flow_run_state(run, crashed, force=True)
    await look(world, settings)
    # Its process may still be about to report its end.
    assert (await world.row("SELECT state FROM allocations"))["state"] == "RUNNING"
    monkeypatch.setattr(prefect_watch, "CLAIM_GRACE_S", 0.0)
    await look(world, settings)
    leg = await world.row("SELECT state, reason FROM legs")
    assert leg["state"] == "LOST"
    assert leg["reason"] == "its run in Prefect is Crashed: the worker's machine went away"
    again = await world.row("SELECT run_id FROM allocations WHERE state = 'REQUESTED'")
    assert again["run_id"] == 2
    assert (await world.trial(trial_id))["restarts"] == 0


async def test_passes_are_rare_enough(
    world: World, client: PrefectClient, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    async with PrefectGateway(settings) as gateway:
        real = gateway._find

        async def find(types: Any, **given: Any) -> Any:
            asked.extend(types)
            return await real(types, **given)

        monkeypatch.setattr(gateway, "_find", find)
        reconciler = Reconciler(world.app.state.db, gateway, 30.0)
        await reconciler.run_pass()
        await reconciler.run_pass()
    # Without an open experiment the service does not look for cancelled runs, and only rarely for stuck ones.
    assert asked == ["CANCELLING", "PENDING"]
    assert STUCK_PASS_S > 5


async def test_experiments_of_a_cancelled_flow_that_did_not_kill_them_are_killed(
    world: World, client: PrefectClient, deployments: Deployments, settings: Settings
) -> None:
    flow = await client.create_flow_from_name("a user's flow")
    theirs = await client.create_deployment(flow_id=flow, name="of-a-user")
    states = {}
    for type_ in (StateType.CANCELLED, StateType.CANCELLING, StateType.CRASHED):
        run = await client.create_flow_run_from_deployment(theirs)
        for kind in (StateType.RUNNING, type_):
            await client.set_flow_run_state(run.id, state(kind, kind.value.title()), force=True)
        experiment = await world.submit(SINGLE, activate=False)
        statement = "UPDATE experiments SET idempotency_key = :key WHERE id = :id RETURNING 1"
        await world.rows(statement, key=f"prefect/{run.id}/content/0", id=experiment)
        states[type_] = experiment
    await world.rows(
        "INSERT INTO tasks (id, kind, owner_id, state, idempotency_key) SELECT 'c', 'COMMAND', "
        "owner_id, 'ACTIVE', idempotency_key || '1' FROM experiments WHERE id = :id RETURNING 1",
        id=states[StateType.CANCELLED],
    )
    await look(world, settings)
    found = await world.rows("SELECT id, state FROM experiments")
    killed = {row["id"] for row in found if row["state"] != "PAUSED"}
    # A run that is being cancelled may still end itself; the crashed flow runs again.
    assert killed == {states[StateType.CANCELLED]}
    (command,) = await world.rows("SELECT state FROM tasks WHERE id = 'c'")
    assert command["state"] == "CANCELED"
    await client.delete_deployment(theirs)
