"""Prefect is told why a run waits for slots, seldom."""

from __future__ import annotations

import datetime
import uuid
from typing import Any

from determined_service.prefect.gateway import RunState
from determined_service.prefect.waiting_runs import WaitingRuns
from determined_service.scheduling.queue import Queue
from tests.integration.control.test_preemption import run, single
from tests.integration.control.test_search_path import SINGLE
from tests.integration.control.world import World, ok


class Prefect:
    """Answers what state each run is in: ``state``, by name."""

    state = "AwaitingSlots"

    async def read_state(self, run_id: uuid.UUID) -> RunState:
        return RunState("SCHEDULED", self.state, None, datetime.datetime.now(datetime.UTC), 0)


_PREFECT: Any = Prefect()


async def messages(world: World, task_id: str) -> list[str]:
    rows = await world.rows(
        "SELECT payload FROM prefect_outbox WHERE entity = :e ORDER BY id", e=f"task:{task_id}"
    )
    assert {row["payload"]["name"] for row in rows} <= {"AwaitingSlots"}
    return [row["payload"]["message"] for row in rows]


async def test_a_message_for_each_kind_of_reason(world: World) -> None:
    driver = await world.started(single(42, slots=2))
    task = (await world.row("SELECT task_id FROM trials"))["task_id"]
    db, snapshots = world.app.state.db, world.app.state.snapshots
    waiting_runs = WaitingRuns(db, _PREFECT, Queue(db, snapshots), patience_s=0, pass_s=0)

    async def told() -> list[str]:
        waiting_runs._queue._kept_until = 0.0
        await waiting_runs.look()
        return await messages(world, task)

    nobody = "resource pool 'default': needs 2, has no agent"
    assert await told() == [nobody]
    assert await told() == [nobody]
    await world.register(slots=2)
    trial = await world.launched()
    ok(await trial.started())
    assert await world.told_prefect(trial.entity) == ["AwaitingSlots", "Pending", "Running"]
    other = await world.started(SINGLE)
    task = (
        await world.row(
            "SELECT task_id FROM trials WHERE experiment_id = :id", id=other.experiment_id
        )
    )["task_id"]
    third = await world.started(SINGLE)
    assert await told() == ["resource pool 'default': needs 1, 0 free"]
    task = (
        await world.row(
            "SELECT task_id FROM trials WHERE experiment_id = :id", id=third.experiment_id
        )
    )["task_id"]
    behind = "resource pool 'default': needs 1, 0 free; 1 job ahead"
    assert await told() == [behind]
    ok(await world.act(other.experiment_id, "kill"))
    # Now it is the first in line, which is another kind of reason.
    assert await told() == [behind, "resource pool 'default': needs 1, 0 free"]
    assert driver.experiment_id


async def test_what_waits_a_short_while_costs_prefect_nothing(world: World) -> None:
    await world.register(slots=1)
    await run(world, SINGLE)
    await world.started(SINGLE)
    db, snapshots = world.app.state.db, world.app.state.snapshots
    waiting_runs = WaitingRuns(db, _PREFECT, Queue(db, snapshots), patience_s=3600, pass_s=0)
    before: Any = await world.rows("SELECT id FROM prefect_outbox ORDER BY id")
    await waiting_runs.look()
    assert await world.rows("SELECT id FROM prefect_outbox ORDER BY id") == before


async def test_a_run_that_somebody_schedules_is_left_alone(world: World) -> None:
    await world.started(single(42, slots=2))
    trial = await world.row("SELECT id, task_id FROM trials")
    run_id = str(uuid.uuid4())
    path = f"/internal/v1/trials/{trial['id']}/run"
    ok(await world.agent.post(path, json={"flow_run_id": run_id}))
    db, snapshots = world.app.state.db, world.app.state.snapshots
    prefect: Any = Prefect()
    waiting_runs = WaitingRuns(db, prefect, Queue(db, snapshots), patience_s=0, pass_s=0)
    before = await messages(world, trial["task_id"])
    prefect.state = "Scheduled"
    await waiting_runs.look()
    assert await messages(world, trial["task_id"]) == before
    prefect.state = "AwaitingSlots"
    await waiting_runs.look()
    nobody = "resource pool 'default': needs 2, has no agent"
    assert await messages(world, trial["task_id"]) == [*before, nobody]
