"""The mistakes of a submission that are reported before anything is stored."""

from __future__ import annotations

import asyncio
import base64
import io
import tarfile
import uuid
from typing import Any

import pytest

from determined_searchers import Create, create_searcher
from tests.integration.control.test_search_path import SINGLE
from tests.integration.control.world import Driver, Trial, World, ok
from tests.waiting import TIMEOUT_S

BAD = {
    "wrong-searcher": (SINGLE.replace("single", "sinlge"), "single"),
    "not-yaml": ("name: [", "not YAML"),
    "unknown-pool": (SINGLE + "resources: {resource_pool: gpus}\n", "allowed: default"),
    "too-wide": (SINGLE + "resources: {slots_per_trial: 9}\n", "9 slots are more than any agent"),
    "no-trial": (
        SINGLE.replace("max_length: 8}", "max_length: 8, source_trial_id: 77}"),
        "trial 77 does not exist",
    ),
    "no-checkpoint": (
        SINGLE.replace(
            "max_length: 8}",
            "max_length: 8, source_checkpoint_uuid: 6f3f2bd4-86d5-4f35-9cd5-8c3a9f2a4a11}",
        ),
        "no complete checkpoint",
    ),
    "grid-without-count": (
        SINGLE.replace("{name: single,", "{name: grid,"),
        "count",
    ),
}


@pytest.mark.parametrize("case", BAD)
async def test_a_bad_configuration_is_refused(world: World, case: str) -> None:
    await world.register(slots=2)
    config, text = BAD[case]
    answer = await world.user.post("/api/v1/experiments", json={"config": config})
    assert answer.status_code == 400
    assert text in answer.json()["error"]["error"]
    assert not await world.rows("SELECT 1 FROM experiments")


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"template": "t"}, "template 't'"),
        ({"parentId": 12}, "experiment 12 does not exist"),
        ({"modelDefinition": [{"path": "../x", "content": ""}]}, "not inside the directory"),
        ({"modelDefinition": [{"path": "x", "type": 50}]}, "neither a file nor a directory"),
        ({"modelDefinition": [{"path": "x", "content": "%"}]}, "not base64"),
    ],
)
async def test_bad_fields_are_refused(world: World, fields: dict[str, object], text: str) -> None:
    answer = await world.user.post("/api/v1/experiments", json={"config": SINGLE} | fields)
    assert answer.status_code == 400
    assert text in answer.json()["error"]["error"]


async def test_validate_only_stores_nothing(world: World) -> None:
    answer = ok(
        await world.user.post("/api/v1/experiments", json={"config": SINGLE, "validateOnly": True})
    )
    assert answer["config"]["searcher"]["name"] == "single"
    assert answer["config"]["checkpoint_storage"]["type"] == "shared_fs"
    planned = answer["experiment"]
    assert (planned["id"], planned["searcherType"], planned["archived"]) == (0, "single", False)
    # Without any agent the pool's width is not known: it will wait.
    assert answer["warnings"] == ["LAUNCH_WARNING_CURRENT_SLOTS_EXCEEDED"]
    assert "resource pool 'default' has no agent now on which" in answer["remarks"][0]
    assert not await world.rows("SELECT 1 FROM experiments")


async def test_equal_directories_are_stored_once(world: World) -> None:
    files = [
        {"path": "b.py", "type": 48, "content": base64.b64encode(b"b").decode(), "mtime": "5"},
        {"path": "pkg", "type": 53, "mode": 0o40755},
        {"path": "pkg/a.py", "type": 48, "content": base64.b64encode(b"a").decode()},
    ]
    await world.submit(modelDefinition=files)
    later = [dict(file, mtime="999", uid=7) for file in reversed(files)]
    await world.submit(modelDefinition=later)
    (stored,) = await world.rows("SELECT archive FROM model_definitions")
    with tarfile.open(fileobj=io.BytesIO(stored["archive"])) as tar:
        assert tar.getnames() == ["b.py", "pkg", "pkg/a.py"]


async def test_a_prefect_run_submits_one_experiment(world: World) -> None:
    run = str(uuid.uuid4())
    ids = await asyncio.gather(*(world.submit(flowRunId=run) for _ in range(3)))
    assert len(set(ids)) == 1
    assert str((await world.experiment(ids[0]))["flow_run_id"]) == run
    # The run exists, so the service makes none, but names it after the experiment.
    assert await world.told_prefect(f"experiment:{ids[0]}") == [f"scripted #{ids[0]}"]


