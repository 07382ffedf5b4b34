"""Pipelines that run again: by hand, on a schedule, after events, and from Prefect's page."""

from __future__ import annotations

import asyncio
import datetime
import json
import uuid
from typing import Any

import sqlalchemy as sa
from fastapi import FastAPI

from determined.common.wire import serving
from determined.common.wire.serving import Served
from determined_registry.database.tables import (
    experiments,
    model_alias_history,
    models,
    pipelines,
)
from determined_service.loops.due_pipelines import DuePipelines
from tests.integration.conftest import AGENT_TOKEN, client_of
from tests.integration.service_api.pipeline_requests import CODE, Pipelines, config, ok, step


async def test_a_pipeline_runs_again_by_hand_and_on_its_schedule(pipes: Pipelines) -> None:
    first = await pipes.submit(step("a"), step("b", needs=["a"]))
    again = int((await pipes.ask(first, "again"))["pipelineId"])
    for one in (first, again):
        await pipes.advance(one)
    (mine,), (other,) = [await pipes.experiments(one, "a") for one in (first, again)]
    assert mine != other
    rows = [await pipes.row(one) for one in (mine, other)]
    assert rows[0].model_def_hash == rows[1].model_def_hash is not None
    assert (await pipes.get(again))["againOf"] == first
    path = f"/api/v1/pipelines/{first}/schedule"
    for wrong, words in (({"cron": "* * *"}, "schedule.cron"), ({}, "give one of cron")):
        answer = await pipes.user.put(path, json=wrong)
        assert (answer.status_code, words in answer.text) == (400, True), answer.text
    at = ok(await pipes.user.put(path, json={"interval_s": 3600}))["nextTime"]
    assert (await pipes.get(first))["nextTime"] == at

    async def passes() -> list[dict[str, Any]]:
        """Two leaders at once; all pipelines, the latest first."""
        await asyncio.gather(*(DuePipelines(pipes.world.db).run_pass() for _ in range(2)))
        return list(ok(await pipes.user.get("/api/v1/pipelines"))["pipelines"])

    async def be_late() -> None:
        async with pipes.world.db.tx() as conn:
            late = sa.update(pipelines).where(pipelines.c.id == first)
            now = datetime.datetime.now(datetime.UTC)
            await conn.execute(late.values(next_at=now - datetime.timedelta(days=3)))

    assert len(await passes()) == 2  # it is not due
    await be_late()
    assert len(await passes()) == 2  # the runs before have not ended
    for one in (first, again):
        await pipes.ask(one, "cancel")
    newest, *others = await passes()
    assert (newest["againOf"], newest["state"], len(others)) == (first, "RUNNING", 2)
    # Missed times give one run, and the next time is in the future.
    await pipes.ask(newest["id"], "cancel")
    assert len(await passes()) == 3
    await be_late()
    ok(await pipes.user.delete(path))
    assert len(await passes()) == 3
    assert (await pipes.get(first))["schedule"] is None


async def test_the_file_says_when_it_runs_again(pipes: Pipelines) -> None:
    for name in ("base", "other"):
        ok(await pipes.user.post("/api/v1/models", json={"name": name}))
    events = [{"alias": {"model": "base"}}, {"experiment": {"label": "nightly"}}]
    one = await pipes.submit(
        step("a", experiment=config(labels=["nightly"])),
        again={"schedule": {"interval_s": 3600}, "on": events},
    )
    made = await pipes.get(one)
    assert (made["schedule"], made["nextTime"] is not None) == ({"interval_s": 3600}, True)

    async def passes() -> list[str | None]:
        """What two leaders at once make of it: the causes of the new pipelines, which end at once."""
        await asyncio.gather(*(DuePipelines(pipes.world.db).run_pass() for _ in range(2)))
        async with pipes.world.db.tx() as conn:
            ended = sa.update(pipelines).where(pipelines.c.state == "RUNNING")
            found = await conn.execute(ended.values(state="FAILED").returning(pipelines.c.cause))
            return list(found.scalars())

    # Its own experiments do not count.
    await pipes.advance(one)
    await pipes.complete((await pipes.experiments(one, "a"))[0], 0.5)
    await pipes.advance(one)
    assert await passes() == []
    async with pipes.world.db.tx() as conn:
        of = sa.select(models.c.id, models.c.owner_id).where(models.c.name == "base")
        base = (await conn.execute(of)).one()
        move = {"model_id": base.id, "alias": "champion", "to_version": 1, "user_id": base.owner_id}
        await conn.execute(sa.insert(model_alias_history).values(move))
    assert await passes() == ["champion of model base stands for version 1 now"]
    assert await passes() == []
    body = {"config": json.dumps(config(labels=["nightly"]))}
    other = ok(await pipes.user.post("/api/v1/experiments", json=body))["experiment"]["id"]
    async with pipes.world.db.tx() as conn:
        ended = sa.update(experiments).where(experiments.c.id == other)
        await conn.execute(ended.values(state="COMPLETED", end_time=sa.func.clock_timestamp()))
        late = sa.update(pipelines).where(pipelines.c.id == one)
        now = datetime.datetime.now(datetime.UTC)
        await conn.execute(late.values(next_at=now - datetime.timedelta(days=1)))
    # Both at once are one run.
    assert await passes() == [f"schedule; experiment {other} has completed"]
    assert await passes() == []
    ok(await pipes.user.delete(f"/api/v1/pipelines/{one}/schedule"))
    assert (await pipes.get(one))["events"] == []


