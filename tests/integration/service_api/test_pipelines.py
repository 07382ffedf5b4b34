"""Pipelines: each experiment runs once, even if several processes advance the pipeline repeatedly.

Rows replace the experiments' processes: the tests are about the pipeline's use of their results.
"""

from __future__ import annotations

import asyncio
import datetime
import json
import uuid
from typing import Any, cast

import httpx
import pytest
import sqlalchemy as sa
from fastapi import FastAPI

from determined.common.wire import serving
from determined.common.wire.serving import Served
from determined_registry.database.tables import (
    checkpoints,
    experiments,
    kept_runs,
    metrics,
    model_alias_history,
    model_definitions,
    models,
    pipelines,
    tasks,
    trials,
)
from determined_service.loops.due_pipelines import DuePipelines
from determined_service.pipelines import people, rows
from determined_service.prefect.gateway import Gateway
from determined_service.prefect.keeper import MAX_INTERRUPTIONS
from determined_service.prefect.pages.writing import RunPages
from determined_service.state.change import changing
from tests.integration.conftest import AGENT_TOKEN, client_of
from tests.integration.roles import give, put_mode, take
from tests.integration.service_api.flow_runs import FakeRuns, keep
from tests.integration.service_api.world import World

CODE = [{"path": "train.py", "type": 48, "content": "cHJpbnQoKQ==", "mode": 420}]


def config(**more: Any) -> dict[str, Any]:
    searcher = {"name": "single", "metric": "accuracy", "smaller_is_better": False}
    return {
        "entrypoint": "python3 train.py",
        "hyperparameters": {"lr": 0.5},
        "searcher": {**searcher, "max_length": {"batches": 1}},
        **more,
    }


def step(name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "experiment": config(name=name), "code": "0", **more}