async def test_source_checkpoint_is_where_trials_start(world: World) -> None:
    await world.register(slots=1)
    checkpoint = "6f3f2bd4-86d5-4f35-9cd5-8c3a9f2a4a11"
    await world.rows(
        "INSERT INTO checkpoints (uuid, state, steps_completed)"
        " VALUES (:uuid, 'COMPLETED', 5) RETURNING uuid",
        uuid=checkpoint,
    )
    config = SINGLE.replace(
        "max_length: 8}", f"max_length: 8, source_checkpoint_uuid: {checkpoint}}}"
    )
    await world.started(config)
    trial = await world.launched()
    assert trial.spec["latest_checkpoint"] == checkpoint
    assert trial.spec["steps_completed"] == 0


async def shown_trials(world: World, experiment_id: int) -> list[dict[str, Any]]:
    answer = ok(await world.user.get(f"/api/v1/experiments/{experiment_id}/trials"))
    return list(answer["trials"])


async def test_the_first_trials_exist_when_create_returns(world: World) -> None:
    await world.register(slots=2)
    experiment_id = await world.submit()
    first = await shown_trials(world, experiment_id)
    config = (await world.experiment(experiment_id))["config"]
    asked = create_searcher(config).initial_operations()
    assert [trial["hparams"] for trial in first] == [
        operation.hparams for operation in asked if isinstance(operation, Create)
    ]
    # They start before anybody drives the search.
    legs = [Trial(world, spec) for spec in (await world.both())["launch"]]
    assert {leg.id for leg in legs} == {trial["id"] for trial in first}
    for leg in legs:
        await leg.run_to_end()
    created = {"type": "trial_created"}
    events = await world.events(experiment_id)
    assert [event | created for event in events[:2]] == events[:2]
    # Whoever drives it takes what happened meanwhile into account.
    driver = Driver(world, experiment_id)
    attached = await driver.attach()
    assert len(attached.trials_without_run) == 2
    finished = asyncio.Event()
    agent = asyncio.create_task(world.train_all(finished))
    assert await asyncio.wait_for(driver.drive(), TIMEOUT_S) == "COMPLETED"
    finished.set()
    assert await agent == 2
    assert len(await shown_trials(world, experiment_id)) == 4


async def test_a_paused_experiment_has_its_trials(world: World) -> None:
    await world.register(slots=1)
    experiment_id = await world.submit(SINGLE, activate=False)
    (trial,) = await shown_trials(world, experiment_id)
    assert trial["state"] == "STATE_PAUSED"
    assert not await world.rows("SELECT 1 FROM allocations")
    assert await world.told_prefect(f"experiment:{experiment_id}") == []
    ok(await world.act(experiment_id, "activate"))
    leg = await world.launched()
    assert leg.id == trial["id"]
    await leg.run_to_end()
    driver = Driver(world, experiment_id)
    await driver.attach()
    assert await asyncio.wait_for(driver.drive(), TIMEOUT_S) == "COMPLETED"


@pytest.mark.parametrize("verb", ["cancel", "kill"])
async def test_a_paused_experiment_can_be_ended(world: World, verb: str) -> None:
    experiment_id = await world.submit(activate=False)
    ok(await world.act(experiment_id, verb))
    assert (await world.experiment(experiment_id))["state"] == "CANCELED"
    states = [trial["state"] for trial in await shown_trials(world, experiment_id)]
    assert states == ["STATE_CANCELED"] * 2


async def test_a_search_that_an_older_release_stored_is_begun_by_its_driver(world: World) -> None:
    await world.register(slots=1)
    experiment_id = await world.submit(SINGLE)
    (trial,) = await shown_trials(world, experiment_id)
    for table in ("allocations", "trials", "search_events"):
        await world.rows(f"DELETE FROM {table} RETURNING experiment_id")
    await world.rows("DELETE FROM tasks RETURNING id")
    await world.rows(
        "UPDATE searches SET snapshot = NULL, snapshot_event_id = -1, committed_event_id = -1,"
        " last_event_id = 0 RETURNING experiment_id"
    )
    driver = Driver(world, experiment_id)
    await driver.attach()
    (begun,) = await shown_trials(world, experiment_id)
    assert begun["hparams"] == trial["hparams"]
    await (await world.launched()).run_to_end()
    assert await asyncio.wait_for(driver.drive(), TIMEOUT_S) == "COMPLETED"


async def test_null_is_the_same_as_left_out(world: World) -> None:
    fields = ("modelDefinition", "activate", "validateOnly", "parentId", "projectId", "unmanaged")
    experiment_id = await world.submit(SINGLE, **dict.fromkeys(fields))
    found = await world.experiment(experiment_id)
    assert (found["state"], found["model_def_hash"]) == ("ACTIVE", None)
