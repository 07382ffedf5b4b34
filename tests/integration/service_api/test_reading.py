"""Lists and single things: experiments, trials, metrics, model definitions, the cluster."""

from __future__ import annotations

import base64
import hashlib
import io
import random
import tarfile
from typing import Any

import httpx
import orjson
import pytest
import sqlalchemy as sa
from fastapi import FastAPI

from determined.common.wire.limits import MIB
from determined_registry.database.tables import (
    agents,
    allocations,
    experiments,
    model_definitions,
    slots,
    trials,
)
from tests.integration.conftest import AGENT_TOKEN
from tests.integration.service_api.world import Leg, World, report


async def names(user: httpx.AsyncClient, **params: Any) -> list[str]:
    answer = await user.get("/api/v1/experiments", params=params)
    assert answer.status_code == 200, answer.text
    return [one["name"] for one in answer.json()["experiments"]]


async def test_experiments_filtered_sorted_and_paged(world: World, user: httpx.AsyncClient) -> None:
    ids = {
        name: await world.experiment(name, **values)
        for name, values in {
            "one": {"labels": ["x", "y"], "description": "First 100%"},
            "two": {"labels": ["x"], "state": "COMPLETED", "archived": True},
            "three": {"state": "PAUSED"},
        }.items()
    }
    await world.trial(ids["three"])
    assert await names(user) == ["one", "two", "three"]
    assert await names(user, orderBy="ORDER_BY_DESC") == ["three", "two", "one"]
    assert await names(user, sortBy="SORT_BY_NAME") == ["one", "three", "two"]
    assert await names(user, sortBy="SORT_BY_NUM_TRIALS", orderBy="ORDER_BY_DESC", limit=1) == [
        "three"
    ]
    assert await names(user, labels=["x", "y"]) == ["one"]
    assert await names(user, archived="false") == ["one", "three"]
    assert await names(user, states=["STATE_PAUSED", "STATE_COMPLETED"]) == ["two", "three"]
    assert await names(user, states="STATE_ACTIVE") == ["one"]
    assert await names(user, name="T") == ["two", "three"]
    assert await names(user, description="100%") == ["one"]
    assert await names(user, users="admin") == []
    assert await names(user, users="determined", offset=1, limit=1) == ["two"]
    assert await names(user, offset=-1) == ["three"]
    assert await names(user, limit=-2) == []
    assert await names(user, **{"experimentIdFilter.incl": [ids["one"], ids["two"]]}) == [
        "one",
        "two",
    ]
    assert await names(user, **{"experimentIdFilter.gt": ids["one"]}) == ["two", "three"]
    pages = (await user.get("/api/v1/experiments", params={"limit": 2, "offset": 2})).json()
    assert pages["pagination"] == {
        "offset": 2,
        "limit": 2,
        "startIndex": 2,
        "endIndex": 3,
        "total": 3,
    }
    labels = (await user.get("/api/v1/experiment/labels")).json()["labels"]
    assert labels == ["x", "y"]


async def test_a_wrong_sort_key_names_the_right_ones(user: httpx.AsyncClient) -> None:
    answer = await user.get("/api/v1/experiments", params={"sortBy": "SORT_BY_COLOUR"})
    assert answer.status_code == 400
    assert "SORT_BY_NUM_TRIALS" in answer.json()["error"]["error"]


async def test_patching_an_experiment(world: World, user: httpx.AsyncClient) -> None:
    experiment_id = await world.experiment("old")
    path = f"/api/v1/experiments/{experiment_id}"
    answer = await user.patch(path, json={"name": "new", "notes": "n", "labels": ["b", "a", "b"]})
    found = answer.json()["experiment"]
    assert (found["name"], found["notes"], found["labels"]) == ("new", "n", ["a", "b"])
    assert (await user.patch(path, json={"description": "d"})).json()["experiment"]["name"] == "new"
    assert (await user.put(f"{path}/labels/c")).json() == {"labels": ["a", "b", "c"]}
    assert (await user.delete(f"{path}/labels/a")).json() == {"labels": ["b", "c"]}
    refused = await user.patch(path, json={"name": "newer", "resources": {"priority": 100}})
    assert refused.status_code == 400
    assert "priority" in refused.json()["error"]["error"]
    assert (await user.get(path)).json()["experiment"]["name"] == "new"
    missing = await user.patch("/api/v1/experiments/999", json={"name": "x"})
    assert (missing.status_code, missing.json()["error"]["error"]) == (
        404,
        "not found: experiment 999 does not exist",
    )


