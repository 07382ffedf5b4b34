"""A user who begins small work, ends it and begins again, or whose trials report without end. Gains: a full
database."""

from __future__ import annotations

import datetime
import json
import uuid
from typing import Any, cast
from uuid import UUID

import httpx
import pytest
import sqlalchemy as sa
from fastapi import FastAPI

from determined_registry.database.tables import (
    experiments,
    metric_sizes,
    metrics,
    model_definitions,
    task_logs,
    tasks,
    trials,
)
from determined_service.deleting.erasure import erase
from determined_service.ingest import metric_room
from determined_service.loops import ended_tasks
from determined_service.prefect.gateway import PrefectGateway
from determined_service.state.change import changing
from tests.integration.quotas import put_quotas
from tests.integration.service_api.test_quotas import (
    launch,
    launch_with,
    new_id,
    refused,
    submission,
    submit,
)
from tests.integration.service_api.test_unmanaged import say
from tests.integration.service_api.world import World, report


async def _ended(user: httpx.AsyncClient) -> int:
    experiment_id = new_id(await submit(user))
    assert (await user.post(f"/api/v1/experiments/{experiment_id}/kill")).status_code == 200
    return experiment_id


async def test_experiments_that_have_ended_count(
    service_app: FastAPI, user: httpx.AsyncClient, world: World
) -> None:
    await put_quotas(service_app, experiments=1, stored_experiments=3)
    first, *_ = [await _ended(user) for _ in range(3)]
    said = (
        "user determined would have 4 experiments in the database, ended ones too, and at most 3 are allowed "
        "(quotas.stored_experiments)",
        "det experiment delete ID",
    )
    refused(await submit(user), *said)
    path = "/api/v1/experiments/by-external-id/another"
    config = submission()["config"]
    refused(await user.put(path, json={"config": config, "unmanaged": True}), *said)
    assert len(await world.rows(sa.select(experiments.c.id))) == 3
    # What exists goes on, and a deletion frees a place.
    again = await user.post("/api/v1/experiments/continue", json={"id": first})
    assert new_id(again) == first
    assert (await user.post(f"/api/v1/experiments/{first}/kill")).status_code == 200
    async with changing(world.db) as change:
        await erase(change, first)
    await _ended(user)


async def test_trials_that_have_ended_count(
    service_app: FastAPI, user: httpx.AsyncClient, world: World
) -> None:
    await put_quotas(service_app, trials=4, stored_trials=4)
    first = new_id(await submit(user, trials=2))
    assert (await user.post(f"/api/v1/experiments/{first}/kill")).status_code == 200
    config = submission()["config"]
    path = "/api/v1/experiments/by-external-id/e"
    made = await user.put(path, json={"config": config, "unmanaged": True})
    experiment_id = new_id(made)

    async def begin() -> httpx.Response:
        new = {"experimentId": experiment_id, "hparams": {}, "unmanaged": True}
        body = {"createTrialRequest": new, "externalTrialId": str(uuid.uuid4())}
        return await user.put("/api/v1/trials", json=body)

    for _ in range(2):
        answer = await begin()
        assert answer.status_code == 200, answer.text
        await say(user, answer.json()["trial"]["id"], "COMPLETED")
    said = (
        "5 trials in the database, ended ones too, and at most 4 are allowed (quotas.stored_trials)"
    )
    refused(await begin(), said, "det experiment delete ID")
    refused(await submit(user), said)
    assert len(await world.rows(sa.select(trials.c.id))) == 4
    async with changing(world.db) as change:
        await erase(change, first)
    assert (await begin()).status_code == 200


@pytest.mark.parametrize("stored", [3, 4])
async def test_trials_of_others_do_not_count(
    service_app: FastAPI,
    agent: httpx.AsyncClient,
    user: httpx.AsyncClient,
    world: World,
    stored: int,
) -> None:
    """Above 4 trials in the whole cluster each user's are counted, and below it no user can be above it."""
    made = await agent.post("/api/v1/users", json={"user": {"username": "eve"}, "password": "p"})
    for _ in range(stored):
        await world.leg(owner_id=made.json()["user"]["id"])
    await put_quotas(service_app, stored_trials=4)
    new_id(await submit(user, trials=2))


async def test_context_directories_of_ended_commands_count(
    service_app: FastAPI, user: httpx.AsyncClient, world: World
) -> None:
    """A directory stays with its command, which can be forked."""

    async def stored() -> int:
        ((found,),) = await world.rows(sa.select(sa.func.sum(model_definitions.c.size)))
        return int(found)

    answer = await launch_with(user, b"first")
    assert answer.status_code == 200, answer.text
    ended = await user.post(f"/api/v1/commands/{answer.json()['command']['id']}/kill")
    assert ended.status_code == 200, ended.text
    one = await stored()
    await put_quotas(service_app, model_definition_bytes=one + 20)
    said = f"at most {one + 20} are allowed (quotas.model_definition_bytes)"
    refused(await launch_with(user, b"other"), said, ".detignore")
    assert await stored() == one
    assert (await launch_with(user, b"first")).status_code == 200


class _Prefect:
    """Knows which runs were deleted."""

    def __init__(self) -> None:
        self.deleted: list[UUID] = []

    async def delete_run(self, run_id: UUID) -> None:
        self.deleted.append(run_id)


