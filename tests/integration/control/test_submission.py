"""What is said about a submission before anything is stored."""

from __future__ import annotations

import asyncio
import base64
import io
import tarfile
import uuid

import pytest

from tests.integration.control.test_search_path import SINGLE
from tests.integration.control.world import World, ok

BAD = {
    "wrong-searcher": (SINGLE.replace("single", "sinlge"), "single"),
    "not-yaml": ("name: [", "not YAML"),
    "unknown-pool": (SINGLE + "resources: {resource_pool: gpus}\n", "there are default"),
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
    # The run exists: none is to be made, but linked to its plots.
    assert await world.told_prefect(f"experiment:{ids[0]}") == ["link_plot"]


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