@pytest.mark.parametrize(
    ("state", "shown"),
    [
        ("REQUESTED", "QUEUED"),
        ("ASSIGNED", "STARTING"),
        ("RUNNING", "RUNNING"),
        ("TERMINATED", "ACTIVE"),  # The trial waits for its search.
    ],
)
async def test_the_display_of_an_active_state(world: World, state: str, shown: str) -> None:
    leg = await world.leg()
    async with world.db.tx() as conn:
        await conn.execute(sa.update(allocations).values(state=state))
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(world.app),
        base_url="http://service",
        headers={"Authorization": "Bearer agent-token-of-the-tests"},
    ) as agent:
        experiment = (await agent.get(f"/api/v1/experiments/{leg.experiment_id}")).json()
        trial = (await agent.get(f"/api/v1/trials/{leg.trial_id}")).json()["trial"]
        assert trial["state"] == f"STATE_{shown}"
        of_experiment = "STATE_QUEUED" if shown == "ACTIVE" else f"STATE_{shown}"
        assert experiment["experiment"]["state"] == of_experiment
        assert await names(agent, states=of_experiment) == ["try"]
        assert await names(agent, states="STATE_ACTIVE") == ["try"]


async def test_trials_listed(world: World, user: httpx.AsyncClient) -> None:
    experiment_id = await world.experiment()
    legs: list[Leg] = []
    for loss in (0.5, 0.1, 0.9):
        leg = await world.start(experiment_id, *await world.trial(experiment_id))
        await leg.store(report(3, "validation", loss=loss), report(4, loss=1.0))
        legs.append(leg)
    path = f"/api/v1/experiments/{experiment_id}/trials"
    found = (await user.get(path, params={"sortBy": "SORT_BY_BEST_VALIDATION_METRIC"})).json()
    assert [one["searcherMetricValue"] for one in found["trials"]] == [0.1, 0.5, 0.9]
    assert found["pagination"]["total"] == 3
    first = found["trials"][0]
    assert first["id"] == legs[1].trial_id
    assert first["taskId"] == legs[1].task_id
    assert first["bestValidation"]["metrics"]["avgMetrics"] == {"loss": 0.1}
    assert first["totalBatchesProcessed"] == 4
    assert first["wallClockTime"] > 0
    latest = {"sortBy": "SORT_BY_LATEST_VALIDATION_METRIC", "orderBy": "ORDER_BY_DESC", "limit": 1}
    found = (await user.get(path, params=latest)).json()["trials"]
    assert [one["searcherMetricValue"] for one in found] == [0.9]
    assert (await user.get("/api/v1/experiments/99/trials")).status_code == 404


async def test_legs_of_a_trial(world: World, user: httpx.AsyncClient) -> None:
    leg = await world.leg()
    found = (await user.get(f"/api/v1/trials/{leg.trial_id}")).json()["trial"]["legs"]
    assert [(one["runId"], one["state"], one["agentId"], one["slotIds"]) for one in found] == [
        (1, "STATE_RUNNING", "agent-1", [0])
    ]
    task = (await user.get(f"/api/v1/tasks/{leg.task_id}")).json()["task"]
    assert [one["allocationId"] for one in task["allocations"]] == [leg.allocation_id]
    assert (task["taskType"], task["state"]) == ("TASK_TYPE_TRIAL", "STATE_ACTIVE")
    assert task["username"] == "determined"
    assert task["name"] == f"Trial {leg.trial_id} (Experiment {leg.experiment_id}: try)"
    legacy = (await user.get("/tasks")).json()
    assert legacy[leg.allocation_id]["task_id"] == leg.task_id
    running = (await user.get("/api/v1/tasks")).json()["allocationIdToSummary"]
    assert running[leg.allocation_id]["slotsNeeded"] == 1


async def stream(user: httpx.AsyncClient, path: str, **params: Any) -> list[dict[str, Any]]:
    answer = await user.get(f"/api/v1/trials/metrics/{path}", params=params)
    assert answer.status_code == 200, answer.text
    found: list[dict[str, Any]] = []
    for one in answer.text.splitlines():
        found += orjson.loads(one)["result"]["metrics"]
    return found


