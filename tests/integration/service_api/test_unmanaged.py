"""Unmanaged experiments: the requests of their scripts, and their states."""

from __future__ import annotations

import uuid
from typing import Any

import httpx
import pytest
import sqlalchemy as sa
from fastapi import FastAPI

from determined_registry.database.tables import trials
from determined_service.base.db import Database
from determined_service.lifecycle import unmanaged
from determined_service.plots.model import PlottedOutcome
from determined_service.plots.queries import read_search
from tests.integration.conftest import client_of

CONFIG = """
name: outside
searcher: {name: adaptive_asha, metric: loss, time_metric: batches, max_time: 5, max_trials: 9}
"""


async def put(user: httpx.AsyncClient, external_id: str = "e", **body: Any) -> httpx.Response:
    path = f"/api/v1/experiments/by-external-id/{external_id}"
    return await user.put(path, json={"config": CONFIG, "unmanaged": True, **body})


async def experiment(user: httpx.AsyncClient, external_id: str = "e") -> dict[str, Any]:
    answer = await put(user, external_id)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()["experiment"]
    return found


async def trial(user: httpx.AsyncClient, experiment_id: int, name: str = "t") -> dict[str, Any]:
    new = {"experimentId": experiment_id, "hparams": {"lr": 0.5}, "unmanaged": True}
    body = {"createTrialRequest": new, "externalTrialId": name}
    answer = await user.put("/api/v1/trials", json=body)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()["trial"]
    return found


async def start(user: httpx.AsyncClient, trial_id: int, resume: bool = True) -> dict[str, Any]:
    answer = await user.post(f"/api/v1/trials/{trial_id}/start", json={"resume": resume})
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def say(user: httpx.AsyncClient, trial_id: int, state: str | None = None) -> httpx.Response:
    body = {} if state is None else {"state": f"STATE_{state}"}
    return await user.patch(f"/api/v1/trials/{trial_id}", json=body)


async def states(user: httpx.AsyncClient, experiment_id: int) -> list[str]:
    """The experiment's state, and its trials'."""
    path = f"/api/v1/experiments/{experiment_id}"
    of_trials = (await user.get(f"{path}/trials")).json()["trials"]
    found = [(await user.get(path)).json()["experiment"], *of_trials]
    return [one["state"].removeprefix("STATE_") for one in found]


async def seen(app: FastAPI, trial_id: int, ago: str) -> None:
    """The trial's process was last heard of so long ago."""
    db: Database = app.state.db
    async with db.tx() as conn:
        at = sa.text(f"now() - interval '{ago}'")
        await conn.execute(sa.update(trials).where(trials.c.id == trial_id).values(seen_at=at))


async def silence(app: FastAPI, trial_id: int) -> list[int]:
    """Set the trial's last sign of life to an hour ago; return the trials that are given up."""
    await seen(app, trial_id, "1 hour")
    return await unmanaged.give_up_silent(app.state.db)


async def waits(user: httpx.AsyncClient, experiment_id: int) -> list[str]:
    """The operations that the experiment's trials wait for."""
    answer = await user.get(f"/api/v1/experiments/{experiment_id}/explanation")
    return [one["reason"] for one in answer.json()["waiting"]]


async def test_external_ids_find_experiment_and_trial_again(user: httpx.AsyncClient) -> None:
    first = await experiment(user)
    assert (first["unmanaged"], first["externalExperimentId"]) == (True, "e")
    assert (await experiment(user))["id"] == first["id"]
    assert (await experiment(user, "other/name"))["id"] != first["id"]
    one = await trial(user, first["id"])
    assert one["hparams"] == {"lr": 0.5}
    assert (await trial(user, first["id"]))["id"] == one["id"]
    assert (await trial(user, first["id"], "second"))["id"] != one["id"]
    # Without a name there is a new one each time.
    created = await user.post("/api/v1/experiments", json={"config": CONFIG, "unmanaged": True})
    assert created.json()["experiment"]["id"] != first["id"]
    assert created.json()["plotUrl"].startswith("http")


