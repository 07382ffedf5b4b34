"""The pages of the cluster: agents and slots, the queue, use, the log."""

from __future__ import annotations

import contextlib
from urllib.parse import urlsplit

import httpx
import pytest
import sqlalchemy as sa
from fastapi import FastAPI
from sqlalchemy.dialects.postgresql import insert

from determined_registry.database.tables import agents, allocations, experiments, slots
from tests.integration.front.conftest import Page, Pages
from tests.integration.roles import put_mode
from tests.integration.service_api.test_scope import _AGENT, _SLOT, Mine, fill
from tests.integration.service_api.world import World

HOSTILE = "<script>alert(1)</script>\u202e\x1b[31m\"'&\u2028"
RESOURCES = {"resource_pool": "default", "slots_per_trial": 1, "priority": None}


async def add_agent(world: World, name: str = "agent-1") -> None:
    async with world.db.tx() as conn:
        await conn.execute(insert(agents).values({**_AGENT, "id": name}).on_conflict_do_nothing())
        for slot in (0, 1):
            await conn.execute(insert(slots).values({**_SLOT, "agent_id": name, "slot_id": slot}))


async def job(world: World, name: str, **more: object) -> int:
    """An experiment in the queue, which nothing schedules."""
    config = {"name": name, "resources": dict(RESOURCES), "searcher": {"name": "single"}}
    found = await world.experiment(name=name, config=config, state="ACTIVE", **more)
    await world.start(found, *await world.trial(found))
    return found


async def come(app: FastAPI, client: httpx.AsyncClient) -> Pages:
    """A visitor with the login of ``client``."""
    made = (await client.post("/api/v1/pages/tickets", json={})).json()["url"]
    found = Pages(app)
    url = urlsplit(made)
    path = f"{url.path.removeprefix('/det')}?{url.query}"
    page = await found.open(path, headers={"Sec-Fetch-Site": "none"})
    assert page.path == "/det/", page.text
    return found


def names(page: Page) -> list[str]:
    return [str(row["data-job"]) for row in page.soup.select("tr[data-job]")]


async def test_agents_with_their_slots_by_task(pages: Pages, world: World) -> None:
    await add_agent(world)
    leg = await world.leg()
    page = await pages.open("/cluster")
    assert "1 of 2" in page.text
    used = page.soup.select("ul.slots li.used")
    assert [str(one.select_one("a")["href"]) for one in used] == [f"/det/tasks/{leg.task_id}"]  # type: ignore[index]
    assert not page.has("main form"), "who may not change agents sees no button"
    page = await pages.open("/cluster?agent=agent-1")
    assert "cpu" in page.text.lower()
    assert leg.task_id in page.text


async def test_an_administrator_takes_agents_and_slots_out_of_use(
    admin: Pages, world: World
) -> None:
    await add_agent(world)
    page = await admin.open("/cluster?agent=agent-1")
    forms = page.soup.select('form[action$="/actions/slot.disable"]')
    fields = {str(one["name"]): str(one["value"]) for one in forms[0].select("input")}
    page = await admin.post("/actions/slot.disable", fields)
    assert page.said == "Slot 0 of agent-1 gets no more work."
    assert page.has("td .state.warm")
    page = await admin.send(page, "slot.enable")
    assert page.said == "Slot 0 of agent-1 gets work again."
    fields |= {"agent": "agent-1", "drain": ""}
    page = await admin.post("/actions/agent.disable", fields)
    assert "disabled" in page.text
    page = await admin.send(page, "agent.enable")
    assert "gets work again" in page.said


