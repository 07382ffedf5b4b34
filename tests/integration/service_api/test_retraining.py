"""Retrainings: each step runs once, even if several processes request it repeatedly.

Rows replace the experiments' processes: the tests are about the run's use of their results.
"""

from __future__ import annotations

import asyncio
import datetime
import uuid
from collections.abc import AsyncIterator
from typing import Any, cast

import httpx
import pytest
import sqlalchemy as sa
from fastapi import FastAPI

from determined_registry.database.tables import (
    checkpoints,
    experiments,
    metrics,
    model_alias_history,
    models,
    pipelines,
    retraining_runs,
    retrainings,
    trials,
)
from determined_service.loops.due_retrainings import DueRetrainings
from determined_service.prefect.gateway import Gateway
from determined_service.prefect.pages.retraining import retraining_page
from determined_service.prefect.pages.writing import RunPages
from tests.integration.service_api.flow_runs import FakeRuns, keep
from tests.integration.service_api.world import World

CONFIG = """
name: again
entrypoint: python3 train.py
hyperparameters: {}
searcher: {name: single, metric: accuracy, smaller_is_better: false, max_length: {batches: 1}}
"""
PLAN = {"evaluate": "code:evaluate", "rule": {"metric": "accuracy", "confidence": 0.9}}
RETRAINING = "/api/v1/models/digits/retraining"


class Retraining:
    """The model ``digits`` and what trains it again."""

    def __init__(self, world: World, user: httpx.AsyncClient, agent: httpx.AsyncClient) -> None:
        self.world, self.user, self.agent = world, user, agent

    async def put(self, labels: list[str] | None = None, **plan: Any) -> None:
        for name in ("digits", "base"):
            ok(await self.user.post("/api/v1/models", json={"name": name}), 200, 409)
        config = f"{CONFIG}labels: {labels or []}"
        ok(await self.user.put(RETRAINING, json={"config": config, "plan": {**PLAN, **plan}}))

    async def run(self, **given: Any) -> int:
        return int(ok(await self.user.post(f"{RETRAINING}/runs", json=given))["runId"])

    async def advance(self, run_id: int) -> dict[str, Any]:
        """Asked for from four places at once; the run, and which experiment it waits for."""
        of = sa.select(pipelines.c.id).where(pipelines.c.retraining_run_id == run_id)
        ((pipeline_id,),) = await self.world.rows(of)
        path = f"/internal/v1/pipelines/{pipeline_id}/advance"
        asked = await asyncio.gather(*(self.agent.post(path, json={}) for _ in range(4)))
        for one in asked:
            ok(one)
        (run,) = (one for one in await self.history() if one["id"] == run_id)
        step = {"CHECKING": "check", "TRAINING": "training", "EVALUATING": "evaluation"}
        return {**run, "experiment_id": run.get(f"{step.get(run['state'])}ExperimentId")}

    async def finish(self, experiment_id: int, group: str, **reported: Any) -> str:
        """The experiment has completed, with a checkpoint and a report; the checkpoint's UUID."""
        now = datetime.datetime.now(datetime.UTC)
        checkpoint = uuid.uuid4()
        async with self.world.db.tx() as conn:
            of = trials.c.experiment_id == experiment_id
            trial_id = (await conn.execute(sa.select(trials.c.id).where(of))).scalar_one()
            await conn.execute(
                sa.insert(metrics).values(
                    trial_id=trial_id,
                    run_id=1,
                    group_name=group,
                    steps_completed=1,
                    end_time=now,
                    metrics=reported,
                )
            )
            await conn.execute(
                sa.insert(checkpoints).values(
                    uuid=checkpoint,
                    state="COMPLETED",
                    experiment_id=experiment_id,
                    trial_id=trial_id,
                    steps_completed=1,
                )
            )
            await conn.execute(sa.update(trials).where(of).values(state="COMPLETED"))
            await self.end(conn, experiment_id, "COMPLETED")
        return str(checkpoint)

    async def end(self, conn: Any, experiment_id: int, state: str) -> None:
        ended = sa.update(experiments).where(experiments.c.id == experiment_id)
        values = {"state": state, "reason": "out of memory", "end_time": sa.func.clock_timestamp()}
        await conn.execute(ended.values(values))

    async def trained(self, run_id: int) -> tuple[str, int]:
        """The challenger's checkpoint, and the experiment of its evaluation."""
        now = await self.advance(run_id)
        assert now["state"] == "TRAINING"
        challenger = await self.finish(now["experiment_id"], "validation", accuracy=0.9)
        now = await self.advance(run_id)
        assert now["state"] == "EVALUATING"
        return challenger, now["experiment_id"]

    async def evaluated(self, experiment_id: int, low: float | None) -> None:
        """``low`` None: without a champion."""
        scores = {"challenger": 0.9, "champion": 0.8, "examples": 100, "gain_low": low}
        comparison = {"had_champion": low is not None, "metrics": {"accuracy": scores}}
        await self.finish(experiment_id, "evaluation", comparison=comparison)

    async def whole(self, low: float | None) -> dict[str, Any]:
        run_id = await self.run()
        _, evaluation = await self.trained(run_id)
        await self.evaluated(evaluation, low)
        return await self.advance(run_id)

    async def champion(self) -> int | None:
        model = ok(await self.user.get("/api/v1/models/digits"))["model"]
        found: int | None = model["aliases"].get("champion")
        return found

    async def history(self) -> list[dict[str, Any]]:
        return list(ok(await self.user.get(f"{RETRAINING}/runs"))["runs"])


