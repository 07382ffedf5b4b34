"""The model registry over REST: models, versions, aliases, and the checkpoints that they hold.

The flow that removes files is played by the tests.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import pytest
import sqlalchemy as sa
from fastapi import FastAPI

from determined_registry import models as registry
from determined_registry.database.tables import (
    checkpoints,
    deletions,
    experiments,
    model_alias_history,
    model_versions,
    trials,
)
from determined_service.deleting import deletions as deleting
from determined_service.deleting import registered
from determined_service.state.change import changing
from tests.integration.conftest import client_of
from tests.integration.service_api.test_checkpoints import store
from tests.integration.service_api.world import SEARCHER, Leg, World, report
from tests.waiting import until_async

API = "/api/v1/models"
STORAGE = {"type": "shared_fs", "host_path": "/data", "save_trial_best": 0, "save_trial_latest": 1}


@pytest.fixture
async def user(service_app: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    """The user `determined`, who owns the world's experiments."""
    client = client_of(service_app, None)
    login = {"username": "determined", "password": "", "isHashed": False}
    token = (await client.post("/api/v1/auth/login", json=login)).json()["token"]
    client.headers["Authorization"] = f"Bearer {token}"
    yield client
    await client.aclose()


def ok(answer: httpx.Response) -> Any:
    assert answer.status_code == 200, answer.text
    return answer.json()


def refused(answer: httpx.Response, status: int) -> str:
    assert answer.status_code == status, answer.text
    return str(answer.json()["error"]["error"])


async def create(user: httpx.AsyncClient, name: str = "digits", **more: Any) -> dict[str, Any]:
    made: dict[str, Any] = ok(await user.post(API, json={"name": name, **more}))["model"]
    return made


async def register(user: httpx.AsyncClient, checkpoint: str, model: str = "digits") -> int:
    body = {"checkpointUuid": checkpoint}
    answer = ok(await user.post(f"{API}/{model}/versions", json=body))
    return int(answer["modelVersion"]["version"])


async def end(world: World, leg: Leg) -> None:
    async with world.db.tx() as conn:
        for table, row in ((trials, leg.trial_id), (experiments, leg.experiment_id)):
            await conn.execute(sa.update(table).where(table.c.id == row).values(state="COMPLETED"))


async def names(user: httpx.AsyncClient, **params: Any) -> list[str]:
    return [one["name"] for one in ok(await user.get(API, params=params))["models"]]


async def test_a_model_and_its_changes(world: World, user: httpx.AsyncClient) -> None:
    made = await create(
        user, " Digits ", description="numbers", metadata={"a": {"b": 1}}, labels=["x", "x", "y"]
    )
    assert made["name"] == "Digits"
    assert (made["description"], made["metadata"], made["labels"]) == (
        "numbers",
        {"a": {"b": 1}},
        ["x", "y"],
    )
    assert (made["numVersions"], made["archived"], made["username"]) == (0, False, "determined")
    assert (made["workspaceId"], made["tags"], made["aliases"]) == (1, {}, {})
    # By the name in any case, and by the number.
    for name in ("digits", str(made["id"])):
        assert ok(await user.get(f"{API}/{name}"))["model"] == made
    change = {"name": "hand written", "notes": "# read me", "metadata": {}, "labels": []}
    found = ok(await user.patch(f"{API}/DIGITS", json=change))["model"]
    assert found.items() >= change.items()
    assert found["description"] == "numbers"
    assert found["lastUpdatedTime"] > made["lastUpdatedTime"]
    assert refused(await user.get(f"{API}/digits"), 404).startswith("not found: model 'digits'")
    tags = {"tags": {"stage": "new", "team": "a"}}
    assert (
        ok(await user.patch(f"{API}/hand written/tags", json=tags))["model"]["tags"] == tags["tags"]
    )
    tags = {"tags": {"stage": None, "size": "8"}}
    found = ok(await user.patch(f"{API}/hand written/tags", json=tags))["model"]
    assert found["tags"] == {"team": "a", "size": "8"}
    assert ok(await user.delete(f"{API}/hand written")) == {}
    assert refused(await user.delete(f"{API}/hand written"), 404)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("7", "is a number"),
        ("a/b", "holds '/'"),
        (" ", "needs a name"),
        ("n" * 251, "251 characters"),
    ],
)
async def test_names_that_are_none(user: httpx.AsyncClient, name: str, says: str) -> None:
    assert says in refused(await user.post(API, json={"name": name}), 400)