async def _launched(user: httpx.AsyncClient, kind: str = "command") -> str:
    """An ended task's id."""
    config = {"entrypoint": ["true"], "resources": {"slots": 0}} if kind == "command" else {}
    answer = await user.post(f"/api/v1/{kind}s", json={"config": config})
    assert answer.status_code == 200, answer.text
    task_id: str = answer.json()[kind]["id"]
    ended = await user.post(f"/api/v1/{kind}s/{task_id}/kill")
    assert ended.status_code == 200, ended.text
    return task_id


async def _age(world: World, days: float, **ended: str) -> None:
    """The tasks ``ended`` ended so many days ago, and have a run in Prefect."""
    moment = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=days)
    async with world.db.tx() as conn:
        for task_id in ended.values():
            await conn.execute(
                sa.update(tasks)
                .where(tasks.c.id == task_id)
                .values(end_time=moment, flow_run_id=uuid.uuid4())
            )


async def test_tasks_that_have_ended_count_and_go_after_30_days(
    service_app: FastAPI, user: httpx.AsyncClient, agent: httpx.AsyncClient, world: World
) -> None:
    await put_quotas(service_app, stored_tasks=4)
    first, second, third = [await _launched(user) for _ in range(3)]
    notebook = await _launched(user, "notebook")
    said = (
        "user determined would have 5 commands, notebooks, shells and other tasks in the database, ended "
        "ones too, and at most 4 are allowed (quotas.stored_tasks)",
        "30 days ago",
    )
    refused(await launch(user), *said)
    # Nothing has ended long enough ago: neither the quota nor the age alone deletes anything.
    prefect = cast("PrefectGateway", _Prefect())
    await _age(world, 29, first=first, second=second, third=third)
    assert await ended_tasks.trim(world.db, prefect, 4) == 0
    await _age(world, 31, second=second, third=third)
    assert await ended_tasks.trim(world.db, prefect, 100) == 0
    # Its process ran, and nobody knows what files it has left.
    await _age(world, 40, notebook=notebook)
    async with world.db.tx() as conn:
        await conn.execute(
            sa.text("UPDATE allocations SET started_at = now() WHERE task_id = :id"),
            {"id": notebook},
        )
        await conn.execute(
            sa.insert(task_logs).values(task_id=second, log=b"line", timestamp=sa.func.now())
        )
    ((run,),) = await world.rows(sa.select(tasks.c.flow_run_id).where(tasks.c.id == second))
    await _age(world, 32, third=third)
    ((other,),) = await world.rows(sa.select(tasks.c.flow_run_id).where(tasks.c.id == third))
    refused(await launch(user), *said)
    assert await ended_tasks.trim(world.db, prefect, 4) == 1
    assert cast("Any", prefect).deleted == [other]
    assert {row.id for row in await world.rows(sa.select(tasks.c.id))} == {first, second, notebook}
    assert (await launch(user)).status_code == 200
    assert await ended_tasks.trim(world.db, prefect, 4) == 1
    assert cast("Any", prefect).deleted == [other, run]
    assert await world.rows(sa.select(task_logs.c.id).where(task_logs.c.task_id == second)) == []


async def test_metrics_count(
    service_app: FastAPI,
    user: httpx.AsyncClient,
    world: World,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(metric_room, "REMEMBER_S", -1.0)
    leg, other = await world.leg(), await world.leg()
    # No metrics, but what each batch of data gave.
    large = {**report(1), "batch_metrics": [{"loss": 0.5}] * 1000}
    await leg.store(large)
    await other.store(report(1, loss=1.0))
    sizes = {row.trial_id: row.bytes for row in await world.rows(sa.select(metric_sizes))}
    assert 1000 * len(json.dumps({"loss": 0.5})) < sizes[leg.trial_id] < 20_000
    assert 100 < sizes[other.trial_id] < 300
    total = sum(sizes.values())
    # The owner begins nothing more, and what runs goes on, until there is twice as much.
    await put_quotas(service_app, metric_bytes=total - 1)
    said = f"user determined would have {total} bytes of metrics in the database", "metric_bytes"
    refused(await submit(user), *said)
    path = "/api/v1/experiments/by-external-id/e"
    config = submission()["config"]
    refused(await user.put(path, json={"config": config, "unmanaged": True}), *said)
    await other.store(report(2, loss=1.0))
    await put_quotas(service_app, metric_bytes=total // 2)
    count = len(await world.rows(sa.select(metrics.c.id)))
    answer = await other.report(report(3, loss=1.0))
    refused(answer, "the metrics of user determined take", "(2 times quotas.metric_bytes)")
    assert len(await world.rows(sa.select(metrics.c.id))) == count
    # A deletion makes room.
    async with changing(world.db) as change:
        await erase(change, leg.experiment_id)
    await other.store(report(3, loss=1.0))
    new_id(await submit(user))


async def test_metrics_are_added_up_between_two_looks(
    service_app: FastAPI, world: World, agent: httpx.AsyncClient
) -> None:
    """The stored sum is looked up once a minute."""
    leg = await world.leg()
    await leg.store(report(1, loss=1.0))
    ((size,),) = await world.rows(sa.select(metric_sizes.c.bytes))
    await put_quotas(service_app, metric_bytes=size)
    await leg.store(report(2, loss=1.0))
    refused(await leg.report(report(3, loss=1.0)), "metric_bytes")
    # Another user's metrics are separate.
    made = await agent.post("/api/v1/users", json={"user": {"username": "eve"}, "password": "p"})
    hers = await world.leg(owner_id=made.json()["user"]["id"])
    await hers.store(report(1, loss=1.0))