WRONG_AGAIN: list[tuple[dict[str, Any], str]] = [
    ({"schedule": {"cron": "* *"}}, "schedule.cron"),
    ({"schedule": {"every": 1}}, "schedule.every: Extra inputs"),
    ({"on": [{"new_data": {"every_s": 60}}]}, "on[0]: a pipeline runs again after alias or"),
    ({"on": [{"alias": {"model": "nothing"}}]}, "model 'nothing' does not exist"),
    ({"on": [{}]}, "on[0]: each item of on is one of"),
    ({"on": [{"experiment": {"label": "a"}}] * 2}, "stands there twice"),
]


async def test_a_file_that_cannot_say_when_it_runs_again_is_refused(pipes: Pipelines) -> None:
    for again, words in WRONG_AGAIN:
        body = {"pipeline": {"name": "p", "steps": [step("a")], **again}}
        body["modelDefinitions"] = {"0": CODE}
        answer = await pipes.user.post("/api/v1/pipelines", json=body)
        assert (answer.status_code // 100, words in answer.text) == (4, True), answer.text
    assert await pipes.world.rows(sa.select(pipelines.c.id)) == []


async def test_a_run_that_was_started_in_prefect_begins_one_pipeline(
    pipes: Pipelines, service_app: FastAPI
) -> None:
    first = await pipes.submit(step("a"))
    await pipes.ask(first, "cancel")
    flow_run = uuid.uuid4()
    body = {"again": first, "flow_run_id": str(flow_run)}
    token = serving.sign(AGENT_TOKEN, Served(serving.NEW_PIPELINE, str(flow_run)))
    async with client_of(service_app, token) as flow:
        # Its process may be killed and ask again.
        asked = (flow.post("/internal/v1/pipelines", json=body) for _ in range(3))
        answers = [ok(one) for one in await asyncio.gather(*asked)]
        assert len({one["pipeline_id"] for one in answers}) == 1
        other = {**body, "flow_run_id": str(uuid.uuid4())}
        ok(await flow.post("/internal/v1/pipelines", json=other), 403)
    made = await pipes.get(answers[0]["pipeline_id"])
    assert (made["againOf"], made["flowRunId"]) == (first, str(flow_run))
    async with client_of(service_app, answers[0]["run_token"]) as flow:
        ok(await flow.post(f"/internal/v1/pipelines/{made['id']}/advance", json={}))
        ok(await flow.post(f"/internal/v1/pipelines/{first}/advance", json={}), 403)


async def test_a_scheduled_run_takes_the_place_of_one_that_waits_for_an_approval(
    pipes: Pipelines,
) -> None:
    one = await pipes.submit({"name": "good", "approval": "Good enough?"})
    await pipes.advance(one)
    ok(await pipes.user.put(f"/api/v1/pipelines/{one}/schedule", json={"interval_s": 3600}))
    async with pipes.world.db.tx() as conn:
        await conn.execute(sa.update(pipelines).values(next_at=pipelines.c.started_at))
    await DuePipelines(pipes.world.db).run_pass()
    now = await pipes.get(one)
    assert (now["state"], now["reason"]) == (
        "CANCELED",
        "it ran again before anybody approved",
    )
    newest, _ = ok(await pipes.user.get("/api/v1/pipelines"))["pipelines"]
    assert newest["againOf"] == one
