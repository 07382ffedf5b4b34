"""The pages of tasks: the list, one task, launching, opening."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime

import pytest
import sqlalchemy as sa
from fastapi import FastAPI

from determined_registry.database.tables import allocation_ports, allocations, tasks
from determined_service.base.pages import FRONT_HOME
from tests.integration.front.conftest import Pages
from tests.integration.front.test_cluster import HOSTILE, add_agent
from tests.integration.front.test_two_users import visitor
from tests.integration.roles import give, put_mode, user_id
from tests.integration.service_api.world import World


async def launched(world: World, kind: str, name: str = "mine", **more: object) -> str:
    """A task of ``determined``."""
    (owner,) = await world.rows(sa.text("SELECT id FROM users WHERE username = 'determined'"))
    task_id = str(uuid.uuid4())
    resources = {"resource_pool": "default", "slots": 0, "priority": None}
    row = {
        "id": task_id,
        "kind": kind,
        "owner_id": owner.id,
        "workspace_id": 1,
        "name": name,
        "config": {"description": name, "resources": resources, "environment": {}},
        "state": "ACTIVE",
        "job_id": uuid.uuid4(),
        "data": {"private_key": "", "public_key": "", "key_type": "ED25519"},
        **more,
    }
    async with world.db.tx() as conn:
        await conn.execute(sa.insert(tasks).values(row))
    return task_id


async def run(world: World, task_id: str, state: str = "RUNNING") -> None:
    """The task has an allocation, whose port answers."""
    async with world.db.tx() as conn:
        await conn.execute(
            sa.insert(allocations).values(
                id=f"{task_id}.1",
                task_id=task_id,
                run_id=1,
                state=state,
                resource_pool="default",
                slots=0,
                agent_id="agent-1",
                slot_ids=[],
                token_hash=task_id,
            )
        )
        await conn.execute(
            sa.insert(allocation_ports).values(
                allocation_id=f"{task_id}.1",
                name="main",
                task_id=task_id,
                address="127.0.0.1",
                port=9,
                tcp=False,
                unauthenticated=False,
                shared=False,
                is_default=True,
                keep_prefix=True,
                ready=True,
            )
        )


async def test_the_list_has_all_kinds(pages: Pages, world: World) -> None:
    assert "No task is here" in (await pages.open("/tasks")).text
    made = {
        kind: await launched(world, kind, f"my {kind}")
        for kind in ("COMMAND", "NOTEBOOK", "SHELL", "TENSORBOARD", "GENERIC")
    }
    page = await pages.open("/tasks")
    for kind, task_id in made.items():
        assert f"/det/tasks/{task_id}" in page.links()
        alone = await pages.open(f"/tasks?kind={kind.lower()}")
        shown = {one for one in made.values() if f"/det/tasks/{one}" in alone.links()}
        assert shown == {task_id}
    page = await pages.open("/tasks?kind=command")
    page = await pages.send(page, "task.kill")
    assert page.said == f"Task {made['COMMAND']} is killed."
    assert "canceled" in page.text


async def test_a_notebook_is_opened_by_the_pages_login(pages: Pages, world: World) -> None:
    await add_agent(world)
    task_id = await launched(world, "NOTEBOOK")
    page = await pages.open(f"/tasks/{task_id}/open")
    assert (page.status, "does not answer yet" in page.text) == (409, True)
    await run(world, task_id)
    page = await pages.open(f"/tasks/{task_id}")
    assert f"/det/tasks/{task_id}/open" in page.links()
    answer = await pages.client.get(f"/det/tasks/{task_id}/open", follow_redirects=False)
    assert answer.status_code == 303, answer.text
    where = answer.headers["location"]
    assert where.startswith(f"http://{task_id}.localhost")
    assert "ticket=" in where
    command = await launched(world, "COMMAND")
    assert "has no pages" in (await pages.open(f"/tasks/{command}/open")).text


async def test_one_task(pages: Pages, world: World) -> None:
    task_id = await launched(world, "SHELL", HOSTILE, reason=HOSTILE)
    page = await pages.open(f"/tasks/{task_id}")
    assert f"det shell open {task_id}" in page.text
    assert "description:" in page.one("pre").get_text()
    for mark in ("<script>alert", "\u202e", "\x1b", "\u2028"):
        assert mark not in page.answer.text
    leg = await world.leg(state="ACTIVE")
    page = await pages.open(f"/tasks/{leg.task_id}")
    assert f"/det/trials/{leg.trial_id}" in page.links()
    assert (await pages.open("/tasks/none")).status == 404


async def test_a_command_is_launched(pages: Pages, world: World) -> None:
    await add_agent(world)
    page = await pages.open("/tasks/new?kind=command")
    csrf = str(page.soup.select("main input[name=csrf]")[0]["value"])
    fields = {"csrf": csrf, "kind": "command", "entrypoint": "echo 'a b'", "slots": "0"}
    wrong = await pages.post("/tasks/new", {**fields, "config": "environment: ["})
    assert wrong.status == 400
    assert wrong.one("input[name=entrypoint]")["value"] == "echo 'a b'", "what was typed stays"
    assert "config" in wrong.text
    wrong = await pages.post("/tasks/new", {**fields, "slots": "many"})
    assert "give a whole number" in wrong.text
    page = await pages.post(
        "/tasks/new", {**fields, "config": "debug: true", "description": "mine"}
    )
    assert "is launched" in page.said
    assert "debug: true" in page.one("pre").get_text()
    (made,) = await world.rows(sa.select(tasks.c.config).where(tasks.c.kind == "COMMAND"))
    assert made.config["entrypoint"] == "echo 'a b'"


async def test_a_tensorboard_needs_something_to_show(pages: Pages) -> None:
    page = await pages.open("/tasks/new?kind=tensorboard&experiments=99999")
    assert page.one("input[name=experiments]")["value"] == "99999"
    csrf = str(page.soup.select("main input[name=csrf]")[0]["value"])
    fields = {"csrf": csrf, "kind": "tensorboard", "experiments": "99999"}
    assert (await pages.post("/tasks/new", fields)).status == 400
    assert (await pages.post("/tasks/new", {**fields, "csrf": "x"})).status == 403
    assert (await pages.open("/tasks/new?kind=rocket")).status == 400


@pytest.mark.parametrize("kind", ["command", "notebook", "shell", "tensorboard"])
async def test_every_form_is_labelled(pages: Pages, service_app: FastAPI, kind: str) -> None:
    page = await pages.open(f"/tasks/new?kind={kind}")
    for one in page.soup.select("main input:not([type=hidden]), main select, main textarea"):
        assert page.has(f'label[for="{one["id"]}"]')


async def test_a_terminal_is_for_those_who_may_enter(
    pages: Pages, service_app: FastAPI, world: World
) -> None:
    mine = await launched(world, "COMMAND")
    address = f"/tasks/{mine}/terminal"
    link = f"{FRONT_HOME}{address}"
    assert link not in (await pages.open(f"/tasks/{mine}")).links(), "it does not run yet"
    await run(world, mine)
    assert link in (await pages.open(f"/tasks/{mine}")).links()
    own = await pages.open(address)
    assert own.status == 200 and own.has("#terminal")
    csrf = str(own.one('form#terminal-form input[name="csrf"]')["value"])

    await put_mode(service_app)
    for user in ("determined", "vera"):
        await give(service_app, user, "Viewer")
    viewer = await visitor(service_app, await user_id(service_app, "vera"))
    async with viewer.client:
        page = await viewer.open(f"/tasks/{mine}")
        assert page.status == 200 and link not in page.links()
        assert (await viewer.open(address)).status == 403
        assert (await viewer.open(f"{address}/state")).status == 403
        for form in (csrf, str(page.one('form[action$="/logout"] input')["value"])):
            answer = await viewer.client.post(link, data={"csrf": form})
            assert answer.status_code == 403 and answer.json()["said"], answer.text

    # Its agent is away: the words are those of det exec.
    answer = await pages.client.post(link, data={"csrf": csrf})
    assert answer.status_code == 409 and "there is nothing to enter" not in answer.json()["said"]
    ended = await launched(world, "COMMAND", state="COMPLETED", end_time=datetime.now(UTC))
    page = await pages.open(f"/tasks/{ended}/terminal")
    assert page.status == 409 and "has ended" in page.text