def ok(answer: httpx.Response, *codes: int) -> Any:
    assert answer.status_code in (codes or (200,)), answer.text
    return answer.json()


@pytest.fixture
async def again(
    world: World, user: httpx.AsyncClient, agent: httpx.AsyncClient
) -> AsyncIterator[Retraining]:
    made = Retraining(world, user, agent)
    await made.put()
    yield made


async def test_a_better_model_is_promoted_once_and_a_worse_one_never(again: Retraining) -> None:
    first = await again.whole(None)
    assert (first["state"], first["reason"]) == (
        "PROMOTED",
        "there is no champion yet: accuracy 0.9",
    )
    kept = await again.whole(-0.01)
    assert kept["state"] == "KEPT"
    assert "not above the least gain 0" in kept["reason"]
    better = await again.whole(0.05)
    assert better["state"] == "PROMOTED"
    assert await again.champion() == 3
    newest = (await again.history())[0]["id"]
    async with again.world.db.engine.connect() as conn:
        page = await retraining_page(conn, newest)
    # Prefect's page of the run: this run, its scores, and all earlier runs.
    assert page is not None
    assert "**PROMOTED**" in page.text
    assert "| accuracy | 0.8 | 0.9 |".replace(".", "\\.") in page.text
    for state in ("KEPT", "PROMOTED"):
        assert f"| {state} |" in page.text
    moves = ok(await again.user.get("/api/v1/models/digits/alias-history"))["moves"]
    assert [(one["fromVersion"], one["toVersion"]) for one in moves] == [(None, 1), (1, 3)]
    version = ok(await again.user.get("/api/v1/models/digits/versions/2"))["modelVersion"]
    noted = version["metadata"]["retraining"]
    assert (noted["promoted"], noted["champion"]) == (False, 1)
    assert noted["scores"]["accuracy"]["gain_low"] == -0.01
    # Each run has made one training and one evaluation.
    (count,) = await again.world.rows(sa.select(sa.func.count()).select_from(experiments))
    assert count[0] == 6
    moved = ok(await again.user.post(f"{RETRAINING}/rollback", json={}))
    assert (moved["fromVersion"], moved["toVersion"], await again.champion()) == (3, 1, 1)
    assert [one["state"] for one in await again.history()] == [
        "ROLLED_BACK",
        "PROMOTED",
        "KEPT",
        "PROMOTED",
    ]


