"""The steps of a pipeline that train nothing: evaluate, promote, command, wait for an approval."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import sqlalchemy as sa
from fastapi import FastAPI

from determined_registry.database.tables import (
    metrics,
    tasks,
    trials,
)
from tests.integration.conftest import client_of
from tests.integration.roles import give, put_mode, take
from tests.integration.service_api.flow_runs import FakeRuns, keep
from tests.integration.service_api.pipeline_requests import CODE, Pipelines, ok, step


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
