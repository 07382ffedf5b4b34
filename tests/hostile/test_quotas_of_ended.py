"""A user who begins small work, ends it and begins again. Gains: a full database."""

from __future__ import annotations

import uuid

import httpx
import pytest
import sqlalchemy as sa
from fastapi import FastAPI

from determined_registry.database.tables import experiments, model_definitions, trials
from determined_service.deleting.erasure import erase
from determined_service.state.change import changing
from tests.integration.quotas import put_quotas
from tests.integration.service_api.test_quotas import (
    launch_with,
    new_id,
    refused,
    submission,
    submit,
)
from tests.integration.service_api.test_unmanaged import say
from tests.integration.service_api.world import World


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