async def test_a_flow_that_is_run_again_goes_on_with_the_run_that_it_began(
    again: Retraining,
) -> None:
    path, given = "/internal/v1/retraining-runs", {"model": "digits", "force": False}
    body = {**given, "flow_run_id": str(uuid.uuid4())}
    first = ok(await again.agent.post(path, json=body))
    assert ok(await again.agent.post(path, json=body)) == first
    other = await again.agent.post(path, json={**given, "flow_run_id": str(uuid.uuid4())})
    assert other.status_code == 409
    ok(await again.user.post(f"{RETRAINING}/cancel", json={}))
    assert ok(await again.agent.post(path, json=body))["open"] is False


async def test_a_failure_names_its_step_and_keeps_the_champion(again: Retraining) -> None:
    await again.whole(None)
    run_id = await again.run()
    _, evaluation = await again.trained(run_id)
    assert (await again.history())[0]["championVersion"] == 1
    refused = await again.user.post(f"{RETRAINING}/runs", json={})
    assert (refused.status_code, "two never run at the same time" in refused.text) == (409, True)
    async with again.world.db.tx() as conn:
        await again.end(conn, evaluation, "ERROR")
    assert (await again.advance(run_id))["state"] == "FAILED"
    newest = (await again.history())[0]
    assert (newest["failedStep"], newest["version"]) == ("EVALUATING", None)
    assert newest["reason"] == f"experiment {evaluation} failed: out of memory"
    assert await again.champion() == 1


async def test_a_training_without_a_checkpoint_is_said_to_be_what_failed(again: Retraining) -> None:
    now = await again.advance(await again.run())
    training = now["experiment_id"]
    await again.finish(training, "validation", accuracy=0.9)
    async with again.world.db.tx() as conn:
        await conn.execute(sa.delete(checkpoints).where(checkpoints.c.experiment_id == training))
    now = await again.advance(now["id"])
    assert (now["state"], now["failedStep"]) == ("FAILED", "TRAINING")
    words = f"experiment {training} has no checkpoint with the searcher's metric: its code must"
    assert now["reason"].startswith(words)


async def test_an_alias_that_is_moved_meanwhile_is_compared_with_again(again: Retraining) -> None:
    for _ in range(2):
        await again.whole(None if await again.champion() is None else 0.1)
    run_id = await again.run()
    _, evaluation = await again.trained(run_id)
    ok(await again.user.put("/api/v1/models/digits/aliases/champion", json={"version": 1}))
    await again.evaluated(evaluation, 0.1)
    now = await again.advance(run_id)
    assert now["state"] == "EVALUATING"
    assert now["experiment_id"] != evaluation
    await again.evaluated(now["experiment_id"], 0.1)
    assert (await again.advance(run_id))["state"] == "PROMOTED"
    assert (await again.history())[0]["championVersion"] == 1


async def test_a_person_approves_or_a_later_run_takes_over(again: Retraining) -> None:
    await again.put(approval=True)
    assert (await again.whole(None))["state"] == "WAITING_FOR_APPROVAL"
    assert await again.champion() is None
    ok(await again.user.post(f"{RETRAINING}/approve", json={"approve": True}))
    assert await again.champion() == 1
    assert (await again.whole(0.1))["state"] == "WAITING_FOR_APPROVAL"
    await again.whole(0.1)
    states = [one["state"] for one in await again.history()]
    assert states == ["WAITING_FOR_APPROVAL", "KEPT", "PROMOTED"]
    ok(await again.user.post(f"{RETRAINING}/approve", json={"approve": False}))
    assert await again.champion() == 1


async def test_unchanged_data_is_skipped_unless_forced(again: Retraining) -> None:
    await again.put(data_version="data:version")
    for forced, state in ((False, "TRAINING"), (False, "SKIPPED"), (True, "TRAINING")):
        run_id = await again.run(force=forced)
        now = await again.advance(run_id)
        assert now["state"] == "CHECKING"
        await again.finish(now["experiment_id"], "evaluation", data_version="monday")
        now = await again.advance(run_id)
        assert now["state"] == state, now
        if state == "SKIPPED":
            assert "the data has not changed" in now["reason"]
            continue
        challenger = await again.finish(now["experiment_id"], "validation", accuracy=0.9)
        now = await again.advance(run_id)
        low = None if await again.champion() is None else 0.1
        await again.evaluated(now["experiment_id"], low)
        assert (await again.advance(run_id))["state"] == "PROMOTED", challenger


