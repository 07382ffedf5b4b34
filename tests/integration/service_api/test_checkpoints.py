"""Checkpoints: reported, repeated, found, deleted."""

from __future__ import annotations

import uuid
from typing import Any

import httpx
import pytest
import sqlalchemy as sa

from determined_registry.database.tables import trials
from determined_service.deleting.garbage import KeepPolicy, outside_policy
from tests.integration.service_api.world import Leg, World, report

SEARCHER = {"name": "single", "metric": "loss", "smaller_is_better": True}


async def store(leg: Leg, steps: int, name: str | None = None, **more: Any) -> str:
    checkpoint = name or str(uuid.uuid4())
    body = {
        "uuid": checkpoint,
        "taskId": leg.task_id,
        "allocationId": leg.allocation_id,
        "reportTime": "2026-11-21T13:00:00Z",
        "resources": {"model.pt": "1000", "sub/": 0, "sub/optimizer.pt": 24},
        "checksums": {"model.pt": "sha256:00"},
        "metadata": {"steps_completed": steps},
        "state": "STATE_COMPLETED",
        **more,
    }
    answer = await leg.client.post("/api/v1/checkpoints", json=body)
    assert answer.status_code == 200, answer.text
    return checkpoint


async def test_a_checkpoint_has_the_metrics_reported_with_it(world: World) -> None:
    leg = await world.leg()
    await leg.store(report(10, loss=0.7), report(10, "validation", loss=0.5, accuracy=0.9))
    name = await store(leg, 10)
    found = (await leg.client.get(f"/api/v1/checkpoints/{name}")).json()["checkpoint"]
    assert found["resources"] == {"model.pt": "1000", "sub/": "0", "sub/optimizer.pt": "24"}
    assert found["checksums"] == {"model.pt": "sha256:00"}
    assert found["metadata"] == {"steps_completed": 10}
    assert found["state"] == "STATE_COMPLETED"
    assert found["reportTime"] == "2026-11-21T13:00:00.000000Z"
    training = found["training"]
    assert (training["trialId"], training["experimentId"]) == (leg.trial_id, leg.experiment_id)
    assert training["hparams"] == {"lr": 0.1}
    assert training["searcherMetric"] == 0.5
    assert training["validationMetrics"] == {"avgMetrics": {"loss": 0.5, "accuracy": 0.9}}
    assert training["trainingMetrics"] == {"avgMetrics": {"loss": 0.7}}
    reports = (await leg.client.get(f"/api/v1/checkpoints/{name}/metrics")).json()["metrics"]
    assert {one["group"] for one in reports} == {"training", "validation"}


async def test_a_list_shows_some_files_of_each(world: World) -> None:
    leg = await world.leg()
    await store(leg, 10)
    await store(leg, 20, resources={"only/": 0}, checksums={})
    for path in (f"trials/{leg.trial_id}", f"experiments/{leg.experiment_id}"):
        answer = await leg.client.get(
            f"/api/v1/{path}/checkpoints",
            params={
                "mostFiles": 1,
                "sortByAttr": "SORT_BY_BATCH_NUMBER",
                "orderBy": "ORDER_BY_ASC",
            },
        )
        first, second = answer.json()["checkpoints"]
        assert (first["resources"], first["checksums"]) == ({"model.pt": "1000"}, None)
        assert (first["fileCount"], first["size"]) == (2, "1024")
        assert (second["resources"], second["fileCount"], second["size"]) == ({}, 0, "0")
    every = await leg.client.get(f"/api/v1/trials/{leg.trial_id}/checkpoints")
    assert "fileCount" not in every.json()["checkpoints"][0]
    refused = await leg.client.get(
        f"/api/v1/trials/{leg.trial_id}/checkpoints", params={"mostFiles": -1}
    )
    assert refused.status_code == 400


async def test_sizes_beyond_64_bits_are_refused(world: World) -> None:
    leg = await world.leg()
    for resources, path in (
        ({"a": 2**53 + 1}, "resources.a"),
        ({f"part-{number}": 2**53 for number in range(1025)}, "the sum of resources"),
    ):
        body = {"uuid": str(uuid.uuid4()), "resources": resources}
        answer = await leg.client.post("/api/v1/checkpoints", json=body)
        assert answer.status_code == 400
        assert f"{path}: expected a whole number" in answer.json()["message"]


async def test_each_storage_has_a_number(world: World) -> None:
    storage = {"type": "shared_fs", "host_path": "/data", "save_trial_best": 1}
    bucket = {"type": "s3", "bucket": "b", "secret_key": "k"}
    elsewhere: list[dict[str, Any]] = [{}, {"storage": bucket}]
    numbers: list[int] = []
    for section in (storage, storage | {"save_trial_best": 9}, storage | {"host_path": "/other"}):
        leg = await world.leg(config={"searcher": SEARCHER, "checkpoint_storage": section})
        for more in elsewhere:
            name = await store(leg, 10, **more)
            found = (await leg.client.get(f"/api/v1/checkpoints/{name}")).json()["checkpoint"]
            numbers.append(found["storageId"])
    first, of_bucket, same, _, other, _ = numbers
    assert first == same
    assert {of_bucket} == set(numbers[1::2])
    assert len({first, of_bucket, other}) == 3
    assert all(isinstance(number, int) for number in numbers)


