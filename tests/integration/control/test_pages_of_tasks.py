"""TensorBoards and notebooks by the REST API: their contents, the secrets that they get, and what counts as
use."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
import yaml

from determined.common.cluster_config import NotebookFiles
from determined_service.deleting import deletions, notebook_files
from determined_service.lifecycle import idle
from determined_service.state.change import changing
from tests.integration.control.test_launched import another_user, refusal, started
from tests.integration.control.world import CONFIG, World, ok

TENSORBOARDS = "/api/v1/tensorboards"
NOTEBOOKS = "/api/v1/notebooks"
OWN_STORAGE = {"type": "s3", "bucket": "b", "access_key": "a", "secret_key": "hidden"}


def config_with(**fields: Any) -> str:
    return yaml.safe_dump({**yaml.safe_load(CONFIG), **fields})


async def test_a_tensorboard_gets_the_storage_that_its_owner_may_read(world: World) -> None:
    await world.register(slots=1)
    plain = await world.submit(config_with(environment={"environment_variables": ["REGION=x"]}))
    private = await world.submit(config_with(checkpoint_storage=OWN_STORAGE))
    for experiment_id in (plain, private):
        ok(await world.act(experiment_id, "kill"))
    stranger = await another_user(world, "mallory")
    refused = await stranger.post(TENSORBOARDS, json={"experimentIds": [plain, private]})
    assert refused.status_code == 400
    assert "have determined start the TensorBoard" in refused.json()["message"]
    assert "hidden" not in refused.text
    missing = await world.user.post(
        TENSORBOARDS, json={"experimentIds": [plain, 99], "trialIds": [98]}
    )
    assert (missing.status_code, missing.json()["message"]) == (
        404,
        "not found: no such experiment: 99",
    )
    assert "at least one" in await refusal(world, TENSORBOARDS)
    given = {"experimentIds": [plain], "config": {"tensorboard_args": ["--logdir=/"]}}
    assert "--logdir" in await refusal(world, TENSORBOARDS, **given)
    # Of another user's experiment neither keys nor variables.
    answer = ok(await stranger.post(TENSORBOARDS, json={"experimentIds": [plain]}))
    assert answer["config"]["environment"]["environment_variables"]["cpu"] == []
    ok(await stranger.post(f"{TENSORBOARDS}/{answer['tensorboard']['id']}/kill"))
    answer = ok(await world.user.post(TENSORBOARDS, json={"experimentIds": [plain, private]}))
    task = answer["tensorboard"]
    assert task["experimentIds"] == [plain, private]
    assert answer["config"]["environment"]["environment_variables"]["cpu"] == ["REGION=x"]
    process = await started(world)
    (port,) = process.spec["ports"]
    assert (port["shared"], port["keep_prefix"], port["env"]) == (True, True, "TENSORBOARD_PORT")
    sources = f"{TENSORBOARDS}/{task['id']}/sources"
    found = ok(await process.client.get(sources))["sources"]
    assert [one["path"] for one in found] == [f"experiment/{plain}", f"experiment/{private}"]
    assert (found[1]["storage"]["secret_key"], found[1]["ended"]) == ("hidden", True)
    assert (await stranger.get(sources)).status_code == 403
    # Visits are use; its agent is lost, and it waits for another one.
    row = f"SELECT idle_since, idle_timeout_s FROM tasks WHERE id = '{task['id']}'"
    before = await world.row(row)
    assert before["idle_timeout_s"] == 300
    async with changing(world.app.state.db) as change:
        await idle.note_visits(change.conn, [task["id"]])
    assert (await world.row(row))["idle_since"] > before["idle_since"]
    ok(await process.exited(exit_code=None, kind="infrastructure", reason="agent a1 lost"))
    again = await started(world)
    assert (again.spec["task_id"], again.spec["run_id"]) == (task["id"], 2)
    ok(await again.exited(exit_code=1))
    shown = ok(await world.user.get(f"{TENSORBOARDS}/{task['id']}"))["tensorboard"]
    assert shown["taskState"] == "STATE_ERROR"


async def test_a_notebook_is_its_owners(world: World) -> None:
    await world.register(slots=1)
    stranger = await another_user(world, "mallory")
    preview = ok(await world.user.post(NOTEBOOKS, json={"preview": True}))
    assert preview["config"]["notebook_idle_type"] == "kernels_or_terminals"
    notebook = ok(await world.user.post(NOTEBOOKS, json={}))["notebook"]
    assert "token=" in notebook["serviceAddress"]
    seen = await stranger.get(f"{NOTEBOOKS}/{notebook['id']}")
    assert ok(seen)["notebook"]["serviceAddress"] == f"/proxy/{notebook['id']}/lab"
    process = await started(world)
    token = process.spec["env"]["DET_NOTEBOOK_TOKEN"]
    assert notebook["serviceAddress"].endswith(token) and token not in seen.text
    files = ok(await process.client.get(f"{NOTEBOOKS}/{notebook['id']}/files"))
    assert files["key"].endswith(f"/notebook/{notebook['id']}") and not files["restore"]
    again = {"restoreId": notebook["id"]}
    assert (await stranger.post(NOTEBOOKS, json=again)).status_code == 403
    ok(await process.exited(exit_code=0))
    ok(await world.user.post(NOTEBOOKS, json=again))
    second = await started(world)
    task_id = second.spec["task_id"]
    found = ok(await second.client.get(f"{NOTEBOOKS}/{task_id}/files"))
    assert found["restore"] == files["key"]
    ok(await world.user.post(f"{NOTEBOOKS}/{task_id}/kill"))


async def test_the_files_of_ended_notebooks_are_deleted_by_their_owner_or_the_rule(
    world: World,
) -> None:
    await world.register(slots=1)
    stranger = await another_user(world, "mallory")
    kept = "/api/v1/notebook-files"
    ids = []
    for _ in range(4):
        task_id = ok(await world.user.post(NOTEBOOKS, json={}))["notebook"]["id"]
        process = await started(world)
        early = await world.user.delete(f"{kept}/{task_id}")
        assert early.status_code == 409 and "has not ended" in early.json()["message"]
        # A notebook that was killed before it listed its files reports none.
        size = len(ids) * 1000 or None
        if size:
            ok(await process.client.put(f"{NOTEBOOKS}/{task_id}/files", json={"bytes": size}))
        ok(await process.exited(exit_code=0))
        ids.append(task_id)
    # A notebook that ran and left no files.
    empty = ok(await world.user.post(NOTEBOOKS, json={}))["notebook"]["id"]
    process = await started(world)
    ok(await process.client.put(f"{NOTEBOOKS}/{empty}/files", json={"bytes": 0}))
    ok(await process.exited(exit_code=0))
    refused = await world.user.delete(f"{kept}/{empty}")
    assert refused.status_code == 409 and "has no files" in refused.json()["message"]
    # A notebook that never began has no files, and does not count among the last three.
    blocker = ok(await world.user.post("/api/v1/commands", json={"config": {"entrypoint": ["x"]}}))
    waiting = ok(await world.user.post(NOTEBOOKS, json={}))["notebook"]["id"]
    ok(await world.user.post(f"{NOTEBOOKS}/{waiting}/kill"))
    ok(await world.user.post(f"/api/v1/commands/{blocker['command']['id']}/kill"))
    nothing = await world.user.delete(f"{kept}/{waiting}")
    assert nothing.status_code == 409 and "has no files" in nothing.json()["message"]
    listed = ok(await world.user.get(kept))["notebookFiles"]
    assert [(one["id"], one["bytes"]) for one in listed] == [
        *zip(ids[::-1], (3000, 2000, 1000, None), strict=True)
    ]
    assert ok(await stranger.get(kept))["notebookFiles"] == []
    assert (await stranger.delete(f"{kept}/{ids[0]}")).status_code == 403

    # A new notebook must begin with these files.
    ok(await world.user.post(NOTEBOOKS, json={"restoreId": ids[1]}))
    needed = await world.user.delete(f"{kept}/{ids[1]}")
    assert needed.status_code == 409 and "begins with the files" in needed.json()["message"]
    first = ok(await world.user.delete(f"{kept}/{ids[0]}"))["deletionId"]
    assert (await world.user.delete(f"{kept}/{ids[0]}")).status_code == 409
    gone = await world.user.post(NOTEBOOKS, json={"restoreId": ids[0]})
    assert gone.status_code == 409 and "were deleted" in gone.json()["message"]
    async with changing(world.app.state.db) as change:
        assert await deletions.prepare(change, first)
        work = await deletions.work(change.conn, first, world.app.state.settings)
    (place,) = work.places
    assert [key.rpartition("/")[2] for key in place.discard] == [ids[0]]

    async def ruled(**rule: int) -> int:
        async with changing(world.app.state.db) as change:
            return await notebook_files.apply_rule(change, NotebookFiles(**rule))

    assert (await ruled(), await ruled(days=1, per_owner=3)) == (0, 0)
    # The latest one stays, and the one in use.
    assert (await ruled(per_owner=1), await ruled(per_owner=1)) == (1, 0)
    async with changing(world.app.state.db) as change:
        await change.conn.execute(
            sa.text("UPDATE tasks SET end_time = end_time - interval '2 days'")
        )
    assert (await ruled(days=3), await ruled(days=1)) == (0, 1)
    left = ok(await world.user.get(kept))["notebookFiles"]
    assert [one["id"] for one in left] == [ids[1]]
    # What cannot be deleted is there as before.
    async with changing(world.app.state.db) as change:
        await deletions.end(change, first, "the storage is away")
    assert ids[0] in [one["id"] for one in ok(await world.user.get(kept))["notebookFiles"]]