async def test_a_trial_whose_script_runs_is_plotted_as_running(
    user: httpx.AsyncClient, database_url: str
) -> None:
    made = await experiment(user, "plotted")
    one, other = await trial(user, made["id"], "one"), await trial(user, made["id"], "other")
    for each in (one, other):
        await start(user, each["id"])
    await say(user, other["id"], "CANCELED")
    found = read_search(database_url, made["id"])
    assert [each.outcome for each in found.trials] == [
        PlottedOutcome.RUNNING,
        PlottedOutcome.CANCELED,
    ]


async def test_the_life_of_a_trial(user: httpx.AsyncClient) -> None:
    experiment_id = (await experiment(user))["id"]
    found = await trial(user, experiment_id)
    trial_id = found["id"]
    begun = await start(user, trial_id)
    assert begun == {"trialRunId": 1, "latestCheckpoint": None, "stepsCompleted": 0}
    assert await states(user, experiment_id) == ["RUNNING", "RUNNING"]

    metrics = {
        "run_id": 1,
        "reports": [
            {"group": "validation", "steps_completed": 3, "metrics": {"loss": 0.5, "batches": 3}}
        ],
    }
    sent = await user.post(f"/api/v1/trials/{trial_id}/metrics/batch", json=metrics)
    assert sent.json() == {"stored": 1}, sent.text
    assert (await user.post(f"/api/v1/trials/{trial_id}/progress", json=2)).status_code == 200
    checkpoint = {
        "uuid": str(uuid.uuid4()),
        "taskId": found["taskId"],
        "allocationId": None,
        "resources": {"a": 1},
        "metadata": {"steps_completed": 3},
    }
    assert (await user.post("/api/v1/checkpoints", json=checkpoint)).status_code == 200
    line = {"task_id": found["taskId"], "log": "hello\n", "rank": "0"}
    assert (await user.post("/task-logs", json=[line])).status_code == 200
    refused = await user.post("/task-logs", json=[line, line | {"task_id": None}])
    assert refused.status_code == 400
    assert "task_id: expected text" in refused.json()["message"]
    logs = await user.get(f"/api/v1/trials/{trial_id}/logs")
    assert logs.text.count('"hello') == 1

    assert (await say(user, trial_id)).status_code == 200
    assert (await say(user, trial_id, "COMPLETED")).status_code == 200
    assert await states(user, experiment_id) == ["COMPLETED", "COMPLETED"]
    # A heartbeat that was on its way changes nothing.
    assert (await say(user, trial_id)).status_code == 200
    assert await states(user, experiment_id) == ["COMPLETED", "COMPLETED"]

    again = await start(user, trial_id)
    assert again == {
        "trialRunId": 2,
        "latestCheckpoint": checkpoint["uuid"],
        "stepsCompleted": 3,
    }
    assert await states(user, experiment_id) == ["RUNNING", "RUNNING"]
    assert (await say(user, trial_id, "ERROR")).status_code == 200
    assert await states(user, experiment_id) == ["ERROR", "ERROR"]
    legs = (await user.get(f"/api/v1/trials/{trial_id}")).json()["trial"]["legs"]
    assert [leg["state"] for leg in legs] == ["STATE_COMPLETED", "STATE_ERROR"]
    assert (await start(user, trial_id, resume=False))["latestCheckpoint"] is None