async def test_a_name_is_one_models(user: httpx.AsyncClient) -> None:
    await create(user, "Digits")
    await create(user, "other")
    says = "there is a model 'Digits' already"
    assert says in refused(await user.post(API, json={"name": "dIGITS"}), 409)
    assert says in refused(await user.patch(f"{API}/other", json={"name": "digits"}), 409)
    assert (
        ok(await user.patch(f"{API}/digits", json={"name": "DIGITS"}))["model"]["name"] == "DIGITS"
    )


async def test_a_repeated_request_makes_nothing_twice(
    world: World, user: httpx.AsyncClient
) -> None:
    body = {"name": "digits", "requestId": str(uuid.uuid4())}
    first, second = [ok(await user.post(API, json=body))["model"]["id"] for _ in range(2)]
    assert first == second
    checkpoint = await store(await world.leg(), 1)
    version = {"checkpointUuid": checkpoint, "requestId": str(uuid.uuid4())}
    path = f"{API}/digits/versions"
    numbers = [ok(await user.post(path, json=version))["modelVersion"]["version"] for _ in range(2)]
    assert numbers == [1, 1]
    assert await register(user, checkpoint) == 2


async def test_lists_of_models(world: World, user: httpx.AsyncClient) -> None:
    for name, more in (
        ("b", {"description": "of Cats", "labels": ["x", "y"]}),
        ("A", {"labels": ["y"]}),
        ("c%", {"labels": ["y", "z"]}),
    ):
        await create(user, name, **more)
    checkpoint = await store(await world.leg(), 1)
    await register(user, checkpoint, "b")
    assert await names(user) == ["b", "A", "c%"]
    assert await names(user, sortBy="SORT_BY_NAME", orderBy="ORDER_BY_DESC") == ["c%", "b", "A"]
    newest = {"sortBy": "SORT_BY_LAST_UPDATED_TIME", "orderBy": "ORDER_BY_DESC"}
    assert (await names(user, **newest))[0] == "b"
    assert (await names(user, sortBy="SORT_BY_NUM_VERSIONS"))[-1] == "b"
    assert await names(user, name="C") == ["c%"]
    assert await names(user, name="%") == ["c%"]
    assert await names(user, description="cat") == ["b"]
    assert await names(user, labels=["y", "z"]) == ["c%"]
    assert await names(user, users=["determined"], offset=1, limit=1) == ["A"]
    assert await names(user, users=["admin"]) == []
    assert await names(user, workspaceNames=["Uncategorized"], workspaceIds=[1]) == ["b", "A", "c%"]
    assert await names(user, workspaceIds=[2]) == []
    assert "there is no workspace 'w'" in refused(
        await user.get(API, params={"workspaceNames": ["w"]}), 404
    )
    ok(await user.post(f"{API}/A/archive"))
    assert await names(user, archived=True) == ["A"]
    assert ok(await user.get("/api/v1/model/labels"))["labels"] == ["y", "x", "z"]
    assert refused(await user.get(API, params={"sortBy": "SORT_BY_X"}), 400)


async def test_an_unknown_workspace_is_not_found(user: httpx.AsyncClient) -> None:
    await create(user, workspaceName="Uncategorized")
    assert refused(await user.post(API, json={"name": "a", "workspaceName": "w"}), 404)
    assert ok(await user.post(f"{API}/digits/move", json={"destinationWorkspaceId": 1})) == {}
    assert refused(await user.post(f"{API}/digits/move", json={"destinationWorkspaceId": 2}), 404)
    assert refused(await user.patch(f"{API}/digits", json={"workspaceName": "w"}), 404)