async def test_a_run_is_told_its_storage(world: World) -> None:
    storage = {"type": "shared_fs", "host_path": "/data", "save_trial_best": 1}
    leg = await world.leg(config={"searcher": SEARCHER, "checkpoint_storage": storage})
    # Before its first checkpoint and after it.
    numbers = []
    for _ in range(2):
        answer = await leg.client.post("/api/v1/runs/start", json={"runId": leg.trial_id})
        numbers.append(answer.json()["storageId"])
        name = await store(leg, 10)
        found = (await leg.client.get(f"/api/v1/checkpoints/{name}")).json()["checkpoint"]
        numbers.append(found["storageId"])
    assert numbers == [numbers[0]] * 4
    assert isinstance(numbers[0], int)


async def test_it_becomes_where_the_next_leg_starts(world: World) -> None:
    leg = await world.leg()
    await store(leg, 10)
    second = await store(leg, 20)
    (row,) = await world.rows(sa.select(trials))
    assert (str(row.latest_checkpoint), row.steps_completed) == (second, 20)
    trial = (await leg.client.get(f"/api/v1/trials/{leg.trial_id}")).json()["trial"]
    assert (trial["checkpointCount"], trial["totalCheckpointSize"]) == (2, "2048")
    assert trial["latestCheckpoint"] == second


async def test_a_repeated_report_changes_nothing(world: World) -> None:
    leg = await world.leg()
    name = await store(leg, 10)
    await store(leg, 10, name)
    path = f"/api/v1/experiments/{leg.experiment_id}/checkpoints"
    assert len((await leg.client.get(path)).json()["checkpoints"]) == 1


async def test_an_ended_allocation_reports_no_checkpoint(world: World) -> None:
    leg = await world.leg()
    await world.end(leg)
    body = {"uuid": str(uuid.uuid4()), "metadata": {"steps_completed": 1}}
    assert (await leg.client.post("/api/v1/checkpoints", json=body)).status_code == 409


async def test_sorted_by_the_searcher_metric_and_by_any_metric(world: World) -> None:
    leg = await world.leg()
    names = {}
    for steps, loss, accuracy in ((1, 0.5, 0.1), (2, 0.1, 0.5), (3, "NaN", 0.9)):
        await leg.store(report(steps, "validation", loss=loss, accuracy=accuracy))
        names[await store(leg, steps)] = steps
    names[await store(leg, 4)] = 4  # no validation there

    async def order(path: str, **params: Any) -> list[int]:
        found = (await leg.client.get(f"/api/v1/{path}/checkpoints", params=params)).json()
        return [names[one["uuid"]] for one in found["checkpoints"]]

    trial = f"trials/{leg.trial_id}"
    assert (await order(trial, sortByAttr="SORT_BY_SEARCHER_METRIC"))[:2] == [2, 1]
    by_accuracy = await order(
        f"experiments/{leg.experiment_id}", sortByMetric="accuracy", orderBy="ORDER_BY_DESC"
    )
    assert by_accuracy == [3, 2, 1, 4]
    assert await order(trial, sortByAttr="SORT_BY_BATCH_NUMBER", limit=2, offset=1) == [2, 3]
    best = (await leg.client.get(f"/api/v1/trials/{leg.trial_id}")).json()["trial"][
        "bestCheckpoint"
    ]
    assert best["totalBatches"] == 2


async def test_the_best_comes_first_when_no_order_is_asked_for(world: World) -> None:
    leg = await world.leg(searcher={"metric": "accuracy", "smaller_is_better": False})
    names = {}
    for steps, accuracy in ((1, 0.1), (2, 0.9), (3, 0.5)):
        await leg.store(report(steps, "validation", accuracy=accuracy))
        names[await store(leg, steps)] = steps
    names[await store(leg, 4)] = 4  # no validation there
    for path in (f"trials/{leg.trial_id}", f"experiments/{leg.experiment_id}"):
        for order, expected in (
            (None, [2, 3, 1, 4]),
            ("ORDER_BY_UNSPECIFIED", [2, 3, 1, 4]),
            ("ORDER_BY_ASC", [1, 3, 2, 4]),
        ):
            params = {"sortByAttr": "SORT_BY_SEARCHER_METRIC"} | (
                {"orderBy": order} if order else {}
            )
            found = (await leg.client.get(f"/api/v1/{path}/checkpoints", params=params)).json()
            assert [names[one["uuid"]] for one in found["checkpoints"]] == expected