async def test_metric_streams(world: World, user: httpx.AsyncClient) -> None:
    leg = await world.leg()
    await leg.store(*(report(step, loss=float(step)) for step in range(2500)))
    await leg.store(report(7, "validation", loss="NaN"), report(1, "other", x=1))
    training = await stream(user, "training_metrics", trialIds=leg.trial_id)
    assert [one["totalBatches"] for one in training] == list(range(2500))
    assert training[3]["metrics"] == {"avg_metrics": {"loss": 3.0}}
    (validation,) = await stream(user, "validation_metrics", trialIds=leg.trial_id)
    assert validation["metrics"] == {"validation_metrics": {"loss": "NaN"}}
    (other,) = await stream(user, "trial_metrics", trialIds=leg.trial_id, group="other")
    assert (other["group"], other["metrics"]) == ("other", {"avg_metrics": {"x": 1}})
    missing = await user.get("/api/v1/trials/metrics/trial_metrics", params={"trialIds": 99})
    assert missing.status_code == 404


async def test_workloads_and_curves(world: World, user: httpx.AsyncClient) -> None:
    leg = await world.leg()
    await leg.store(*(report(step, loss=1.0) for step in range(1, 11)))
    await leg.store(report(10, "validation", loss=0.5))
    path = f"/api/v1/trials/{leg.trial_id}/workloads"
    found = (await user.get(path, params={"orderBy": "ORDER_BY_DESC", "limit": 2})).json()
    assert [next(iter(one)) for one in found["workloads"]] == ["validation", "training"]
    assert found["pagination"]["total"] == 11
    only = (await user.get(path, params={"filter": "FILTER_OPTION_VALIDATION"})).json()
    assert len(only["workloads"]) == 1
    curves = await user.get(
        "/api/v1/trials/time-series", params={"trialIds": leg.trial_id, "maxDatapoints": 4}
    )
    ((curve,),) = [one["metrics"] for one in curves.json()["trials"]]
    assert [point["batches"] for point in curve["data"]] == [1, 4, 7, 10]


async def test_curves_of_metrics_by_their_ids(world: World, user: httpx.AsyncClient) -> None:
    leg = await world.leg()
    await leg.store(report(1, loss=1.0, grad=2.0), report(1, "validation", **{"a.b": 0.5, "c": 3}))

    async def ask(**given: Any) -> httpx.Response:
        params = {"trialIds": leg.trial_id, **given}
        return await user.get("/api/v1/trials/time-series", params=params)

    async def curves(**given: Any) -> dict[str, Any]:
        ((*found,),) = [one["metrics"] for one in (await ask(**given)).json()["trials"]]
        return {one["group"]: one["data"][0]["values"] for one in found}

    both = {"training": {"grad": 2.0}, "validation": {"a.b": 0.5}}
    assert await curves(metricIds=["training.grad", "validation.a.b"]) == both
    assert await curves(metricIds=["validation.c"]) == {"validation": {"c": 3}}
    assert await curves(metricNames=["loss"], metricIds=["training.grad"]) == {
        "training": {"loss": 1.0, "grad": 2.0}
    }
    assert await curves() == {"training": {"loss": 1.0, "grad": 2.0}}
    of_type = await curves(metricType="METRIC_TYPE_VALIDATION", metricNames=["c"])
    assert of_type == {"validation": {"c": 3}}
    refused = await ask(metricIds=["loss"])
    assert refused.status_code == 400
    assert "metricIds: 'loss' is not of the form group.name" in refused.text
    many = await ask(metricIds=[f"group{number}.x" for number in range(21)])
    assert (many.status_code, "21 groups" in many.text) == (400, True)


