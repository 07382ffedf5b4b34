"""Pipelines: each experiment runs once, even if several processes advance the pipeline repeatedly.

Rows replace the experiments' processes: the tests are about the pipeline's use of their results.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any, cast

import httpx
import sqlalchemy as sa
from fastapi import FastAPI

from determined_registry.database.tables import (
    experiments,
    kept_runs,
    model_definitions,
    pipelines,
)
from determined_service.pipelines import people, rows
from determined_service.prefect.gateway import Gateway
from determined_service.prefect.keeper import MAX_INTERRUPTIONS
from determined_service.prefect.pages.writing import RunPages
from determined_service.state.change import changing
from tests.integration.conftest import client_of
from tests.integration.service_api.flow_runs import FakeRuns, keep
from tests.integration.service_api.pipeline_requests import CODE, Pipelines, config, ok, step


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
    ([step("a", needs=["b"])], "steps[0].needs[0]: it needs 'b', which is not a step"),
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