class Pipelines:
    """The requests of a user and the flow, and experiments that end as the test wants."""

    def __init__(self, world: World, user: httpx.AsyncClient, agent: httpx.AsyncClient) -> None:
        self.world, self.user, self.agent = world, user, agent

    async def submit(
        self,
        *steps: dict[str, Any],
        code: Any = CODE,
        again: dict[str, Any] | None = None,
        **more: Any,
    ) -> int:
        plan = {"name": "p", "steps": steps, **(again or {})}
        body = {"pipeline": plan, "modelDefinitions": {"0": code}}
        return int(
            ok(await self.user.post("/api/v1/pipelines", json={**body, **more}))["pipelineId"]
        )

    async def advance(self, pipeline_id: int) -> dict[str, str]:
        """Asked for from four places at once; the steps' states."""
        path = f"/internal/v1/pipelines/{pipeline_id}/advance"
        asked = await asyncio.gather(*(self.agent.post(path, json={}) for _ in range(4)))
        answers = [ok(one) for one in asked]
        # Some answer while another one still submits; the last word is the same.
        last = ok(await self.agent.post(path, json={}))
        assert last in answers
        return {one["name"]: one["state"] for one in last["steps"]}

    async def get(self, pipeline_id: int) -> dict[str, Any]:
        found: dict[str, Any] = ok(await self.user.get(f"/api/v1/pipelines/{pipeline_id}"))
        return dict(found["pipeline"])

    async def experiments(self, pipeline_id: int, name: str) -> list[int]:
        found = await self.get(pipeline_id)
        (mine,) = (one for one in found["steps"] if one["name"] == name)
        return [one["id"] for one in mine["experiments"]]

    async def ask(self, pipeline_id: int, what: str, *codes: int) -> Any:
        return ok(await self.user.post(f"/api/v1/pipelines/{pipeline_id}/{what}", json={}), *codes)

    async def complete(self, experiment_id: int, accuracy: float) -> str:
        """The experiment has completed, with a checkpoint and a validation; the checkpoint's UUID."""
        checkpoint = uuid.uuid4()
        now = datetime.datetime.now(datetime.UTC)
        async with self.world.db.tx() as conn:
            of = trials.c.experiment_id == experiment_id
            trial_id = (await conn.execute(sa.select(trials.c.id).where(of))).scalar_one()
            made = await conn.execute(
                sa.insert(metrics)
                .values(
                    trial_id=trial_id,
                    run_id=1,
                    group_name="validation",
                    steps_completed=1,
                    end_time=now,
                    metrics={"accuracy": accuracy, "val.loss": 1 - accuracy},
                )
                .returning(metrics.c.id)
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
            best = {"searcher_metric_value": accuracy, "best_validation_id": made.scalar_one()}
            await conn.execute(sa.update(trials).where(of).values(state="COMPLETED", **best))
        await self.end(experiment_id, "COMPLETED")
        return str(checkpoint)

    async def end(self, experiment_id: int, state: str) -> None:
        async with self.world.db.tx() as conn:
            ended = sa.update(experiments).where(experiments.c.id == experiment_id)
            await conn.execute(ended.values(state=state, reason="out of memory"))

    async def row(self, experiment_id: int) -> Any:
        (found,) = await self.world.rows(
            sa.select(experiments).where(experiments.c.id == experiment_id)
        )
        return found


def ok(answer: httpx.Response, *codes: int) -> Any:
    assert answer.status_code in (codes or (200,)), answer.text
    return answer.json()


@pytest.fixture
def pipes(world: World, user: httpx.AsyncClient, agent: httpx.AsyncClient) -> Pipelines:
    return Pipelines(world, user, agent)


async def test_later_steps_use_the_results_of_earlier_ones(pipes: Pipelines) -> None:
    one = await pipes.submit(
        step("search"),
        step(
            "train",
            for_each=[1, 2],
            **{
                "with": {
                    "name": "train ${item}",
                    "hyperparameters.lr": "${steps.search.best.hparams.lr}",
                    "hyperparameters.loss": "${steps.search.best.metrics.val.loss}",
                    "hyperparameters.fold": "${item}",
                    "searcher.source_checkpoint_uuid": "${steps.search.best.checkpoint}",
                }
            },
        ),
        step(
            "last",
            **{
                "with": {
                    "hyperparameters.of": "${steps.train.best.item}",
                    "hyperparameters.all": "${steps.train[*].best.checkpoint}",
                    "hyperparameters.from": "${steps.search.experiment.id}",
                }
            },
        ),
    )
    assert await pipes.advance(one) == {"search": "RUNNING", "train": "WAITING", "last": "WAITING"}
    (search,) = await pipes.experiments(one, "search")
    found = await pipes.complete(search, 0.75)
    assert (await pipes.advance(one))["train"] == "RUNNING"
    folds = await pipes.experiments(one, "train")
    trained = [await pipes.row(fold) for fold in folds]
    assert [(x.name, x.config["hyperparameters"]) for x in trained] == [
        (f"train {n}", {"lr": 0.5, "loss": 0.25, "fold": n}) for n in (1, 2)
    ]
    assert trained[0].config["searcher"]["source_checkpoint_uuid"] == found
    assert trained[0].model_def_hash == (await pipes.row(search)).model_def_hash is not None
    stored = [
        await pipes.complete(fold, value) for fold, value in zip(folds, (0.1, 0.9), strict=True)
    ]
    assert (await pipes.advance(one))["last"] == "RUNNING"
    (last,) = await pipes.experiments(one, "last")
    hparams = (await pipes.row(last)).config["hyperparameters"]
    assert hparams == {"lr": 0.5, "of": 2, "all": stored, "from": search}
    await pipes.complete(last, 0.5)
    await pipes.advance(one)
    now = await pipes.get(one)
    assert (now["state"], now["reason"], now["completedSteps"]) == (
        "COMPLETED",
        "all 3 steps completed",
        3,
    )
    # Each once, though five asked each time.
    (count,) = await pipes.world.rows(sa.select(sa.func.count()).select_from(experiments))
    assert count[0] == 4
    ok(await pipes.user.delete(f"/api/v1/pipelines/{one}"))
    ok(await pipes.user.get(f"/api/v1/pipelines/{one}"), 404)
    assert len(await pipes.world.rows(sa.select(model_definitions.c.hash))) == 1


async def test_no_more_items_run_at_once_than_the_step_allows(pipes: Pipelines) -> None:
    one = await pipes.submit(step("a", for_each=[1, 2, 3, 4], max_concurrent=2))
    await pipes.advance(one)
    first, second, *later = await pipes.experiments(one, "a")
    assert None not in (first, second) and later == [None, None]
    await pipes.end(second, "ERROR")
    await pipes.advance(one)
    *_, third, fourth = await pipes.experiments(one, "a")
    assert third is not None and fourth is None
    for experiment_id in (first, third):
        await pipes.complete(experiment_id, 0.5)
    await pipes.advance(one)
    await pipes.complete((await pipes.experiments(one, "a"))[3], 0.5)
    await pipes.advance(one)
    now = await pipes.get(one)
    assert now["steps"][0]["reason"].startswith("1 of 4 experiments failed")


async def test_a_step_whose_condition_is_false_is_skipped(pipes: Pipelines) -> None:
    accuracy = "${steps.a.best.metrics.accuracy}"
    one = await pipes.submit(
        step("a"),
        step("better", when=f"{accuracy} > 0.9"),
        step("then", needs=["better"]),
        step("worse", when=f"{accuracy} <= 0.9"),
        step("wrong", when="${steps.a.best.metrics.nothing} > 1"),
    )
    await pipes.advance(one)
    await pipes.complete((await pipes.experiments(one, "a"))[0], 0.75)
    await pipes.advance(one)
    steps = (await pipes.get(one))["steps"]
    assert [(x["state"], x["reason"]) for x in steps[1:4]] == [
        ("SKIPPED", "its condition is false: 0.75 > 0.9"),
        ("SKIPPED", "step better was skipped"),
        ("RUNNING", None),
    ]
    assert (steps[4]["state"], "has no 'nothing'" in steps[4]["reason"]) == ("FAILED", True)
    # A resumed pipeline evaluates its condition again.
    await pipes.complete((await pipes.experiments(one, "worse"))[0], 0.5)
    await pipes.advance(one)
    await pipes.ask(one, "resume")
    assert (await pipes.advance(one))["better"] == "SKIPPED"


def promotion(of: str, **more: Any) -> dict[str, Any]:
    return {"model": "digits", "checkpoint": f"${{steps.{of}.best.checkpoint}}", **more}


async def test_a_person_approves_and_the_model_is_promoted_once(
    pipes: Pipelines, service_app: FastAPI
) -> None:
    asks = {"name": "good", "approval": "Good enough?", "needs": ["a"]}
    one = await pipes.submit(
        step("a"),
        asks,
        {"name": "promote", "promote": promotion("a"), "needs": ["good"]},
        {"name": "keep", "promote": promotion("a", alias=None)},
    )
    runs = FakeRuns("pipeline")
    await keep(service_app, runs)
    await pipes.advance(one)
    await pipes.ask(one, "approve", 400)  # without an answer
    answer = await pipes.user.post(f"/api/v1/pipelines/{one}/approve", json={"approve": True})
    assert (answer.status_code, "no step of it waits" in answer.text) == (409, True)
    stored = await pipes.complete((await pipes.experiments(one, "a"))[0], 0.75)
    await pipes.advance(one)
    now = await pipes.get(one)
    assert (now["state"], now["reason"]) == ("WAITING_FOR_APPROVAL", "waits for an approval: good")
    words = f"Good enough? (det pipeline approve {one} --step good)"
    assert (now["steps"][1]["state"], now["steps"][1]["reason"]) == ("RUNNING", words)
    # Meanwhile its flow run ends, regardless of its process.
    runs.all_become("CRASHED")
    await keep(service_app, runs)
    assert list(runs.states.values()) == ["COMPLETED"]
    ok(await pipes.user.delete(f"/api/v1/pipelines/{one}"), 409)

    async def approve(**more: Any) -> int:
        body = {"approve": True, **more}
        return (await pipes.user.post(f"/api/v1/pipelines/{one}/approve", json=body)).status_code

    assert await approve(step="a") == 409
    # Of two who answer at once one has the word.
    assert sorted(await asyncio.gather(approve(), approve(step="good"))) == [200, 409]
    await keep(service_app, runs)
    assert list(runs.states.values()) == ["SCHEDULED"]
    await pipes.advance(one)
    now = await pipes.get(one)
    assert (now["state"], now["steps"][1]["reason"]) == ("COMPLETED", "approved by determined")
    assert now["steps"][2]["reason"] == (
        f"checkpoint {stored} is version 2 of model digits, its champion now"
    )
    listed = ok(await pipes.user.get("/api/v1/models/digits/versions"))["modelVersions"]
    assert [x["checkpoint"]["uuid"] for x in listed] == [stored, stored]
    assert listed[1]["metadata"] == {"pipeline": {"id": one, "step": "promote"}}


def compared(alias: str = "champion", **more: Any) -> dict[str, Any]:
    given = {
        "function": "code:evaluate",
        "checkpoint": "${steps.a.best.checkpoint}",
        "against": {"model": "digits", "alias": alias},
        "rule": {"metric": "accuracy", "confidence": 0.9},
    }
    return {"name": "score", "evaluate": given, "code": "0", **more}


COMPARED = {"name": "publish", "promote": {"comparison": "score"}}


async def evaluated(pipes: Pipelines, pipeline_id: int, low: float | None, last: int = 0) -> int:
    """The evaluation, which is not experiment ``last``, has completed; ``low`` None: without a champion."""
    (experiment_id,) = await pipes.experiments(pipeline_id, "score")
    assert experiment_id not in (None, last)
    scores = {"challenger": 0.9, "champion": 0.8, "examples": 100, "gain_low": low}
    if low is None:
        scores["champion"] = None
    comparison = {"had_champion": low is not None, "metrics": {"accuracy": scores}}
    async with pipes.world.db.tx() as conn:
        of = sa.select(trials.c.id).where(trials.c.experiment_id == experiment_id)
        await conn.execute(
            sa.insert(metrics).values(
                trial_id=(await conn.execute(of)).scalar_one(),
                run_id=1,
                group_name="evaluation",
                steps_completed=1,
                end_time=sa.func.now(),
                metrics={"comparison": comparison},
            )
        )
    await pipes.end(experiment_id, "COMPLETED")
    return experiment_id


async def trained(pipes: Pipelines, *steps: dict[str, Any]) -> tuple[int, str]:
    """A pipeline whose first step has completed and whose evaluation runs, and the checkpoint."""
    one = await pipes.submit(step("a"), compared(), *steps)
    await pipes.advance(one)
    checkpoint = await pipes.complete((await pipes.experiments(one, "a"))[0], 0.75)
    assert (await pipes.advance(one))["score"] == "RUNNING"
    return one, checkpoint


async def champion(pipes: Pipelines) -> int | None:
    model = ok(await pipes.user.get("/api/v1/models/digits"))["model"]
    found: int | None = model["aliases"].get("champion")
    return found


async def test_a_model_is_promoted_only_if_it_is_better_than_the_champion(pipes: Pipelines) -> None:
    told = "${steps.publish.best.metrics.promoted}"
    after = step("after", when=told)
    for low, is_promoted, standing in ((None, True, 1), (-0.1, False, 1), (0.05, True, 3)):
        one, checkpoint = await trained(pipes, COMPARED, after)
        (score,) = await pipes.experiments(one, "score")
        hparams = (await pipes.row(score)).config["hyperparameters"]
        assert hparams["checkpoints"]["challenger"] == checkpoint
        assert ("champion" in hparams["checkpoints"]) == (low is not None)
        # It runs where the training ran, with its code.
        assert (await pipes.row(score)).config["entrypoint"] == "python3 -m determined.evaluation"
        assert (await pipes.row(score)).model_def_hash is not None
        await evaluated(pipes, one, low)
        now = await pipes.advance(one)
        assert now["publish"] == "COMPLETED"
        assert now["after"] == ("RUNNING" if is_promoted else "SKIPPED")
        assert await champion(pipes) == standing
        if not is_promoted:
            found = await pipes.get(one)
            assert "not above the least gain 0" in found["steps"][2]["reason"]
            assert found["state"] == "COMPLETED"
    # What was not promoted is a version, too, and says why.
    version = ok(await pipes.user.get("/api/v1/models/digits/versions/2"))["modelVersion"]
    noted = version["metadata"]["pipeline"]
    assert (noted["promoted"], noted["champion"], noted["step"]) == (False, 1, "publish")
    assert noted["scores"]["accuracy"]["gain_low"] == -0.1


async def test_an_alias_that_was_moved_since_is_compared_with_again(pipes: Pipelines) -> None:
    for low in (None, 0.1):
        one, _ = await trained(pipes, COMPARED)
        await evaluated(pipes, one, low)
        await pipes.advance(one)

    async def move(version: int) -> None:
        path = "/api/v1/models/digits/aliases/champion"
        ok(await pipes.user.put(path, json={"version": version}))

    one, _ = await trained(pipes, COMPARED)
    await move(1)
    last = await evaluated(pipes, one, 0.1)
    assert await pipes.advance(one) == {"a": "COMPLETED", "score": "RUNNING", "publish": "WAITING"}
    assert "moved by somebody" in (await pipes.get(one))["steps"][1]["reason"]
    await evaluated(pipes, one, 0.1, last)
    assert (await pipes.advance(one))["publish"] == "COMPLETED"
    assert await champion(pipes) == 3
    # Who moves it again and again is left alone.
    one, _ = await trained(pipes, COMPARED)
    last = 0
    for version in (1, 2, 1):
        await move(version)
        last = await evaluated(pipes, one, 0.1, last)
        await pipes.advance(one)
    found = await pipes.get(one)
    assert (found["state"], await champion(pipes)) == ("FAILED", 1)
    assert "during each of 3 evaluations" in found["steps"][2]["reason"]


async def test_a_person_approves_what_is_better_unless_the_alias_has_moved(
    pipes: Pipelines,
) -> None:
    one, _ = await trained(pipes, COMPARED)
    await evaluated(pipes, one, None)
    await pipes.advance(one)
    asking = {"name": "publish", "promote": {"comparison": "score", "approval": True}}
    one, _ = await trained(pipes, asking)
    await evaluated(pipes, one, 0.1)
    await pipes.advance(one)
    now = await pipes.get(one)
    assert (now["state"], await champion(pipes)) == ("WAITING_FOR_APPROVAL", 1)
    assert f"det pipeline approve {one} --step publish" in now["steps"][2]["reason"]

    async def answer(yes: bool) -> httpx.Response:
        path = f"/api/v1/pipelines/{one}/approve"
        return await pipes.user.post(path, json={"approve": yes})

    ok(await pipes.user.delete("/api/v1/models/digits/aliases/champion"))
    refused = await answer(True)
    assert (refused.status_code, "was compared with version 1" in refused.text) == (409, True)
    path = "/api/v1/models/digits/aliases/champion"
    ok(await pipes.user.put(path, json={"version": 1}))
    # Of four who answer at once one has the word, and the alias stands in that transaction.
    answers = await asyncio.gather(*(answer(True) for _ in range(4)))
    assert sorted(one.status_code for one in answers) == [200, 409, 409, 409]
    assert await champion(pipes) == 2
    await pipes.advance(one)
    now = await pipes.get(one)
    assert (now["state"], now["steps"][2]["reason"].endswith("; approved by determined")) == (
        "COMPLETED",
        True,
    )
    moves = ok(await pipes.user.get("/api/v1/models/digits/alias-history"))["moves"]
    assert [one["toVersion"] for one in moves] == [1, None, 1, 2]
    # Rejected: the pipeline has ended well all the same, at once.
    one, _ = await trained(
        pipes, asking, step("after", when="${steps.publish.best.metrics.promoted}")
    )
    await evaluated(pipes, one, 0.1)
    await pipes.advance(one)
    ok(await answer(False))
    now = await pipes.get(one)
    assert (now["state"], now["steps"][3]["state"]) == ("COMPLETED", "SKIPPED")
    assert (
        now["steps"][2]["reason"].endswith("; rejected by determined"),
        await champion(pipes),
    ) == (
        True,
        2,
    )


async def test_a_checkpoint_is_scored_without_a_champion(pipes: Pipelines) -> None:
    one, _ = await trained(pipes, COMPARED)
    await evaluated(pipes, one, None)
    await pipes.advance(one)
    for wrong, words in (
        ({"model": "digits", "version": 10**12}, f"model 'digits' has no version {10**12}"),
        ({"model": "digits", "version": "best"}, "model 'digits' has no version best"),
        ({"model": "nothing", "version": 1}, "model 'nothing' does not exist"),
        ("1234", "evaluate: checkpoint '1234' is not a UUID"),
    ):
        asked = {"function": "code:evaluate", "checkpoint": wrong, "like": "a"}
        one = await pipes.submit(step("a"), {"name": "score", "evaluate": asked, "code": "0"})
        await pipes.advance(one)
        await pipes.complete((await pipes.experiments(one, "a"))[0], 0.75)
        assert (await pipes.advance(one))["score"] == "FAILED"
        assert (await pipes.get(one))["steps"][1]["reason"].endswith(words)
    version = {"model": "digits", "version": "champion"}
    given = {"function": "code:evaluate", "checkpoint": version, "like": "b"}
    one = await pipes.submit(
        step("b", when="${steps.score.best.metrics.accuracy} > 0.8", needs=["first"]),
        step("first"),
        {"name": "score", "evaluate": {**given, "like": "first"}, "code": "0"},
    )
    await pipes.advance(one)
    await pipes.complete((await pipes.experiments(one, "first"))[0], 0.5)
    await pipes.advance(one)
    await evaluated(pipes, one, None)
    assert (await pipes.advance(one))["b"] == "RUNNING"


async def test_a_command_fails_its_step_unless_it_exits_with_0(pipes: Pipelines) -> None:
    command = {"command": ["python3", "check.py"], "code": "0"}
    one = await pipes.submit({"name": "c", **command}, step("a", needs=["c"]))
    for state, then in (("ERROR", "FAILED"), ("COMPLETED", "COMPLETED")):
        await pipes.advance(one)
        (made,) = (await pipes.get(one))["steps"][0]["experiments"]
        (task,) = await pipes.world.rows(sa.select(tasks).where(tasks.c.id == made["taskId"]))
        assert (task.kind, task.name, task.config["entrypoint"]) == (
            "COMMAND",
            "p: c",
            ["python3", "check.py"],
        )
        assert task.model_def_hash is not None
        async with pipes.world.db.tx() as conn:
            ended = {"state": state, "reason": "exit code 3"}
            await conn.execute(sa.update(tasks).where(tasks.c.id == task.id).values(ended))
        assert (await pipes.advance(one))["c"] == then
        if state == "ERROR":
            reason = (await pipes.get(one))["steps"][0]["reason"]
            assert reason == f"task {task.id} failed: exit code 3"
            await pipes.ask(one, "resume")
    # A cancel kills it.
    one = await pipes.submit({"name": "c", **command})
    await pipes.advance(one)
    await pipes.ask(one, "cancel")
    (made,) = (await pipes.get(one))["steps"][0]["experiments"]
    (task,) = await pipes.world.rows(sa.select(tasks).where(tasks.c.id == made["taskId"]))
    assert task.state != "ACTIVE"


async def test_a_rejection_fails_the_step_and_a_resumed_pipeline_asks_again(
    pipes: Pipelines,
) -> None:
    one = await pipes.submit(
        {"name": "good", "approval": "Good enough?"}, step("a", needs=["good"])
    )
    await pipes.advance(one)
    for said, state in ((False, "FAILED"), (True, "RUNNING")):
        body = {"approve": said}
        ok(await pipes.user.post(f"/api/v1/pipelines/{one}/approve", json=body))
        await pipes.advance(one)
        now = await pipes.get(one)
        assert now["state"] == state
        if not said:
            assert now["steps"][0]["reason"] == "rejected by determined"
            await pipes.ask(one, "resume")
            await pipes.advance(one)
            assert (await pipes.get(one))["state"] == "WAITING_FOR_APPROVAL"
    await pipes.ask(one, "cancel")
    asks = await pipes.submit({"name": "good", "approval": "Good enough?"})
    await pipes.advance(asks)
    await pipes.ask(asks, "cancel")
    assert (await pipes.get(asks))["state"] == "CANCELED"


async def test_a_pipeline_promotes_only_with_its_owners_rights(
    pipes: Pipelines, agent: httpx.AsyncClient, service_app: FastAPI
) -> None:
    ok(await pipes.user.post("/api/v1/models", json={"name": "digits"}))
    ok(await agent.post("/api/v1/users", json={"user": {"username": "mallory", "active": True}}))
    async with client_of(service_app, None) as other:
        login = {"username": "mallory", "password": "", "isHashed": False}
        token = ok(await other.post("/api/v1/auth/login", json=login))["token"]
        other.headers["Authorization"] = f"Bearer {token}"
        steps = [step("a"), {"name": "p", "promote": promotion("a")}]
        body = {"pipeline": {"name": "p", "steps": steps}, "modelDefinitions": {"0": CODE}}
        answer = await other.post("/api/v1/pipelines", json=body)
        assert (answer.status_code, "only its owner" in answer.text) == (403, True), answer.text
        # The model is created after the check of the pipeline, so the step is refused.
        steps[1]["promote"]["model"] = "other"
        one = int(ok(await other.post("/api/v1/pipelines", json=body))["pipelineId"])
    ok(await pipes.user.post("/api/v1/models", json={"name": "other"}))
    await pipes.advance(one)
    await pipes.complete((await pipes.experiments(one, "a"))[0], 0.75)
    assert (await pipes.advance(one))["p"] == "FAILED"
    assert "only its owner determined" in (await pipes.get(one))["steps"][1]["reason"]
    bad = {"name": "p", "promote": promotion("a", alias="7")}
    for steps in ([step("a"), bad],):
        body["pipeline"] = {"name": "p", "steps": steps}
        answer = await pipes.user.post("/api/v1/pipelines", json=body)
        assert (answer.status_code, "step p: alias: '7' names a version" in answer.text) == (
            400,
            True,
        )


async def test_a_pipeline_begins_nothing_when_its_owner_has_lost_the_role(
    pipes: Pipelines, service_app: FastAPI
) -> None:
    await give(service_app, "determined", "Editor", 1)
    await put_mode(service_app)
    promoted = {"name": "p", "promote": promotion("a"), "needs": ["b"]}
    one = await pipes.submit(step("a"), step("b", needs=["a"]), promoted)
    await pipes.advance(one)
    await pipes.complete((await pipes.experiments(one, "a"))[0], 0.75)
    assert await pipes.advance(one) == {"a": "COMPLETED", "b": "RUNNING", "p": "WAITING"}
    await pipes.complete((await pipes.experiments(one, "b"))[0], 0.75)
    await take(service_app, "determined")
    await give(service_app, "determined", "Viewer", 1)
    assert (await pipes.advance(one))["p"] == "FAILED"
    assert (await pipes.get(one))["steps"][2]["reason"] == (
        "the roles of user determined, in whose name this pipeline runs, do not suffice any more: user "
        "determined may not submit experiments: that needs the role Editor in workspace 'Uncategorized'; who "
        "may assign it runs `det rbac assign-role Editor -u determined -w Uncategorized`; or let another "
        "user submit it"
    )


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


async def test_only_failed_items_are_tried_again(pipes: Pipelines) -> None:
    one = await pipes.submit(
        step("first"), step("then", needs=["first"]), step("other"), step("after", needs=["other"])
    )
    await pipes.advance(one)
    (first,), (other,) = [await pipes.experiments(one, name) for name in ("first", "other")]
    await pipes.end(first, "ERROR")
    await pipes.complete(other, 0.5)
    # The branch that does not need it goes on.
    assert await pipes.advance(one) == {
        "first": "FAILED",
        "then": "SKIPPED",
        "other": "COMPLETED",
        "after": "RUNNING",
    }
    await pipes.ask(one, "resume", 409)
    await pipes.complete((await pipes.experiments(one, "after"))[0], 0.5)
    await pipes.advance(one)
    now = await pipes.get(one)
    assert (now["state"], now["reason"]) == ("FAILED", "step first failed, 1 skipped")
    assert now["steps"][0]["reason"] == f"experiment {first} failed: out of memory"
    assert now["steps"][1]["reason"] == "step first failed"
    await pipes.ask(one, "resume")
    assert (await pipes.advance(one))["first"] == "RUNNING"
    (again,) = await pipes.experiments(one, "first")
    assert again != first
    assert await pipes.experiments(one, "other") == [other]
    # An experiment that somebody continued since counts, too.
    await pipes.end(again, "CANCELED")
    await pipes.advance(one)
    await pipes.complete(again, 0.5)
    await pipes.ask(one, "resume")
    assert (await pipes.advance(one))["then"] == "RUNNING"
    (earlier,) = (await pipes.get(one))["steps"][0]["earlierExperiments"]
    assert (earlier["id"], earlier["state"], earlier["attempt"]) == (first, "FAILED", 1)


async def test_a_cancel_ends_only_ones_own_experiments(
    pipes: Pipelines, service_app: FastAPI
) -> None:
    shared = step("shared", cached=True)
    owner = await pipes.submit(shared)
    await pipes.advance(owner)
    one = await pipes.submit(shared, step("mine"), step("late", needs=["mine"]))
    await pipes.advance(one)
    (borrowed,), (mine,) = [await pipes.experiments(one, name) for name in ("shared", "mine")]
    assert [borrowed] == await pipes.experiments(owner, "shared")
    # The process dies between the decision and the deed: the leader does it.
    async with changing(pipes.world.db) as change:
        await people.cancel_locked(change, await rows.lock(change.conn, one), "canceled by me")
    await people.stop_all(pipes.world.db)
    assert (await pipes.row(mine)).state == "CANCELED"
    assert (await pipes.row(borrowed)).state == "ACTIVE"
    now = await pipes.get(one)
    assert (now["state"], now["reason"]) == ("CANCELED", "canceled by me")
    assert {x["state"] for x in now["steps"]} == {"CANCELED"}
    await pipes.ask(one, "cancel", 409)
    await pipes.ask(one, "resume")
    await pipes.advance(one)
    assert await pipes.experiments(one, "shared") == [borrowed]
    # Another user ends the shared experiment: this pipeline runs a separate one.
    await pipes.ask(owner, "cancel")
    assert (await pipes.row(borrowed)).state == "CANCELED"
    await pipes.advance(one)
    (own,) = await pipes.experiments(one, "shared")
    assert own not in (None, borrowed)
    await pipes.complete(own, 0.5)
    assert (await pipes.advance(one))["shared"] == "COMPLETED"
    third = await pipes.submit(shared)
    assert await pipes.advance(third) == {"shared": "COMPLETED"}
    # Other code is another experiment.
    other = await pipes.submit(shared, code=[{**CODE[0], "path": "other.py"}])
    assert await pipes.advance(other) == {"shared": "RUNNING"}


async def test_a_cached_submission_and_a_pipeline_find_each_others_experiments(
    pipes: Pipelines,
) -> None:
    body = {"config": json.dumps(config()), "modelDefinition": CODE, "cached": True}

    async def submit() -> int:
        return int(ok(await pipes.user.post("/api/v1/experiments", json=body))["experiment"]["id"])

    async def of_pipeline() -> int:
        one = await pipes.submit({"name": "a", "experiment": config(), "code": "0", "cached": True})
        await pipes.advance(one)
        (found,) = await pipes.experiments(one, "a")
        return found

    # Of several at once only one is stored.
    (first,) = set(await asyncio.gather(*(submit() for _ in range(4))))
    assert await of_pipeline() == first
    await pipes.end(first, "ERROR")
    again = await of_pipeline()
    assert again != first
    assert await submit() == again
    await pipes.complete(again, 0.5)
    assert await submit() == again
    # Without `cached`, and with other code, it is another experiment.
    body["cached"] = False
    assert await submit() not in (first, again)
    body |= {"cached": True, "modelDefinition": []}
    assert await submit() not in (first, again)
    answer = await pipes.user.post("/api/v1/experiments", json={**body, "idempotencyKey": "k"})
    assert (answer.status_code, "cached does not go with" in answer.text) == (400, True)


async def test_its_run_lives_as_long_as_the_pipeline_and_tells_its_story(
    pipes: Pipelines, service_app: FastAPI
) -> None:
    one = await pipes.submit(step("first"), step("then", needs=["first"]))
    runs = FakeRuns("pipeline")
    state = service_app.state
    await keep(service_app, runs)
    assert runs.made == [f"p (pipeline {one})"]
    await pipes.advance(one)
    (first,) = await pipes.experiments(one, "first")
    # Its process dies: the same run starts again.
    runs.all_become("CRASHED")
    await keep(service_app, runs)
    assert (list(runs.states.values()), len(runs.made)) == (["SCHEDULED"], 1)
    # Somebody cancels the run.
    runs.all_become("CANCELLED")
    await keep(service_app, runs)
    assert (await pipes.row(first)).state == "CANCELED"
    assert (await pipes.get(one))["reason"] == "its run was cancelled in Prefect"
    await RunPages(state.db, cast(Gateway, runs), state.settings).look()
    page = runs.pages[f"determined-pipeline-{one}"]
    assert f"det pipeline resume {one}" in page
    assert "its run was cancelled in Prefect" in page
    await keep(service_app, runs)
    await pipes.ask(one, "resume")
    await keep(service_app, runs)
    assert runs.told[-1][1:] == ("SCHEDULED", "Scheduled", "started again: it goes on")
    # Its last word, if it died before it could say it.
    await pipes.ask(one, "cancel")
    runs.all_become("CRASHED")
    await keep(service_app, runs)
    words = f"pipeline {one} CANCELED: canceled by determined"
    assert runs.told[-1][1:] == ("CANCELLED", "Cancelled", words)
    await pipes.ask(one, "resume")
    # Somebody deletes the run: another one takes its place.
    runs.states.clear()
    await keep(service_app, runs)
    assert len(runs.made) == 2
    # A flow that dies repeatedly without progress is given up.
    for _ in range(MAX_INTERRUPTIONS + 1):
        assert (await pipes.get(one))["state"] == "RUNNING"
        runs.all_become("CRASHED")
        await keep(service_app, runs)
    now = await pipes.get(one)
    assert (now["state"], now["reason"]) == ("FAILED", "its flow was interrupted 10 times in a row")
    await keep(service_app, runs)
    assert list(runs.states.values()) == ["FAILED"]
    of_pipelines = sa.select(kept_runs.c.settled).where(kept_runs.c.pipeline_id.is_not(None))
    assert [row.settled for row in await pipes.world.rows(of_pipelines)] == [True]


async def test_a_submission_with_a_key_is_one_pipeline(pipes: Pipelines) -> None:
    asked = (pipes.submit(step("a"), idempotencyKey="k") for _ in range(4))
    assert len(set(await asyncio.gather(*asked))) == 1


async def test_items_that_may_be_secrets_are_hidden_from_others(
    pipes: Pipelines, agent: httpx.AsyncClient, service_app: FastAPI
) -> None:
    words = {"environment.environment_variables": ["TOKEN=${item}"]}
    one = await pipes.submit(step("a", for_each=["s3cret"], **{"with": words}))
    await pipes.advance(one)
    assert (await pipes.get(one))["steps"][0]["experiments"][0]["item"] == "s3cret"
    ok(await agent.post("/api/v1/users", json={"user": {"username": "mallory"}}))
    async with client_of(service_app, None) as other:
        login = {"username": "mallory", "password": "", "isHashed": False}
        token = ok(await other.post("/api/v1/auth/login", json=login))["token"]
        other.headers["Authorization"] = f"Bearer {token}"
        answer = await other.get(f"/api/v1/pipelines/{one}")
    assert ok(answer)["pipeline"]["steps"][0]["experiments"][0]["item"] is None
    assert "s3cret" not in answer.text


WRONG: list[tuple[list[dict[str, Any]], str]] = [
    ([step("a", needs=["b"])], "steps[0].needs[0]: it needs 'b', which is no step"),
    ([step("a", nedds=[])], "steps[0].nedds: unknown field; did you mean 'needs'?"),
    ([step("a", experiment=config(resources={"resource_pool": "x"}))], "step a: "),
    (
        [step("a"), step("b", **{"with": {"hyperparameters.x": "${steps.a.best.hparams.l}"}})],
        "has no hyperparameter 'l'",
    ),
    ([step("a", code="7")], "step a: code: no modelDefinitions.7 was sent"),
    ([step("a", experiment="a.yaml")], "expected an experiment configuration, found 'a.yaml'"),
]


async def test_a_pipeline_that_cannot_work_is_refused(pipes: Pipelines) -> None:
    for steps, words in WRONG:
        body = {"pipeline": {"name": "p", "steps": steps}, "modelDefinitions": {"0": CODE}}
        answer = await pipes.user.post("/api/v1/pipelines", json=body)
        assert (answer.status_code, words in answer.text) == (400, True), answer.text
    assert await pipes.world.rows(sa.select(pipelines.c.id)) == []
