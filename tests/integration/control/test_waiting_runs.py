"""The service updates the reason of a waiting run in Prefect, rarely."""

from __future__ import annotations

import datetime
import uuid
from typing import Any

from determined_service.prefect.gateway import RunState
from determined_service.prefect.waiting_runs import EXACT, WaitingRuns, substance
from determined_service.scheduling.queue import Queue
from determined_service.scheduling.reasons import Behind
from determined_service.scheduling.scheduler import Waiting
from determined_service.scheduling.snapshot import Request
from tests.integration.control.test_preemption import run, single
from tests.integration.control.test_search_path import SINGLE
from tests.integration.control.world import World, ok


class Prefect:
    """Answers what state each run is in: ``state``, by name. ``left``: runs that workers may take."""

    state = "AwaitingSlots"

    def __init__(self) -> None:
        self.left: list[uuid.UUID] = []

    async def let_workers_take(self, run_id: uuid.UUID) -> None:
        self.left.append(run_id)

    async def read_state(self, run_id: uuid.UUID) -> RunState:
        return RunState("SCHEDULED", self.state, None, datetime.datetime.now(datetime.UTC), 0)


_PREFECT: Any = Prefect()


async def messages(world: World, task_id: str) -> list[str]:
    rows = await world.rows(
        "SELECT payload FROM prefect_outbox WHERE entity = :e ORDER BY id", e=f"task:{task_id}"
    )
    for row in rows:
        # The reason is in the name, without the pool, whose page it is.
        name, message = row["payload"]["name"], row["payload"]["message"]
        assert name == message.replace("resource pool 'default'", "AwaitingSlots")
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
    first, *then = await world.told_prefect(trial.entity)
    assert (first, then) == ("AwaitingSlots: needs 2, has no agent", ["Pending", "Running"])
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


async def test_short_waits_cost_prefect_nothing(world: World) -> None:
    await world.register(slots=1)
    await run(world, SINGLE)
    await world.started(SINGLE)
    db, snapshots = world.app.state.db, world.app.state.snapshots
    waiting_runs = WaitingRuns(db, _PREFECT, Queue(db, snapshots), patience_s=3600, pass_s=0)
    before: Any = await world.rows("SELECT id FROM prefect_outbox ORDER BY id")
    await waiting_runs.look()
    assert await world.rows("SELECT id FROM prefect_outbox ORDER BY id") == before


async def test_a_run_that_a_user_schedules_is_left_alone(world: World) -> None:
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
    await waiting_runs.look()
    assert await messages(world, trial["task_id"]) == before
    # It was made so that no worker takes it.
    assert [str(one) for one in prefect.left] == [run_id]
    prefect.state = "AwaitingSlots: needs 2, 1 free"
    await waiting_runs.look()
    nobody = "resource pool 'default': needs 2, has no agent"
    assert await messages(world, trial["task_id"]) == [*before, nobody]


async def test_numbers_are_told_when_they_matter_and_more_and_more_seldom(world: World) -> None:
    await world.register(slots=4)
    running = [await run(world, SINGLE) for _ in range(3)]
    first = await world.started(single(42, slots=4))
    task = (
        await world.row(
            "SELECT task_id FROM trials WHERE experiment_id = :id", id=first.experiment_id
        )
    )["task_id"]
    db, snapshots = world.app.state.db, world.app.state.snapshots
    waiting_runs = WaitingRuns(db, _PREFECT, Queue(db, snapshots), patience_s=0, pass_s=0)

    async def told() -> int:
        waiting_runs._queue._kept_until = 0.0
        await waiting_runs.look()
        return len(await messages(world, task))

    assert (await told(), await told()) == (1, 1)
    # First in line: each number counts.
    ok(await running[0][1].exited())
    assert await told() == 2
    # The time between two updates grows.
    waiting_runs._pass_s = 1000.0
    waiting_runs._next_pass = 0.0
    ok(await running[1][1].exited())
    assert await told() == 2
    (was,) = [one for one in waiting_runs._told.values() if one.times == 2]
    was.at -= 61.0
    waiting_runs._next_pass = 0.0
    assert await told() == 3


def test_far_behind_the_number_is_told_when_it_has_halved() -> None:
    request = Request("r", "default", 1, group=1)
    waiting = Waiting(request, Behind(1, request, 0, 8))
    steps = [substance(waiting, ahead) for ahead in range(10_000)]
    assert len(set(steps)) == EXACT + 1 + 12
    assert len(set(steps[: EXACT + 1])) == EXACT + 1
    # Free slots do not matter to it.
    assert substance(Waiting(request, Behind(1, request, 3, 8)), 7) == steps[7]
