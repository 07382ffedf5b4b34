"""A request that has waited for a lock sees its holder's changes, also in other tables than the locked
one."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import httpx
import pytest
import sqlalchemy as sa

from determined.common.cluster_config import NotebookFiles, Quotas
from determined.common.wire import doors, shells
from determined.common.wire.doors import DoorState
from determined.common.wire.kinds import TaskKind
from determined_registry.database.tables import (
    agents,
    allocation_doors,
    allocation_ports,
    checkpoints,
    experiments,
    tasks,
    trials,
    users,
)
from determined_service.base.errors import Conflict
from determined_service.deleting import deletions, notebook_files
from determined_service.lifecycle import doors as entering
from determined_service.lifecycle import unmanaged
from determined_service.lifecycle.exits import ExitKind, LegExit
from determined_service.lifecycle.legs import end_leg
from determined_service.pipelines import rows as pipelining
from determined_service.state.change import Change, changing
from tests.integration.service_api.test_checkpoints import store
from tests.integration.service_api.test_models import waits_for_a_lock
from tests.integration.service_api.world import World

SECRET = "of-the-door"


async def behind(
    world: World,
    first: Callable[[Change], Awaitable[Any]],
    second: Callable[[], Awaitable[Any]],
) -> None:
    """``second`` begins when ``first`` has done its part, and before that is committed."""
    async with changing(world.db) as change:
        await first(change)
        waiting = asyncio.create_task(second())
        locked = asyncio.create_task(waits_for_a_lock(world))
        await asyncio.wait({waiting, locked}, return_when=asyncio.FIRST_COMPLETED)
        locked.cancel()
    await waiting


async def test_an_experiment_whose_first_trial_comes_is_not_abandoned(world: World) -> None:
    experiment_id = await world.experiment(unmanaged=True)
    await behind(
        world,
        lambda change: unmanaged.put_trial(change, experiment_id, {}, None, Quotas()),
        lambda: unmanaged.give_up_silent(world.db, 0),
    )
    (row,) = await world.rows(sa.select(experiments.c.state, experiments.c.reason))
    assert (row.state, row.reason) == ("ACTIVE", None)
    (row,) = await world.rows(sa.select(trials.c.state))
    assert row.state == "ACTIVE"


@pytest.mark.parametrize("opened_first", [True, False])
async def test_a_door_does_not_outlive_its_allocation(world: World, opened_first: bool) -> None:
    leg = await world.leg()
    given = {"allocation_id": leg.allocation_id, "node": 0, "agent_id": "agent-1"}
    async with world.db.tx() as conn:
        await conn.execute(sa.insert(allocation_doors).values(**given, secret=SECRET))
    state = DoorState(0, shells.hash_of(SECRET), True, "127.0.0.1", 4711)

    async def opens(change: Change) -> None:
        await entering.set_state(change, leg.allocation_id, state)

    async def ends(change: Change) -> None:
        await end_leg(change, leg.allocation_id, LegExit(ExitKind.EXITED, exit_code=0))

    async def open_late() -> None:
        with pytest.raises(Conflict):
            async with changing(world.db) as change:
                await opens(change)

    async def end_late() -> None:
        async with changing(world.db) as change:
            await ends(change)

    await behind(world, *((opens, end_late) if opened_first else (ends, open_late)))
    for table in (allocation_doors, allocation_ports):
        assert not await world.rows(sa.select(table)), f"{doors.port_name(0)} is left"


async def test_no_door_is_requested_of_an_ending_task(world: World) -> None:
    leg = await world.leg()
    async with world.db.tx() as conn:
        alive = {"session": uuid.uuid4(), "last_heartbeat": sa.func.now()}
        pool = {"resource_pool": "default", "host": "h", "version": "1", "slot_type": "cpu"}
        await conn.execute(sa.insert(agents).values(id="agent-1", **alive, **pool))

    async def ends(change: Change) -> None:
        await end_leg(change, leg.allocation_id, LegExit(ExitKind.EXITED, exit_code=0))

    async def ask() -> None:
        with pytest.raises(Conflict, match="does not run now"):
            async with changing(world.db) as change:
                await entering.ask(change, leg.task_id, 0, again=False)

    await behind(world, ends, ask)
    assert not await world.rows(sa.select(allocation_doors))


async def test_a_checkpoint_that_stays_is_not_the_latest_after_a_newer_one(
    world: World, user: httpx.AsyncClient
) -> None:
    """Files of the first checkpoint were chosen for deletion, and none was deleted: the trial's restore point
    is newer by then."""
    leg = await world.leg(config={"searcher": {"name": "single"}, "hyperparameters": {}})
    first, newer = uuid.UUID(await store(leg, 1)), uuid.uuid4()
    body = {"checkpointUuids": [str(first)], "checkpointGlobs": ["absent"]}
    deletion = (await user.post("/api/v1/checkpoints/rm", json=body)).json()["deletionId"]
    (row,) = await world.rows(sa.select(checkpoints.c.resources))

    async def report(change: Change) -> None:
        """As a process does: the trial's row, then the checkpoint's."""
        latest = sa.update(trials).where(trials.c.id == leg.trial_id)
        await change.conn.execute(latest.values(latest_checkpoint=newer))
        values = {
            "uuid": newer,
            "state": "COMPLETED",
            "task_id": leg.task_id,
            "experiment_id": leg.experiment_id,
            "trial_id": leg.trial_id,
            "steps_completed": 2,
        }
        await change.conn.execute(sa.insert(checkpoints).values(values))

    async def note() -> None:
        async with changing(world.db) as change:
            left = {first: dict(row.resources)}
            await deletions.note_deleted(change, deletion, left)

    await behind(world, report, note)
    (trial,) = await world.rows(sa.select(trials.c.latest_checkpoint))
    assert trial.latest_checkpoint == newer


async def test_a_repeated_report_does_not_bring_back_deleted_files(
    world: World, user: httpx.AsyncClient
) -> None:
    leg = await world.leg()
    name = await store(leg, 1)
    by_owner = replace(leg, client=user)

    async def delete(change: Change) -> None:
        owner = await change.conn.execute(sa.select(experiments.c.owner_id))
        uuids = {uuid.UUID(name)}
        await deletions.delete_checkpoints(change, uuids, owner_id=owner.scalar_one())

    await behind(world, delete, lambda: store(by_owner, 1, name))
    (trial,) = await world.rows(sa.select(trials.c.latest_checkpoint))
    assert trial.latest_checkpoint is None


async def test_files_of_a_notebook_stay_for_the_one_that_begins_with_them(world: World) -> None:
    async with world.db.tx() as conn:
        owner = (await conn.execute(sa.select(users.c.id).limit(1))).scalar_one()
        ended = {"id": "old", "kind": TaskKind.NOTEBOOK.name, "owner_id": owner, "config": {}}
        ended |= {"state": "COMPLETED", "end_time": sa.func.now() - sa.text("interval '9 days'")}
        await conn.execute(sa.insert(tasks).values(ended))
    kept: list[int] = []

    async def restore(change: Change) -> None:
        """As :meth:`Notebook.remember`, and then the new task."""
        of = sa.select(tasks.c.data).where(tasks.c.id == "old").with_for_update(read=True)
        await change.conn.execute(of)
        new = {"id": "new", "kind": TaskKind.NOTEBOOK.name, "owner_id": owner, "config": {}}
        new |= {"state": "ACTIVE", "data": {"restore_of": "old"}}
        await change.conn.execute(sa.insert(tasks).values(new))

    async def apply() -> None:
        async with changing(world.db) as change:
            kept.append(await notebook_files.apply_rule(change, NotebookFiles(days=1)))

    await behind(world, restore, apply)
    assert kept == [0]
    (row,) = await world.rows(sa.select(tasks.c.data).where(tasks.c.id == "old"))
    assert row.data is None


async def test_a_pipeline_sees_that_its_owner_was_deactivated(world: World) -> None:
    async with world.db.tx() as conn:
        owner = (
            await conn.execute(sa.select(users.c.id).where(users.c.username == "determined"))
        ).scalar_one()
        found = await conn.execute(
            sa.insert(pipelining.pipelines)
            .values(owner_id=owner, name="p", plan="{}", state="RUNNING")
            .returning(pipelining.p.id)
        )
        pipeline_id = found.scalar_one()
    seen: list[bool] = []

    async def deactivate(change: Change) -> None:
        await pipelining.lock(change.conn, pipeline_id)
        values = sa.update(users).where(users.c.id == owner).values(active=False)
        await change.conn.execute(values)

    async def look() -> None:
        async with changing(world.db) as change:
            seen.append((await pipelining.lock(change.conn, pipeline_id)).active)

    await behind(world, deactivate, look)
    assert seen == [False]