async def test_thinned_curves_keep_their_spikes(world: World, user: httpx.AsyncClient) -> None:
    leg, short, flat = await world.leg(), await world.leg(), await world.leg()
    spikes = {377: 50.0, 378: -50.0, 612: "NaN"}
    await leg.store(
        *(
            report(step, loss=spikes.get(step, step / 1000), epoch=step // 10)
            for step in range(1, 1001)
        ),
        *(report(step, other=1.0) for step in range(1001, 1101)),
    )
    await short.store(report(1, loss=1.0), report(2, loss="NaN"), report(3, other=1.0))
    await flat.store(*(report(0, loss=float(value)) for value in range(100)))

    async def ask(**given: Any) -> httpx.Response:
        ids = [leg.trial_id, short.trial_id, flat.trial_id]
        params = {"trialIds": ids, "metricIds": "training.loss", "maxDatapoints": 20, **given}
        return await user.get("/api/v1/trials/time-series", params=params)

    async def points(**given: Any) -> list[list[Any]]:
        found = (await ask(**given)).json()["trials"]
        return [
            [(point["batches"], point["values"]) for point in one["metrics"][0]["data"]]
            for one in found
        ]

    long, few, at_once = await points(extremesOf="training.loss")
    assert len(long) <= 20
    assert {(377, 50.0), (378, -50.0)} <= {(step, values["loss"]) for step, values in long}
    assert [long[0][0], long[-1][0]] == [1, 1000], "the first and the last one that have the metric"
    assert [step for step, _ in long] == sorted(step for step, _ in long)
    assert few == [(1, {"loss": 1.0}), (2, {"loss": "NaN"})]
    assert len(at_once) == 20, "reports of one step are thinned evenly"
    zoomed = (await points(extremesOf="training.loss", startBatches=370, endBatches=385))[0]
    assert [step for step, _ in zoomed] == list(range(370, 386))
    quick = (await points(extremesOf="training.loss", quick=True))[0]
    assert [quick[0], quick[-1]] == [(1, {"loss": 0.001}), (1000, {"loss": 1.0})]
    assert 9 <= len(quick) <= 20
    both = (
        await points(extremesOf="training.loss", metricIds=["training.loss", "training.epoch"])
    )[0]
    assert (377, {"loss": 50.0, "epoch": 37}) in both
    given = {"metricIds": ["training.loss", "training.epoch"], "columns": True}
    wide, narrow, _ = (await ask(extremesOf="training.loss", **given)).json()["trials"]
    assert wide["trial"] == {"id": leg.trial_id, "experimentId": leg.experiment_id}
    (curve,) = wide["metrics"]
    points_of = (curve["batches"], curve["values"]["loss"], curve["values"]["epoch"])
    assert list(zip(*points_of, strict=True)) == [
        (step, values["loss"], values["epoch"]) for step, values in both
    ]
    assert len(curve["seconds"]) == len(both) and curve["seconds"] == sorted(curve["seconds"])
    assert narrow["metrics"][0]["values"] == {"loss": [1.0, "NaN"], "epoch": [None, None]}
    for given, said in (
        ({"columns": True}, "columns: name a metric of each group in extremesOf"),
        ({"extremesOf": "training.acc"}, "'training.acc' is not among the requested metrics"),
        ({"extremesOf": "training.loss", "maxDatapoints": 3}, "3 points cannot keep extremes"),
        (
            {"extremesOf": ["training.loss", "training.x"], "metricNames": "x"},
            "'training.x' is the second metric of its group",
        ),
    ):
        answer = await ask(**given)
        assert (answer.status_code, said in answer.text) == (400, True), answer.text


async def test_points_of_curves_are_filtered(world: World, user: httpx.AsyncClient) -> None:
    leg = await world.leg()
    await leg.store(*(report(step, loss=1.0) for step in range(1, 11)))

    async def ask(**given: Any) -> httpx.Response:
        found = {f"timeSeriesFilter.{key.replace('__', '.')}": one for key, one in given.items()}
        params = {"trialIds": leg.trial_id, "maxDatapoints": 4, **found}
        return await user.get("/api/v1/trials/time-series", params=params)

    async def batches(**given: Any) -> list[int]:
        ((curve,),) = [one["metrics"] for one in (await ask(**given)).json()["trials"]]
        return [point["batches"] for point in curve["data"]]

    assert await batches(integerRange__gte=8) == [8, 9, 10]
    assert await batches(name="batches", integerRange__gt=4, integerRange__lt=8) == [5, 6, 7]
    assert await batches(doubleRange__gt="8.5", doubleRange__lte="1e1") == [9, 10]
    assert await batches(integerRange__incl=[2, 5]) == [2, 5]
    assert await batches(integerRange__notIn=list(range(1, 10))) == [10]
    assert await batches(name="time", timeRange__lt="2000-01-01T00:00:00Z") == []
    assert len(await batches(name="time", timeRange__gt="2000-01-01T00:00:00Z")) == 4
    params = {"trialIds": leg.trial_id, "timeSeriesFilter_integerRange_lte": 1}
    answer = await user.get("/api/v1/trials/time-series", params=params)
    ((curve,),) = [one["metrics"] for one in answer.json()["trials"]]
    assert len(curve["data"]) == 1
    for given, said in (
        ({"name": "epoch", "integerRange__lt": 1}, "give batches or time"),
        ({"integerRange__less": 1}, "give timeSeriesFilter.integerRange.lt"),
        ({"timeRange__lt": "2000-01-01"}, "timeSeriesFilter.timeRange.lt is not known"),
        ({"integerRange__lt": "1.5"}, "timeSeriesFilter.integerRange.lt: expected a whole number"),
        ({"integerRange__lt": str(2**63)}, "expected a whole number"),
        ({"doubleRange__lt": "many"}, "expected a number, found 'many'"),
        ({"name": "time", "timeRange__lt": "soon"}, "must be an ISO 8601 time"),
    ):
        refused = await ask(**given)
        assert (refused.status_code, said in refused.text) == (400, True), refused.text


async def test_model_definition(world: World, user: httpx.AsyncClient) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name in ("train.py", "lib/util.py"):
            member = tarfile.TarInfo(name)
            member.size = 4
            tar.addfile(member, io.BytesIO(b"pass"))
    archive = buffer.getvalue()
    digest = hashlib.sha256(archive).hexdigest()
    async with world.db.tx() as conn:
        await conn.execute(sa.insert(model_definitions).values(hash=digest, archive=archive))
    path = f"/api/v1/experiments/{await world.experiment(model_def_hash=digest)}"
    found = (await user.get(f"{path}/model_def")).json()["b64Tgz"]
    assert base64.b64decode(found) == archive
    tree = (await user.get(f"{path}/file_tree")).json()["files"]
    assert [one["path"] for one in tree] == ["train.py", "lib"]
    assert [one["path"] for one in tree[1]["files"]] == ["lib/util.py"]
    file = await user.post(f"{path}/file", json={"path": "lib/util.py"})
    assert base64.b64decode(file.json()["file"]) == b"pass"
    assert (await user.post(f"{path}/file", json={"path": "no.py"})).status_code == 404
    without = await world.experiment()
    assert (await user.get(f"/api/v1/experiments/{without}/model_def")).status_code == 404


async def test_a_large_model_definition_comes_in_pieces(
    world: World, user: httpx.AsyncClient, service_app: FastAPI
) -> None:
    content = random.Random(1).randbytes(3 * MIB + 1)
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        member = tarfile.TarInfo("weights.bin")
        member.size = len(content)
        tar.addfile(member, io.BytesIO(content))
    archive = buffer.getvalue()
    digest = hashlib.sha256(archive).hexdigest()
    async with world.db.tx() as conn:
        await conn.execute(sa.insert(model_definitions).values(hash=digest, archive=archive))
    path = f"/api/v1/experiments/{await world.experiment(model_def_hash=digest)}"
    sizes: list[int] = []

    async def watched(scope: Any, receive: Any, send: Any) -> None:
        async def noted(message: Any) -> None:
            sizes.append(len(message.get("body", b"")))
            await send(message)

        await service_app(scope, receive, noted)

    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(watched), base_url="http://service", headers=user.headers
    ) as client:
        found = await client.get(f"{path}/model_def")
        assert base64.b64decode(found.json()["b64Tgz"]) == archive
        assert int(found.headers["content-length"]) == len(found.content)
        one = await client.post(f"{path}/file", json={"path": "weights.bin"})
        assert base64.b64decode(one.json()["file"]) == content
        assert int(one.headers["content-length"]) == len(one.content)
        client.headers["Authorization"] = f"Bearer {AGENT_TOKEN}"
        raw = await client.get(f"/internal/v1/model_defs/{digest}")
        assert (raw.content, int(raw.headers["content-length"])) == (archive, len(archive))
    # Encoding or writing a large value at once delays all other users.
    assert max(sizes) <= MIB