@pytest.mark.parametrize("smaller_is_better", [True, False])
async def test_the_best_of_equals_is_the_one_that_is_kept(
    world: World, smaller_is_better: bool
) -> None:
    searcher = {"metric": "accuracy", "smaller_is_better": smaller_is_better}
    leg = await world.leg(searcher=searcher)
    names = []
    for steps in (1, 2, 3, 4):
        accuracy = 0.5 if steps in (2, 3) else 0.7 if smaller_is_better else 0.3
        await leg.store(report(steps, "validation", accuracy=accuracy))
        # After a restart the same step may be stored again.
        names += [await store(leg, steps), await store(leg, steps)]
    async with world.db.tx() as conn:
        choice = await outside_policy(conn, leg.experiment_id, KeepPolicy(save_trial_latest=0))
    # (The trial would start from the last one.)
    (kept,) = set(names[:-1]) - set(map(str, choice.doomed))
    best_first = "ORDER_BY_ASC" if smaller_is_better else "ORDER_BY_DESC"
    for path in (f"trials/{leg.trial_id}", f"experiments/{leg.experiment_id}"):
        for params in (
            {"sortByAttr": "SORT_BY_SEARCHER_METRIC"},
            {"sortByAttr": "SORT_BY_SEARCHER_METRIC", "orderBy": best_first},
            {"sortByMetric": "accuracy", "orderBy": best_first},
        ):
            found = (await leg.client.get(f"/api/v1/{path}/checkpoints", params=params)).json()
            assert found["checkpoints"][0]["uuid"] == kept
    trial = (await leg.client.get(f"/api/v1/trials/{leg.trial_id}")).json()["trial"]
    assert trial["bestCheckpoint"]["uuid"] == kept


async def test_deleting_files(world: World, user: httpx.AsyncClient) -> None:
    leg = await world.leg()
    name = await store(leg, 1)

    async def left(**resources: str) -> tuple[str, dict[str, str]]:
        body = {"checkpoints": [{"uuid": name, "resources": {"resources": resources}}]}
        assert (await user.patch("/api/v1/checkpoints", json=body)).status_code == 200
        found = (await user.get(f"/api/v1/checkpoints/{name}")).json()["checkpoint"]
        return str(found["state"]), found["resources"]

    some = {"model.pt": "1000"}
    assert await left(**some) == ("STATE_PARTIALLY_DELETED", some)
    # As in Determined, the list of its files is kept. A reader that looked before the last file was deleted
    # does not revive the checkpoint.
    for late in ({}, {}, some, {"model.pt": "1000", "other": "1"}):
        assert await left(**late) == ("STATE_DELETED", some)
    trial = (await user.get(f"/api/v1/trials/{leg.trial_id}")).json()["trial"]
    assert (trial["checkpointCount"], trial["totalCheckpointSize"]) == (0, "0")


async def test_a_deleted_checkpoint_is_not_the_latest_any_more(
    world: World, user: httpx.AsyncClient
) -> None:
    leg = await world.leg()
    first, second = await store(leg, 1), await store(leg, 2)

    async def latest_without(name: str) -> str | None:
        body = {"checkpoints": [{"uuid": name, "resources": {"resources": {}}}]}
        assert (await leg.client.patch("/api/v1/checkpoints", json=body)).status_code == 200
        trial = (await user.get(f"/api/v1/trials/{leg.trial_id}")).json()["trial"]
        found: str | None = trial["latestCheckpoint"]
        return found

    assert await latest_without(second) == first
    assert await latest_without(first) is None


async def test_metadata_is_replaced(world: World, user: httpx.AsyncClient) -> None:
    leg = await world.leg()
    name = await store(leg, 1)
    body = {"checkpoint": {"metadata": {"steps_completed": 1, "note": "good"}}}
    answer = await user.post(f"/api/v1/checkpoints/{name}/metadata", json=body)
    assert answer.json()["checkpoint"]["metadata"] == {"steps_completed": 1, "note": "good"}


async def test_unknown_and_malformed_ids(user: httpx.AsyncClient) -> None:
    for name in (str(uuid.uuid4()), "best"):
        answer = await user.get(f"/api/v1/checkpoints/{name}")
        assert answer.status_code == 404
        assert name in answer.json()["error"]["error"]


async def test_a_checkpoint_is_found_by_the_beginning_of_its_uuid(world: World) -> None:
    leg = await world.leg()
    names = [f"abcdef12-34{number:02}-4000-8000-000000000000" for number in range(12)]
    for name in reversed(names):
        await store(leg, 1, name)
    other = await store(leg, 1, "abcdef13-3400-4000-8000-000000000000")

    async def ask(beginning: str, **more: int) -> Any:
        params = {"uuidBeginning": beginning, **more}
        return await leg.client.get("/api/v1/checkpoints", params=params)

    for beginning, found in {
        "abcd": names[:10],
        "ABCDEF13": [other],
        "abcdef12-3411": names[11:],
        names[3]: names[3:4],
        "abce": [],
    }.items():
        assert (await ask(beginning)).json() == {"uuids": found}, beginning
    assert (await ask("abcd", limit=100)).json()["uuids"] == [*names, other]
    for wrong in (
        "abc",
        "ab-cd",
        "abcdef-12",
        "abcg",
        "a-b-c-d",
        "----",
        "{abcd",
        "0x12",
        "abcdef1334",
    ):
        refused = await ask(wrong)
        assert refused.status_code == 400, wrong
        assert "uuidBeginning" in refused.text
    assert (await ask("abcd", limit=101)).status_code == 400