async def test_a_script_that_started_again_elsewhere_ends_the_first(
    user: httpx.AsyncClient,
) -> None:
    experiment_id = (await experiment(user))["id"]
    found = await trial(user, experiment_id)
    path = f"/api/v1/trials/{found['id']}"
    assert (await start(user, found["id"]))["trialRunId"] == 1

    async def speak(run_id: int) -> list[httpx.Response]:
        """All messages that a process sends automatically."""
        report = {"group": "training", "steps_completed": run_id, "metrics": {"loss": 0.5}}
        checkpoint = {
            "uuid": str(uuid.uuid4()),
            "taskId": found["taskId"],
            "allocationId": f"{found['taskId']}.{run_id}",
            "resources": {"a": 1},
            "metadata": {"steps_completed": run_id},
        }
        line = {"taskId": found["taskId"], "log": f"run {run_id}\n"}
        says = {
            f"{path}/metrics/batch": {"run_id": run_id, "reports": [report]},
            f"{path}/progress": {"progress": run_id / 10},
            f"{path}/runner/metadata": {"state": f"run {run_id}"},
            f"/api/v1/runs/{found['id']}/metadata": {"metadata": {"run": run_id}},
            "/api/v1/checkpoints": checkpoint,
            "/api/v1/task/logs": {"logs": [line]},
        }
        cookie = {"Cookie": f"determined-run={found['id']}.{run_id}"}
        return [
            await user.patch(path, json={}, headers=cookie),
            *[await user.post(to, json=body, headers=cookie) for to, body in says.items()],
            await user.patch(path, json={"state": f"STATE_{ENDS[run_id]}"}, headers=cookie),
        ]

    second = await start(user, found["id"])
    assert (second["trialRunId"], second["stepsCompleted"]) == (2, 0)
    for answer in await speak(1):
        assert answer.status_code == 409, answer.request.url
        assert "run 1 of trial 1 has ended: its script has started again, as run 2" in answer.text
    assert await states(user, experiment_id) == ["RUNNING", "RUNNING"]
    assert [answer.status_code for answer in await speak(2)] == [200] * 8
    assert await states(user, experiment_id) == ["COMPLETED", "COMPLETED"]
    checkpoints = (await user.get(f"{path}/checkpoints")).json()["checkpoints"]
    assert [one["metadata"]["steps_completed"] for one in checkpoints] == [2]
    # A sender that does not say its run is let through, as of old.
    assert (await say(user, found["id"])).status_code == 200


ENDS = {1: "ERROR", 2: "COMPLETED"}


async def test_determineds_client_is_told_its_run_by_a_cookie(
    service_app: FastAPI, user: httpx.AsyncClient
) -> None:
    experiment_id = (await experiment(user))["id"]
    found = await trial(user, experiment_id)
    path, other = f"/api/v1/trials/{found['id']}", (await trial(user, experiment_id, "o"))["id"]
    async with client_of(service_app, user.headers["Authorization"].split()[1]) as first:
        await start(user, found["id"])
        assert "set-cookie" not in (await say(first, found["id"])).headers
        assert "HttpOnly" in (await say(first, found["id"], "RUNNING")).headers["set-cookie"]
        assert dict(first.cookies) == {"determined-run": f"{found['id']}.1"}
        await start(user, found["id"])
        for answer in (
            await first.post(f"{path}/progress", json={"progress": 0.9}),
            await say(first, found["id"]),
            await say(first, found["id"], "RUNNING"),
            await say(first, found["id"], "ERROR"),
        ):
            assert answer.status_code == 409 and "as run 2" in answer.text
        # Its client would stand still after a refusal.
        line = {"task_id": found["taskId"], "log": "late\n"}
        assert (await first.post("/task-logs", json=[line])).status_code == 200
        assert "late" not in (await user.get(f"{path}/logs")).text
    assert await states(user, experiment_id) == ["RUNNING", "RUNNING", "RUNNING"]
    # Of another trial it says nothing, and no nonsense does harm.
    for cookie in (f"{found['id']}.2", "77.1", "x", f"{'9' * 30}.1"):
        headers = {"Cookie": f"determined-run={cookie}"}
        answer = await user.patch(f"/api/v1/trials/{other}", json={}, headers=headers)
        assert answer.status_code == 200, cookie