async def test_a_version_and_where_it_comes_from(world: World, user: httpx.AsyncClient) -> None:
    config = {"searcher": SEARCHER, "data": {"version": "v7"}, "checkpoint_storage": STORAGE}
    leg = await world.leg(config=config, name="search")
    await leg.store(report(10, "validation", loss=0.5))
    note = {"metadata": {"commit": "abc"}}
    ok(await leg.client.post(f"/api/v1/runs/{leg.trial_id}/metadata", json=note))
    checkpoint = await store(leg, 10)
    await create(user)
    body = {"checkpointUuid": checkpoint, "comment": "first", "labels": ["a"], "tags": {"k": "v"}}
    made = ok(await user.post(f"{API}/digits/versions", json=body))["modelVersion"]
    assert (made["version"], made["comment"], made["labels"], made["tags"]) == (
        1,
        "first",
        ["a"],
        {"k": "v"},
    )
    assert made["model"]["numVersions"] == 1
    training = made["checkpoint"]["training"]
    assert (training["trialId"], training["hparams"]) == (leg.trial_id, {"lr": 0.1})
    assert training["validationMetrics"]["avgMetrics"] == {"loss": 0.5}
    lineage = made["lineage"]
    assert (lineage["experimentId"], lineage["experimentName"]) == (leg.experiment_id, "search")
    assert (lineage["data"], lineage["trialMetadata"]) == ({"version": "v7"}, {"commit": "abc"})
    change = {"name": "best", "notes": "# how", "comment": "c", "metadata": {"a": 1}, "labels": []}
    found = ok(await user.patch(f"{API}/digits/versions/1", json=change))["modelVersion"]
    assert found.items() >= change.items()
    tags = {"tags": {"k": None, "n": "1"}}
    found = ok(await user.patch(f"{API}/digits/versions/1/tags", json=tags))["modelVersion"]
    assert found["tags"] == {"n": "1"}
    assert ok(await user.get(f"{API}/digits/versions/1"))["modelVersion"] == found
    shown = ok(await user.get(f"/api/v1/checkpoints/{checkpoint}"))["checkpoint"]
    assert shown["modelVersions"] == [
        {"modelId": made["model"]["id"], "modelName": "digits", "version": 1}
    ]
    other = {"checkpoint": {"uuid": str(uuid.uuid4())}}
    assert "keeps its checkpoint" in refused(
        await user.patch(f"{API}/digits/versions/1", json=other), 400
    )


async def test_numbers_count_on_and_never_return(world: World, user: httpx.AsyncClient) -> None:
    leg = await world.leg()
    await create(user)
    checkpoint = await store(leg, 1)
    # Two clients at once, and more.
    numbers = await asyncio.gather(*(register(user, checkpoint) for _ in range(6)))
    assert sorted(numbers) == [1, 2, 3, 4, 5, 6]
    for number in (6, 2):
        ok(await user.delete(f"{API}/digits/versions/{number}"))
    assert refused(await user.get(f"{API}/digits/versions/6"), 404).endswith("has no version 6")
    assert await register(user, checkpoint) == 7
    answer = ok(await user.get(f"{API}/digits/versions", params={"orderBy": "ORDER_BY_DESC"}))
    assert [one["version"] for one in answer["modelVersions"]] == [7, 5, 4, 3, 1]
    assert (answer["model"]["numVersions"], answer["pagination"]["total"]) == (5, 5)
    page = ok(await user.get(f"{API}/digits/versions", params={"limit": 1, "offset": 1}))
    assert [one["version"] for one in page["modelVersions"]] == [3]