async def test_the_queue_is_changed_by_its_owner(pages: Pages, world: World) -> None:
    await add_agent(world)
    first, second = [await job(world, name) for name in ("one", "two")]
    page = await pages.open("/cluster/queue?pool=default")
    assert sorted(names(page)) == sorted([str(first), str(second)])
    row = page.soup.select("tr[data-job][draggable]")
    assert len(row) == 2
    csrf = str(page.soup.select("input[name=csrf]")[0]["value"])

    async def change(one: int, what: str, value: object) -> str:
        fields = {"csrf": csrf, "to": "/det/cluster/queue", "job": str(one)}
        done = await pages.post("/actions/job.change", fields | {"what": what, "value": str(value)})
        assert done.path == "/det/cluster/queue"
        return done.said

    assert await change(second, "priority", 7) == f"Job {second} has priority 7."
    assert await change(first, "maxSlots", 3) == f"Job {first} runs on at most 3 slots."
    assert await change(first, "maxSlots", "") == f"Job {first} has no limit of slots."
    assert "has priority" in await change(second, "behindOf", first)
    places = {
        one.id: one.queue_position
        for one in await world.rows(sa.select(experiments.c.id, experiments.c.queue_position))
    }
    assert places[second] is not None
    assert "give a whole number" in await change(first, "priority", "x")
    assert "there is no resource pool" in await change(first, "resourcePool", "moon")
    assert "no change of a job" in await change(first, "color", "red")


async def test_others_jobs_have_no_buttons(pages: Pages, admin: Pages, world: World) -> None:
    await add_agent(world)
    (owner,) = await world.rows(sa.text("SELECT id FROM users WHERE username = 'admin'"))
    found = await job(world, "admins", owner_id=owner.id)
    page = await pages.open("/cluster/queue")
    assert (names(page), page.has("tr[draggable]")) == ([str(found)], False)
    assert (await admin.open("/cluster/queue")).has("tr[draggable]")


async def test_use_over_time(pages: Pages, world: World) -> None:
    empty = await pages.open("/cluster/use")
    assert "Nothing has used a slot" in empty.text
    await job(world, "one")
    async with world.db.tx() as conn:
        ago = sa.text("now() - interval '2 hours'")
        await conn.execute(
            sa.update(allocations).values(
                requested_at=ago, assigned_at=ago, started_at=ago, slots=2
            )
        )
    for address in ("", "?period=month", "?by=user", "?by=nonsense&period=x"):
        page = await pages.open(f"/cluster/use{address}")
        assert page.status == 200
        assert page.has("svg rect")
        assert "4" in page.text
    assert "determined" in (await pages.open("/cluster/use?by=user")).text


async def test_only_administrators_read_the_log(pages: Pages, admin: Pages) -> None:
    assert (await pages.open("/cluster/log")).status == 403
    assert "/det/cluster/log" not in (await pages.open("/cluster")).links()
    page = await admin.open("/cluster/log")
    assert (page.status, page.has(".log")) == (200, True)
    assert "/det/cluster/log" in page.links()


async def test_hostile_names_stay_text(admin: Pages, world: World) -> None:
    await add_agent(world)
    await job(world, HOSTILE)
    for path in ("/cluster", "/cluster/queue", "/cluster/use", "/cluster/queue?pool=%3Cb%3E"):
        page = await admin.open(path)
        assert "<script>alert" not in page.answer.text
        assert "<b>" not in page.answer.text.partition("<main")[2]
        for mark in ("\u202e", "\x1b", "\u2028"):
            assert mark not in page.answer.text, path


@pytest.mark.parametrize("whose", [0, 1])
async def test_nothing_of_others_is_shown(service_app: FastAPI, world: World, whose: int) -> None:
    two: list[Mine] = [await fill(world, word) for word in ("zqalphaqz", "zqbetaqz")]
    await put_mode(service_app)
    mine, other = two[whose], two[1 - whose]
    visitor = await come(service_app, mine.client)
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(visitor.client.aclose)
        for path in (
            "/cluster",
            "/cluster?agent=agent-1",
            "/cluster/queue",
            "/cluster/use?by=user",
            "/cluster/use?by=label",
            "/tasks",
            *(f"/tasks?kind={kind}" for kind in ("command", "notebook", "generic")),
            f"/tasks/{mine.tasks['notebooks']}",
            f"/tasks/{other.tasks['notebooks']}",
            f"/tasks/{other.tasks['notebooks']}/open",
            f"/tasks/{other.trial_task}",
            "/tasks/new?kind=tensorboard",
        ):
            page = await visitor.open(path)
            shown = page.answer.text
            for mark in other.marks:
                if mark not in path:
                    assert mark not in shown, f"{path}: {mark}"
        assert mine.word in (await visitor.open("/tasks")).text
        assert mine.word in (await visitor.open("/cluster/queue")).text