async def test_run_metadata(world: World) -> None:
    leg = await world.leg()
    path = f"/api/v1/runs/{leg.trial_id}/metadata"
    assert (await leg.client.get(path)).json() == {"metadata": {}}
    await leg.client.post(path, json={"metadata": {"a": {"b": 1}}})
    assert (await leg.client.get(path)).json() == {"metadata": {"a": {"b": 1}}}
    assert (await leg.client.post(path, json={"metadata": 3})).status_code == 400


async def test_a_run_asks_before_it_reports(world: World) -> None:
    mine, other = await world.leg(), await world.leg()

    async def start(run_id: object) -> httpx.Response:
        return await mine.client.post("/api/v1/runs/start", json={"runId": run_id})

    assert (await start(mine.trial_id)).json() == {"storageId": None}  # it has no storage
    assert (await start(other.trial_id)).status_code == 403
    assert (await start("1")).status_code == 400


async def test_cluster(world: World, user: httpx.AsyncClient, anonymous: httpx.AsyncClient) -> None:
    master = (await anonymous.get("/api/v1/master")).json()
    assert master["clusterName"] == "determined"
    info = (await anonymous.get("/info")).json()
    assert (info["service_version"], info["version"]) == (master["version"], "0.38.1")
    assert master["clusterId"] == world.app.state.settings.cluster_id
    async with world.db.tx() as conn:
        await conn.execute(
            sa.insert(agents).values(
                id="agent-1", resource_pool="default", session=sa.func.gen_random_uuid()
            )
        )
        for slot in (0, 1):
            device = {"type": "cuda", "uuid": f"GPU-{slot}", "brand": "H200"}
            await conn.execute(
                sa.insert(slots).values(agent_id="agent-1", slot_id=slot, device=device)
            )
    leg = await world.leg()
    (agent,) = (await user.get("/api/v1/agents")).json()["agents"]
    assert agent["slots"]["0"]["container"]["id"] == leg.allocation_id
    assert agent["slots"]["1"]["container"] is None
    assert agent["slotStats"]["typeStats"]["TYPE_CUDA"]["states"] == {"STATE_RUNNING": 1}
    (pool,) = (await user.get("/api/v1/resource-pools")).json()["resourcePools"]
    assert (pool["name"], pool["numAgents"], pool["slotsAvailable"], pool["slotsUsed"]) == (
        "default",
        1,
        2,
        1,
    )
    assert (await user.get("/api/v1/agents/agent-9")).status_code == 404
    one = (await user.get("/api/v1/agents/agent-1/slots/1")).json()["slot"]
    assert one == agent["slots"]["1"]
    missing = await user.get("/api/v1/agents/agent-1/slots/2")
    assert missing.status_code == 404
    assert "agent 'agent-1' has no slot '2': its slots are 0, 1" in missing.text