async def test_only_a_whole_checkpoint_becomes_a_version(
    world: World, user: httpx.AsyncClient
) -> None:
    leg = await world.leg()
    await create(user)
    begun = await store(leg, 1, state="STATE_ACTIVE")
    doomed = await store(leg, 2)
    ok(await user.request("DELETE", "/api/v1/checkpoints", json={"checkpointUuids": [doomed]}))
    for checkpoint, status, says in (
        (begun, 409, "is ACTIVE: only a COMPLETED checkpoint can be registered"),
        (doomed, 409, "is being deleted (deletion "),
        (str(uuid.uuid4()), 404, "does not exist"),
        ("x", 404, "not a UUID"),
    ):
        body = {"checkpointUuid": checkpoint}
        assert says in refused(await user.post(f"{API}/digits/versions", json=body), status)
    whole = {"checkpointUuid": await store(leg, 3)}
    assert refused(await user.post(f"{API}/none/versions", json=whole), 404)
    ok(await user.post(f"{API}/digits/archive"))
    assert "is archived" in refused(await user.post(f"{API}/digits/versions", json=whole), 409)
    assert "is archived" in refused(await user.patch(f"{API}/digits", json={"notes": "x"}), 409)
    ok(await user.post(f"{API}/digits/unarchive"))
    assert await register(user, whole["checkpointUuid"]) == 1


async def delete(user: httpx.AsyncClient, checkpoint: str, **more: Any) -> httpx.Response:
    body = {"checkpointUuids": [checkpoint], **more}
    if more:
        return await user.post("/api/v1/checkpoints/rm", json=body)
    return await user.request("DELETE", "/api/v1/checkpoints", json=body)


async def test_a_registered_checkpoint_is_not_deleted(
    world: World, user: httpx.AsyncClient
) -> None:
    config = {"searcher": SEARCHER, "checkpoint_storage": STORAGE}
    leg = await world.leg(config=config)
    kept, spare = await store(leg, 1), await store(leg, 2)
    await end(world, leg)
    await create(user, "my digits")
    assert await register(user, kept, "my digits") == 1
    experiment = f"/api/v1/experiments/{leg.experiment_id}"
    version = f"checkpoint {kept} is version 1 of model 'my digits'"
    advice = "(det model delete-version 'my digits' 1)"
    for answer, what in (
        (await delete(user, kept), "nothing was deleted"),
        (await delete(user, kept, checkpointGlobs=["*.pt"]), "nothing was deleted"),
        (await user.delete(experiment), f"experiment {leg.experiment_id} cannot be deleted"),
    ):
        said = refused(answer, 409)
        assert said.startswith(f"{what}, because {version}")
        assert advice in said
    assert await world.rows(sa.select(deletions)) == []
    (row,) = await world.rows(
        sa.select(experiments.c.state).where(experiments.c.id == leg.experiment_id)
    )
    assert row.state == "COMPLETED"
    # Its sizes may be looked at.
    ok(await delete(user, kept, checkpointGlobs=[]))
    async with changing(world.db) as change:
        (looked,) = await world.rows(sa.select(deletions.c.id))
        await deleting.note_deleted(change, looked.id, {uuid.UUID(kept): {"model.pt": 1000}})
    ok(await delete(user, spare))
    # Once unregistered, everything may be deleted.
    ok(await user.delete(f"{API}/my digits"))
    ok(await user.delete(experiment))


async def test_a_policy_leaves_registered_checkpoints(
    world: World, user: httpx.AsyncClient
) -> None:
    config = {"searcher": SEARCHER, "checkpoint_storage": STORAGE}
    leg = await world.leg(config=config)
    old, late, last = [await store(leg, steps) for steps in (1, 2, 3)]
    await end(world, leg)
    await create(user)
    await register(user, old)
    policy = {"save_trial_latest": 1}
    shown = ok(await user.get(f"/experiments/{leg.experiment_id}/preview_gc", params=policy))
    assert [one["UUID"] for one in shown["checkpoints"]] == [late]
    async with changing(world.db) as change:
        number = await deleting.collect_garbage(change, leg.experiment_id)
    async with changing(world.db) as change:
        assert await deleting.prepare(change, number)
    chosen = await world.rows(
        sa.select(checkpoints.c.uuid).where(checkpoints.c.deletion_id == number)
    )
    assert [str(row.uuid) for row in chosen] == [late]
    assert last not in (old, late)


