"""Quotas of data outside the database: files that notebooks keep, packages on agents."""

from __future__ import annotations

from typing import Any

import httpx

from tests.integration.control.test_launched import started
from tests.integration.control.world import CONFIG, Trial, World, ok
from tests.integration.quotas import put_quotas


async def notebook(world: World) -> Trial:
    config: dict[str, Any] = {"resources": {"slots": 0}}
    ok(await world.user.post("/api/v1/notebooks", json={"config": config}))
    return await started(world)


async def keep(process: Trial, size: int) -> str:
    """The refusal for a process that is about to store this many bytes; empty: it may."""
    path = f"/api/v1/notebooks/{process.spec['task_id']}/files"
    answer = await process.client.put(path, json={"bytes": size})
    if answer.status_code == 403:
        return str(answer.json()["message"])
    assert ok(answer) == {}
    return ""


async def test_notebooks_of_one_user_keep_so_much_together(world: World) -> None:
    """Gains: the cluster's checkpoint storage, full."""
    await world.register()
    await put_quotas(world.app, notebook_file_bytes=100)
    one = await notebook(world)
    other = await notebook(world)
    assert await keep(one, 60) == ""
    assert await keep(other, 41) == (
        "user determined would have 101 bytes of files that notebooks keep, and at most 100 are allowed "
        "(quotas.notebook_file_bytes): delete those of notebooks that nobody needs any more (det notebook "
        "delete-files ID), or ask an administrator, who may raise it in the cluster configuration"
    )
    assert await keep(other, 40) == ""
    # A user above the quota may reduce the size, and files being deleted no longer count.
    await put_quotas(world.app, notebook_file_bytes=50)
    assert await keep(one, 55) == ""
    assert await keep(one, 56) != ""
    mark = """data = coalesce(data, '{}') || '{"files_deletion": "1"}'"""
    task_id = other.spec["task_id"]
    await world.rows(f"UPDATE tasks SET {mark} WHERE id = '{task_id}' RETURNING id")
    await put_quotas(world.app, notebook_file_bytes=56)
    assert await keep(one, 56) == ""
    # Only for its own notebook.
    path = f"/api/v1/notebooks/{task_id}/files"
    assert (await one.client.put(path, json={"bytes": 1})).status_code == 403
    assert (await world.user.put(path, json={"bytes": -1})).status_code == 400


async def test_packages_of_one_user_are_counted_on_all_agents(world: World) -> None:
    """Gains: the agents' disks, full."""
    await world.register()
    await world.register(agent_id="a2")
    await put_quotas(world.app, package_bytes=100)
    first = await world.submit()
    await world.measured("a1", {str(first): 60, "99999": 1000, "99999999999999": 1})
    second = await world.submit()
    await world.measured("a2", {str(first): 30, str(second): 11})
    answer = await world.user.post("/api/v1/experiments", json={"config": CONFIG})
    assert answer.status_code == 403
    assert (
        "would have 101 bytes of packages on agents, installed by experiments and tasks that have not ended, "
        "and at most 100 are allowed (quotas.package_bytes)"
    ) in answer.json()["message"]
    await world.rows(f"UPDATE experiments SET state = 'CANCELED' WHERE id = {second} RETURNING id")
    await world.submit()
    answer = await world.user.post("/api/v1/experiments/continue", json={"id": second})
    assert answer.status_code == 403 and "quotas.package_bytes" in answer.text
    await world.measured("a2", {})
    await world.submit()


async def test_packages_of_commands_count_while_they_run(world: World) -> None:
    """Gains: as before, by commands, notebooks and shells, which refuse nothing to each other."""
    await world.register()
    await put_quotas(world.app, package_bytes=100)
    process = await notebook(world)
    name = process.spec["allocation_id"]
    await world.measured("a1", {name: 101, "another's.1": 1000})
    config = {"entrypoint": ["true"], "resources": {"slots": 0}}

    async def launch() -> httpx.Response:
        return await world.user.post("/api/v1/commands", json={"config": config})

    for answer in (
        await launch(),
        await world.user.post("/api/v1/experiments", json={"config": CONFIG}),
    ):
        assert answer.status_code == 403
        for words in (
            "would have 101 bytes of packages",
            "quotas.package_bytes",
            "det task kill ID",
        ):
            assert words in answer.json()["message"]
    # They are removed with its end, which the agent's next measurement will show.
    ok(await process.exited())
    ok(await launch())
    await world.submit()