async def test_missed_times_are_made_up_for_once(again: Retraining, service_app: FastAPI) -> None:
    await again.put(schedule={"interval_s": 60})
    async with again.world.db.tx() as conn:
        long_ago = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=1)
        await conn.execute(sa.update(retrainings).values(created_at=long_ago, next_at=long_ago))
    passes = DueRetrainings(again.world.db)
    await passes.run_pass()
    (run,) = await again.world.rows(sa.select(retraining_runs))
    (row,) = await again.world.rows(sa.select(retrainings))
    assert (run.cause, run.due_at) == ("schedule", long_ago)
    assert row.next_at > datetime.datetime.now(datetime.UTC)
    # Due again while the run is open: it waits for its end.
    async with again.world.db.tx() as conn:
        await conn.execute(sa.update(retrainings).values(next_at=long_ago))
        await conn.execute(sa.update(retraining_runs).values(state="FAILED"))
        await conn.execute(sa.update(retraining_runs).values(state="TRAINING"))
    await passes.run_pass()
    assert len(await again.world.rows(sa.select(retraining_runs.c.id))) == 1


@pytest.mark.parametrize(
    ("cron", "goes_on", "cause"),
    [
        ("0 0 3 * * *", True, "schedule"),
        (
            "every night",
            False,
            "schedule, for the last time (schedule.cron: 'every night' cannot be read: expected minute",
        ),
    ],
    ids=["six fields", "what no release reads"],
)
async def test_a_schedule_of_an_earlier_release(
    again: Retraining, service_app: FastAPI, cron: str, goes_on: bool, cause: str
) -> None:
    await again.put(schedule={"interval_s": 60})
    async with again.world.db.tx() as conn:
        long_ago = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=1)
        plan = dict((await conn.execute(sa.select(retrainings.c.plan))).scalar_one())
        plan["schedule"] = {"cron": cron}
        await conn.execute(sa.update(retrainings).values(plan=plan, next_at=long_ago))
    passes = DueRetrainings(again.world.db)
    await passes.run_pass()
    (run,) = await again.world.rows(sa.select(retraining_runs))
    (row,) = await again.world.rows(sa.select(retrainings))
    assert run.cause.startswith(cause)
    assert (row.next_at is not None) == goes_on


async def test_its_run_is_started_again_and_a_cancel_in_prefect_ends_it(
    again: Retraining, service_app: FastAPI
) -> None:
    await again.put()
    run_id = await again.run()
    runs = FakeRuns("retrain")
    await keep(service_app, runs)
    assert runs.made == [f"retrain digits #{run_id}"]
    # Its flow dies: the same run goes on.
    runs.all_become("CRASHED")
    await keep(service_app, runs)
    ((flow_run_id, state),) = runs.states.items()
    assert (state, len(runs.made)) == ("SCHEDULED", 1)
    (shown,) = await again.history()
    assert shown["flowRunId"] == str(flow_run_id)
    pages = RunPages(service_app.state.db, cast(Gateway, runs), service_app.state.settings)
    await pages.look()
    ((key, page),) = runs.pages.items()
    assert key.startswith("determined-retraining-")
    assert f"retraining run {run_id}" in page
    runs.all_become("CANCELLING")
    await keep(service_app, runs)
    await pages.look()
    assert "**CANCELED**" in runs.pages[key]
    (run,) = await again.world.rows(sa.select(retraining_runs))
    assert (run.state, len(runs.told)) == ("CANCELED", 1)
    # And dies once more before it can report this.
    runs.all_become("CRASHED")
    for _ in range(2):
        await keep(service_app, runs)
    words = f"retraining run {run_id} CANCELED: its run was cancelled in Prefect"
    assert runs.told[1:] == [(flow_run_id, "CANCELLED", "Cancelled", words)]