async def waits_for_a_lock(world: World) -> None:
    async def waiting() -> bool:
        rows = await world.rows(
            sa.text(  # type: ignore[arg-type]
                "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
                " AND datname = current_database()"
            )
        )
        return bool(rows)

    await until_async("a transaction that waits", waiting)


async def test_deleting_and_registering_wait_for_each_other(
    world: World, user: httpx.AsyncClient
) -> None:
    leg = await world.leg()
    await create(user)
    first, second, third = [await store(leg, steps) for steps in (1, 2, 3)]
    owner = (await world.rows(sa.select(experiments.c.owner_id)))[0].owner_id

    async with world.db.tx() as conn:
        await conn.run_sync(registry.register_version, "digits", uuid.UUID(first), owner)
        late = asyncio.create_task(delete(user, first))
        await waits_for_a_lock(world)
        assert not late.done()
    assert "is version 1 of model" in refused(await late, 409)

    async with changing(world.db) as change:
        await deleting.delete_checkpoints(change, [uuid.UUID(second)], owner_id=owner)
        body = {"checkpointUuid": second}
        late = asyncio.create_task(user.post(f"{API}/digits/versions", json=body))
        await waits_for_a_lock(world)
        assert not late.done()
    assert "is being deleted" in refused(await late, 409)

    # A policy has chosen it, and it is registered before the policy locks it.
    await register(user, third)
    async with world.db.tx() as conn:
        free = await registered.lock_unregistered(conn, [uuid.UUID(third), uuid.UUID(second)])
    assert free == {uuid.UUID(second)}
    held = await world.rows(sa.select(model_versions.c.checkpoint_uuid))
    assert {str(row.checkpoint_uuid) for row in held} == {first, third}


async def test_the_rows_of_a_registered_checkpoint_cannot_go(
    world: World, user: httpx.AsyncClient
) -> None:
    """The database stops code that forgets the check."""
    leg = await world.leg()
    await create(user)
    await register(user, await store(leg, 1))
    with pytest.raises(sa.exc.IntegrityError, match="model_versions"):
        async with world.db.tx() as conn:
            await conn.execute(sa.delete(experiments).where(experiments.c.id == leg.experiment_id))


async def put(user: httpx.AsyncClient, alias: str, version: int) -> dict[str, Any]:
    body = {"version": version}
    answer: dict[str, Any] = ok(await user.put(f"{API}/digits/aliases/{alias}", json=body))
    return answer


async def history(user: httpx.AsyncClient, **params: Any) -> list[tuple[str, Any, Any]]:
    moves = ok(await user.get(f"{API}/digits/alias-history", params=params))["moves"]
    assert all(move["username"] == "determined" and move["time"] for move in moves)
    return [(move["alias"], move["fromVersion"], move["toVersion"]) for move in moves]