async def test_without_a_sign_of_life_it_is_in_error(
    user: httpx.AsyncClient, service_app: FastAPI
) -> None:
    experiment_id = (await experiment(user))["id"]
    trial_id = (await trial(user, experiment_id))["id"]
    await start(user, trial_id)
    assert await unmanaged.give_up_silent(service_app.state.db) == []
    assert await waits(user, experiment_id) == []
    await seen(service_app, trial_id, "100 s")
    (reason,) = await waits(user, experiment_id)
    assert "its script has sent no heartbeat" in reason and "after 5 minutes" in reason
    assert await silence(service_app, trial_id) == [trial_id]
    assert await states(user, experiment_id) == ["ERROR", "ERROR"]
    reason = (await user.get(f"/api/v1/trials/{trial_id}")).json()["trial"]["reason"]
    assert reason == "no sign of life of its process for 5 minutes"
    # It was only away.
    assert (await say(user, trial_id)).status_code == 200
    assert await states(user, experiment_id) == ["RUNNING", "RUNNING"]
    assert await silence(service_app, trial_id) == [trial_id]
    assert (await say(user, trial_id, "COMPLETED")).status_code == 200
    assert await states(user, experiment_id) == ["COMPLETED", "COMPLETED"]


async def test_a_search_ends_with_its_last_trial(user: httpx.AsyncClient) -> None:
    experiment_id = (await experiment(user))["id"]
    ids = [(await trial(user, experiment_id, name))["id"] for name in "abc"]
    for trial_id in ids:
        await start(user, trial_id)
    await say(user, ids[0], "ERROR")
    await say(user, ids[1], "COMPLETED")
    assert (await states(user, experiment_id))[0] == "RUNNING"
    await say(user, ids[2], "ERROR")
    assert await states(user, experiment_id) == ["COMPLETED", "ERROR", "COMPLETED", "ERROR"]


@pytest.mark.parametrize("action", ["cancel", "kill"])
async def test_a_user_ends_it(user: httpx.AsyncClient, action: str) -> None:
    experiment_id = (await experiment(user))["id"]
    trial_id = (await trial(user, experiment_id))["id"]
    await start(user, trial_id)
    path = f"/api/v1/experiments/{experiment_id}"
    for refused in ("pause", "activate"):
        answer = await user.post(f"{path}/{refused}")
        assert answer.status_code == 409 and "unmanaged" in answer.text
    assert (await user.post(f"{path}/{action}")).status_code == 200
    assert await states(user, experiment_id) == ["CANCELED", "CANCELED"]
    # The script gets the refusal; its report of its end changes nothing.
    told = await say(user, trial_id)
    assert told.status_code == 409 and f"trial {trial_id} has ended" in told.text
    assert (await say(user, trial_id, "COMPLETED")).status_code == 200
    assert await states(user, experiment_id) == ["CANCELED", "CANCELED"]
    # Unless it is started again.
    await start(user, trial_id)
    assert await states(user, experiment_id) == ["RUNNING", "RUNNING"]
    assert (await user.post(f"/api/v1/trials/{trial_id}/kill")).status_code == 200
    assert await states(user, experiment_id) == ["CANCELED", "CANCELED"]


async def test_refusals(user: httpx.AsyncClient) -> None:
    managed = "entrypoint: x\nsearcher: {name: single, metric: loss}\nname: inside\n"
    created = await user.post("/api/v1/experiments", json={"config": managed, "activate": False})
    inside = created.json()["experiment"]["id"]
    new = {"experimentId": inside, "unmanaged": True}
    answers = {
        "is not unmanaged": await user.post("/api/v1/trials", json=new),
        "only in unmanaged experiments": await user.post(
            "/api/v1/trials", json={"experimentId": 1}
        ),
        "does not exist": await user.post("/api/v1/trials/77/start", json={}),
        "have external ids": await put(user, unmanaged=False),
        "searcher.metric": await put(user, config="name: x\nsearcher: {name: single}\n"),
    }
    for words, answer in answers.items():
        assert answer.status_code in (400, 404), answer.text
        assert words in answer.text
    outside = await trial(user, (await experiment(user))["id"])
    wrong = await say(user, outside["id"], "PAUSED")
    assert wrong.status_code == 400 and "COMPLETED" in wrong.text