async def test_each_event_begins_one_run(again: Retraining, service_app: FastAPI) -> None:
    await again.put(
        on=[
            {"alias": {"model": "base"}},
            {"live_metric": {"metric": "accuracy", "below": 0.8, "last": 2, "cooldown_s": 60}},
            {"experiment": {"label": "nightly"}},
        ],
        labels=["nightly"],
    )

    async def passed() -> list[str]:
        """The causes of the runs that two leaders at once begin; the runs end at once."""
        both = [DueRetrainings(again.world.db) for _ in range(2)]
        await asyncio.gather(*(one.run_pass() for one in both))
        ended = sa.update(retraining_runs).where(retraining_runs.c.ended_at.is_(None))
        ended = ended.values(state="FAILED", ended_at=sa.func.now())
        async with again.world.db.tx() as conn:
            found = await conn.execute(ended.returning(retraining_runs.c.cause))
            return list(found.scalars())

    async def report(*values: float) -> None:
        body = {"metric": "accuracy", "values": values}
        ok(await again.user.post(f"{RETRAINING}/live-metrics", json=body))

    async def completed(**config: Any) -> int:
        body = {"config": CONFIG + "labels: [nightly]"}
        made = ok(await again.user.post("/api/v1/experiments", json=body))["experiment"]["id"]
        async with again.world.db.tx() as conn:
            await again.end(conn, made, "COMPLETED")
        return int(made)

    assert await passed() == []
    async with again.world.db.tx() as conn:
        base = (await conn.execute(sa.select(models.c.id).where(models.c.name == "base"))).scalar()
        owner = (await conn.execute(sa.select(models.c.owner_id))).scalars().first()
        move = {"model_id": base, "alias": "champion", "to_version": 1, "user_id": owner}
        await conn.execute(sa.insert(model_alias_history).values(move))
    assert await passed() == ["champion of model base stands for version 1 now"]
    await report(0.1)
    assert await passed() == []
    await report(0.9)
    assert await passed() == [
        "live accuracy has a mean of the last 2 values of 0.5, below 0.8",
    ]
    await report(0.1, 0.1)
    assert await passed() == []  # a minute has not passed
    first, second = await completed(), await completed()
    # Two completed experiments in the meantime give one run.
    assert await passed() == [f"experiment {second} has completed and 1 before it"]
    assert first < second
    # Experiments of the retraining have the label, too.
    run_id = await again.run(force=True)
    now = await again.advance(run_id)
    async with again.world.db.tx() as conn:
        await again.end(conn, now["experiment_id"], "COMPLETED")
    assert await passed() == ["determined"]
    assert await passed() == []


async def test_looks_for_new_data_leave_one_line(again: Retraining, service_app: FastAPI) -> None:
    await again.put(data_files=["x"], on=[{"new_data": {"every_s": 10}}], warm_start=True)
    states, champion = [], None
    for version in ("monday", "monday", "monday", "tuesday"):
        async with again.world.db.tx() as conn:
            (mark,) = (await conn.execute(sa.select(retrainings.c.marks))).scalar_one().items()
            past = {mark[0]: {**mark[1], "next": "2026-01-01T00:00:00+00:00"}}
            await conn.execute(sa.update(retrainings).values(marks=past))
        await DueRetrainings(again.world.db).run_pass()
        run_id = (await again.history())[0]["id"]
        now = await again.advance(run_id)
        await again.finish(now["experiment_id"], "evaluation", data_version=version)
        now = await again.advance(run_id)
        if now["state"] == "TRAINING":
            training = now["experiment_id"]
            challenger = await again.finish(training, "validation", accuracy=0.9)
            now = await again.advance(run_id)
            await again.evaluated(now["experiment_id"], None if champion is None else 0.1)
            assert (await again.advance(run_id))["state"] == "PROMOTED"
            (row,) = await again.world.rows(
                sa.select(experiments.c.config).where(experiments.c.id == training)
            )
            # The training gets the checked data's name, and begins with the champion.
            assert row.config["data"] == {"version": version}
            assert row.config["searcher"].get("source_checkpoint_uuid") == champion
            champion = challenger
        states = [(one["state"], one["dataVersion"]) for one in await again.history()]
    assert states == [("PROMOTED", "tuesday"), ("SKIPPED", "monday"), ("PROMOTED", "monday")]