async def test_an_alias_moves_and_its_history_is_kept(
    world: World, user: httpx.AsyncClient
) -> None:
    checkpoint = await store(await world.leg(), 1)
    await create(user)
    for _ in range(3):
        await register(user, checkpoint)
    assert await put(user, "champion", 1) == {
        "alias": "champion",
        "fromVersion": None,
        "toVersion": 1,
    }
    assert (await put(user, "champion", 2))["fromVersion"] == 1
    await put(user, "staging", 3)
    # Once more changes nothing.
    assert (await put(user, "champion", 2))["fromVersion"] == 2
    found = ok(await user.get(f"{API}/digits/aliases/champion"))["modelVersion"]
    assert (found["version"], found["aliases"]) == (2, ["champion"])
    assert ok(await user.get(f"{API}/digits"))["model"]["aliases"] == {"champion": 2, "staging": 3}
    # Deleting a version also deletes its aliases, which their history records.
    ok(await user.delete(f"{API}/digits/versions/3"))
    assert ok(await user.delete(f"{API}/digits/aliases/champion"))["fromVersion"] == 2
    assert await history(user) == [
        ("champion", None, 1),
        ("champion", 1, 2),
        ("staging", None, 3),
        ("staging", 3, None),
        ("champion", 2, None),
    ]
    assert await history(user, alias="champion", limit=1, orderBy="ORDER_BY_DESC") == [
        ("champion", 2, None)
    ]
    for alias, version, status in (
        ("champion", 9, 404),
        ("v3", 1, 400),
        ("3", 1, 400),
        ("Latest", 1, 400),
        ("a b", 1, 400),
    ):
        answer = await user.put(f"{API}/digits/aliases/{alias}", json={"version": version})
        refused(answer, status)
    missing = refused(await user.get(f"{API}/digits/aliases/champion"), 404)
    assert "has no alias 'champion'; it has none" in missing
    refused(await user.delete(f"{API}/digits/aliases/champion"), 404)


async def test_two_promote_at_once(world: World, user: httpx.AsyncClient) -> None:
    """One wins, and the history has both, one after the other."""
    checkpoint = await store(await world.leg(), 1)
    await create(user)
    for _ in range(8):
        await register(user, checkpoint)
    await asyncio.gather(*(put(user, "champion", number) for number in range(1, 9)))
    moves = await history(user)
    assert {after for _, _, after in moves} == set(range(1, 9))
    before: Callable[[int], Any] = lambda place: moves[place - 1][2] if place else None  # noqa: E731
    assert [move[1] for move in moves] == [before(place) for place in range(8)]
    found = ok(await user.get(f"{API}/digits"))["model"]["aliases"]
    assert found == {"champion": moves[-1][2]}
    rows = await world.rows(sa.select(model_alias_history).order_by(model_alias_history.c.id))
    assert [row.moved_at for row in rows] == sorted(row.moved_at for row in rows)


async def test_reports_of_trials_that_use_a_version(world: World, user: httpx.AsyncClient) -> None:
    leg = await world.leg()
    checkpoint = await store(leg, 1)
    model = await create(user)
    for _ in range(2):
        await register(user, checkpoint)
    batch = await world.leg()
    await batch.store(report(1, "inference", score=0.75), report(1, loss=1.0))
    use = {
        "trialId": batch.trial_id,
        "checkpointUuid": checkpoint,
        "trialSourceInfoType": "TRIAL_SOURCE_INFO_TYPE_INFERENCE",
        "modelId": model["id"],
        "modelVersion": 1,
    }
    for _ in range(2):
        ok(await batch.client.post("/api/v1/trial-source-info", json={"trialSourceInfo": use}))
    path = f"{API}/digits/versions/1/metrics"
    found = ok(await user.get(path, params={"metricGroup": "inference"}))["metrics"]
    assert [(one["trialId"], one["metrics"]) for one in found] == [
        (batch.trial_id, {"avg_metrics": {"score": 0.75}})
    ]
    kinds = {"trialSourceInfoType": "TRIAL_SOURCE_INFO_TYPE_FINE_TUNING"}
    assert ok(await user.get(path, params=kinds))["metrics"] == []
    assert len(ok(await user.get(path))["metrics"]) == 2
    assert ok(await user.get(f"{API}/digits/versions/2/metrics"))["metrics"] == []
    other = await store(leg, 2)
    for change, status in (
        ({"checkpointUuid": other}, 409),
        ({"modelVersion": 9}, 404),
        ({"modelVersion": None}, 400),
        ({"trialSourceInfoType": "TRIAL_SOURCE_INFO_TYPE_UNSPECIFIED"}, 400),
    ):
        body = {"trialSourceInfo": use | change}
        refused(await batch.client.post("/api/v1/trial-source-info", json=body), status)
    # Trials that used it do not prevent its deletion.
    ok(await user.delete(f"{API}/digits"))
    ok(await delete(user, checkpoint))