async def test_openapi_and_unknown_addresses(anonymous: httpx.AsyncClient) -> None:
    paths = (await anonymous.get("/openapi.json")).json()["paths"]
    assert "/api/v1/trials/{trial_id}/metrics/batch" in paths
    answer = await anonymous.get("/api/v1/nothing")
    assert answer.json()["error"]["error"] == "not found: there is no GET /api/v1/nothing here"


@pytest.mark.parametrize(
    ("method", "path", "instead"),
    [
        ("GET", "/oauth2/clients", "OAuth is not supported"),
        ("DELETE", "/oauth2/clients/x", "OAuth is not supported"),
        ("POST", "/api/v1/webhooks", "its automations"),
    ],
)
async def test_absent_features_name_an_alternative(
    user: httpx.AsyncClient, method: str, path: str, instead: str
) -> None:
    answer = await user.request(method, path)
    assert answer.status_code == 404
    message = answer.json()["message"]
    assert message.startswith(f"not found: there is no {method} {path} here: ")
    assert instead in message


async def test_deleting_an_experiment_takes_everything_with_it(world: World) -> None:
    leg = await world.leg()
    await leg.store(report(1, "validation", loss=1.0))
    async with world.db.tx() as conn:
        await conn.execute(sa.delete(experiments))
    assert await world.rows(sa.select(trials)) == []