async def test_its_pipeline_is_nobodys_but_the_retrainings(again: Retraining) -> None:
    await again.put(approval=True)
    assert (await again.whole(None))["state"] == "WAITING_FOR_APPROVAL"
    ((pipeline_id,),) = await again.world.rows(sa.select(pipelines.c.id))
    assert ok(await again.user.get("/api/v1/pipelines"))["pipelines"] == []
    path = f"/api/v1/pipelines/{pipeline_id}"
    for method, where in [
        ("GET", path),
        ("DELETE", path),
        ("DELETE", f"{path}/schedule"),
        *(("POST", f"{path}/{verb}") for verb in ("cancel", "resume", "again")),
    ]:
        ok(await again.user.request(method, where), 404)
    ok(await again.user.post(f"{path}/approve", json={"approve": True}), 404)
    body = {"again": pipeline_id, "flow_run_id": str(uuid.uuid4())}
    ok(await again.agent.post("/internal/v1/pipelines", json=body), 404)
    # It goes with the retraining.
    ok(await again.user.delete(RETRAINING))
    assert await again.world.rows(sa.select(pipelines.c.id)) == []


async def test_a_configuration_keeps_what_looks_like_a_reference(again: Retraining) -> None:
    words = "for item in 1 2; do echo ${item} ${HOME} $${item} ${params.x}; done"
    config = CONFIG.replace("python3 train.py", words)
    ok(await again.user.put(RETRAINING, json={"config": config, "plan": PLAN}))
    now = await again.advance(await again.run())
    training = experiments.c.id == now["experiment_id"]
    ((made,),) = await again.world.rows(sa.select(experiments.c.config).where(training))
    assert made["entrypoint"] == words


async def test_a_submission_with_a_key_is_one_experiment(user: httpx.AsyncClient) -> None:
    body = {"config": CONFIG, "idempotencyKey": "a flow's"}
    asked = await asyncio.gather(*(user.post("/api/v1/experiments", json=body) for _ in range(4)))
    assert len({ok(one)["experiment"]["id"] for one in asked}) == 1
    other = ok(await user.post("/api/v1/experiments", json={**body, "idempotencyKey": "b"}))
    assert other["experiment"]["id"] != ok(asked[0])["experiment"]["id"]


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"evaluate": "os.system('x')"}, "expected module:function"),
    ({"rule": {"metric": "a", "confidence": 2}}, "rule.confidence: 2.0 is not above"),
    ({"schedule": {"interval_s": 1}}, "schedule.interval_s: expected 10 to"),
    ({"schedule": {"cron": "x"}}, "schedule.cron"),
    ({"schedule": {"cron": "0 3 * * *", "every": 1}}, "every"),
    ({"data_version": "a:b", "data_files": ["x"]}, "not both"),
    ({"alias": "latest/1"}, "alias"),
    ({"on": [{"new_data": {"every_s": 60}}]}, "give data_version or data_files"),
    ({"on": [{"live_metric": {"metric": "a"}}]}, "give one of below and above"),
    ({"on": [{"live_metric": {"metric": "a", "below": "nan"}}]}, "finite"),
    ({"on": [{"alias": {"model": "digits"}}]}, "would begin the next run"),
    (
        {"on": [{"experiment": {"label": "a", "best": True}}]},
        "on.0.experiment: best goes with the id",
    ),
    ({"on": [{}]}, "each item of on is one of"),
    ({"on": [{"alias": {"model": "base"}}] * 2}, "stands there twice"),
]


async def test_a_plan_that_cannot_work_is_refused(again: Retraining) -> None:
    for plan, words in WRONG:
        body = {"config": CONFIG, "plan": {**PLAN, **plan}}
        answer = await again.user.put(RETRAINING, json=body)
        assert (answer.status_code, words in answer.text) == (400, True), answer.text
    await again.run()
    answer = await again.user.put(RETRAINING, json={"config": CONFIG, "plan": PLAN})
    assert (answer.status_code, "a run of this retraining is open" in answer.text) == (409, True)
