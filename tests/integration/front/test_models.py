"""Models, pipelines, workspaces and people on the pages."""

from __future__ import annotations

import uuid
from typing import Any

import httpx
import pytest
import sqlalchemy as sa
from fastapi import FastAPI

from determined_registry.database.tables import checkpoints
from determined_service.front.pipelines import layout
from tests.integration.front.conftest import Pages
from tests.integration.service_api.world import World

NAME = "models/a%20b%20%3Ci%3E"


async def checkpoint(world: World) -> str:
    experiment = await world.experiment("source")
    trial, request = await world.trial(experiment)
    found = uuid.uuid4()
    async with world.db.tx() as conn:
        await conn.execute(
            sa.insert(checkpoints).values(
                uuid=found,
                state="COMPLETED",
                task_id=f"{experiment}.{request}",
                experiment_id=experiment,
                trial_id=trial,
                steps_completed=3,
                resources={"model.pt": 1},
            )
        )
    return str(found)


async def test_a_model_is_made_registered_and_promoted(pages: Pages, world: World) -> None:
    page = await pages.open("/models")
    assert "No model is here yet" in page.text
    page = await pages.send(page, "model.create", name="a/b", description="of digits")
    assert "holds '/'" in page.said
    page = await pages.send(page, "model.create", name="a b <i>", description="of digits")
    assert (page.path, page.said) == (f"/det/{NAME}", "There is a model a b <i> now.")
    for number in (1, 2):
        page = await pages.send(page, "model.register", checkpoint=await checkpoint(world))
        assert "is a version" in page.said, number
    form = {"alias": "champion", "version": "2"}
    page = await _promote(pages, page, form)
    assert page.said == "champion stands for version 2 now."
    assert "champion" in page.text
    page = await pages.send(page, "model.register", checkpoint="no uuid")
    assert "uuid" in page.said
    version = await pages.open(f"/{NAME}/versions/2?against=1")
    assert version.status == 200
    assert version.has(".diff .add"), version.text
    version = await pages.send(version, "model.describe_version", comment="better", notes="x")
    assert "better" in str(version.one("#comment")["value"])


async def _promote(pages: Pages, page: Any, form: dict[str, str]) -> Any:
    fields = {
        str(one["name"]): str(one.get("value", ""))
        for one in page.soup.select('form[action$="/actions/model.promote"]')[0].select("input")
    }
    return await pages.post("/actions/model.promote", fields | form)


async def test_a_reader_gets_no_actions(pages: Pages, admin: Pages, world: World) -> None:
    page = await admin.open("/models")
    await admin.send(page, "model.create", name="theirs")
    mine = await pages.open("/models/theirs")
    assert mine.status == 200
    assert not mine.has('form[action*="/actions/model."]')
    theirs = await admin.open("/models/theirs")
    assert theirs.has('form[action$="/actions/model.delete"]')


STEPS = [
    {"name": "a", "needs": []},
    {"name": "b", "needs": ["a"]},
    {"name": "c", "needs": ["a"]},
    {"name": "d", "needs": ["b", "c"]},
]


def test_the_graph_has_each_step_right_of_those_that_it_needs() -> None:
    graph = layout(STEPS)
    places = {box.step["name"]: (box.x, box.y) for box in graph.boxes}
    assert places["a"][0] < places["b"][0] == places["c"][0] < places["d"][0]
    assert places["b"][1] != places["c"][1]
    assert len(graph.lines) == 4
    assert all(x1 < x2 for x1, _, x2, _ in graph.lines)
    assert layout([]).boxes == []


async def test_workspaces_and_projects(admin: Pages) -> None:
    page = await admin.open("/workspaces")
    page = await admin.send(page, "workspace.create", name="vision")
    assert page.said == "There is a workspace vision now."
    page = await admin.open("/workspaces/2")
    page = await admin.send(page, "project.create", name="cats", key="CATS", description="which")
    assert "cats" in page.text and "CATS" in page.text
    page = await admin.open("/projects/2")
    page = await admin.send(page, "project.note", name="plan", contents="<b>more</b> data")
    assert "<b>more</b> data" in page.text
    page = await admin.send(await admin.open("/workspaces/2"), "workspace.archive")
    assert page.said == "The workspace is archived."
    again = await admin.send(await admin.open("/workspaces"), "workspace.create", name="Vision")
    assert "there is a workspace 'Vision' already" in again.said


async def test_users_groups_and_tokens(admin: Pages, pages: Pages) -> None:
    page = await admin.send(
        await admin.open("/admin"), "user.create", username="ann", password="of-ann-1", admin=""
    )
    assert page.said == "There is a user ann now."
    assert not (await pages.open("/admin")).has('form[action$="/actions/user.create"]')
    page = await admin.send(await admin.open("/admin/groups"), "group.create", name="readers")
    assert "readers" in page.text
    page = await admin.open("/admin/tokens")
    csrf = str(page.soup.select("input[name=csrf]")[0]["value"])
    made = await admin.post(
        "/admin/tokens", {"csrf": csrf, "description": "for a script", "days": "3"}
    )
    assert made.text.count("access.") == 1
    again = await admin.open("/admin/tokens")
    assert "access." not in again.text and "for a script" in again.text
    page = await admin.send(again, "token.revoke")
    assert "revoked" in page.text
    refused = await admin.post("/admin/tokens", {"csrf": "", "description": "x"})
    assert refused.status == 403


@pytest.mark.parametrize("path", ["/admin", "/admin/groups", "/admin/roles", "/admin/tokens"])
async def test_every_page_of_people_opens_for_everybody(pages: Pages, path: str) -> None:
    assert (await pages.open(path)).status == 200


async def test_settings_show_the_defaults(pages: Pages, user: httpx.AsyncClient) -> None:
    assert "There are none" in (await pages.open("/settings")).text
    config = {"labels": ["<b>mine</b>"], "max_restarts": 1}
    (await user.put("/api/v1/users/defaults", json={"config": config})).raise_for_status()
    shown = (await pages.open("/settings")).one("section[aria-labelledby=h-defaults] pre")
    assert shown.get_text() == "labels:\n- <b>mine</b>\nmax_restarts: 1\n"


async def test_the_theme_stays(pages: Pages, service_app: FastAPI) -> None:
    page = await pages.open("/settings")
    csrf = str(page.soup.select("input[name=csrf]")[0]["value"])
    page = await pages.post("/settings/theme", {"csrf": csrf, "theme": "dark"})
    assert page.soup.html is not None
    assert page.soup.html["data-theme"] == "dark"
    assert (await pages.open("/")).soup.html["data-theme"] == "dark"  # type: ignore[index]
    page = await pages.post("/settings/theme", {"csrf": csrf, "theme": ""})
    assert not (await pages.open("/")).soup.html.has_attr("data-theme")  # type: ignore[union-attr]
