"""Pages show nobody what is another's: each page is asked for by two users with a workspace each."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import Any

import pytest
from fastapi import FastAPI

from determined_service import front
from determined_service.access.sessions import open_pages
from determined_service.base import hosts
from determined_service.base.pages import FRONT_HOME
from tests.integration.front.conftest import Pages
from tests.integration.roles import put_mode, take
from tests.integration.service_api.test_scope import Mine, fill
from tests.integration.service_api.world import World
from tests.waiting import until_async

WORDS = ("zqalphaqz", "zqbetaqz")
WITHOUT_LOGIN = {"/login", "/assets/{digest}/{name}", "/enter"}
STREAMS = {"/events"}
QUERIES: dict[str, dict[str, Any]] = {
    "/find": {"q": "zq"},
    "/experiments": {"q": "zq"},
    "/curves/trials": {"id": "{trial_id}", "metric": "validation.loss"},
    "/cluster": {"agent": "agent-1"},
    "/compare": {"trial": "{trial_id}"},
    "/report": {"experiment": "{experiment_id}", "trial": "{trial_id}"},
    "/curves/trials/{trial_id}/profiler": {"group": "cpu", "leaf": "cpu"},
}
"""Parameters of pages that show nothing without them."""


def addresses() -> list[str]:
    """The path of each page, below the pages' home."""
    found = {
        route.path.removeprefix(FRONT_HOME)
        for router in front.routers()
        for route in router.routes
        if "GET" in (getattr(route, "methods", None) or ()) and route.path.startswith(FRONT_HOME)
    }
    return sorted(found - WITHOUT_LOGIN - STREAMS - {""})


def filled(text: str, mine: Mine) -> str:
    """``text`` with ids of ``mine`` in the places of its names."""
    values = {
        **mine.path,
        "name": mine.word,
        "task_id": mine.tasks["commands"],
        "path": f"{mine.word}.pt",
        "file_path": f"{mine.word}.pt",
        "line_id": 1,
    }
    return re.sub(r"\{(\w+)(?::\w+)?\}", lambda found: str(values[found[1]]), text)


async def visitor(app: FastAPI, user_id: int) -> Pages:
    """A browser in which that user is logged in."""
    found = Pages(app)
    async with app.state.db.tx() as conn:
        token = await open_pages(conn, user_id, 10, label=hosts.FRONT)
    found.client.cookies.set("determined-front", token, domain="det.localhost")
    return found


@pytest.fixture
async def two(
    service_app: FastAPI, world: World
) -> AsyncIterator[tuple[tuple[Mine, Pages], tuple[Mine, Pages]]]:
    """Two users, each with the same things in a workspace of its own, in a cluster with roles."""
    things = [await fill(world, word) for word in WORDS]
    await put_mode(service_app)
    one, other = [(mine, await visitor(service_app, mine.user_id)) for mine in things]
    async with one[1].client, other[1].client:
        yield one, other


async def ask(pages: Pages, address: str, named: Mine) -> tuple[int, str]:
    query = {name: filled(value, named) for name, value in QUERIES.get(address, {}).items()}
    answer = await pages.client.get(FRONT_HOME + filled(address, named), params=query)
    assert answer.status_code < 500, (address, answer.text)
    return answer.status_code, answer.text


async def test_no_page_shows_the_others_things(
    two: tuple[tuple[Mine, Pages], tuple[Mine, Pages]],
) -> None:
    shown = set()
    for (mine, pages), (other, _) in (two, two[::-1]):
        for address in addresses():
            status, text = await ask(pages, address, mine)
            assert not [mark for mark in other.marks if mark in text], address
            if status == 200 and mine.word in text:
                shown.add(address)
            if not re.search(r"\{", address):
                continue
            status, text = await ask(pages, address, other)
            # A refusal, and the page's own address, say again what was asked for.
            for value in (*map(str, other.path.values()), other.word, *other.tasks.values()):
                if status >= 400 and len(value) >= 8:
                    text = text.replace(value, "")
            assert not [mark for mark in other.marks if mark in text], (address, status)
            # Points of curves are those of trials that the visitor sees: none.
            if not address.startswith("/curves") and {
                "experiment_id",
                "trial_id",
                "pipeline_id",
                "workspace_id",
                "project_id",
            } & set(re.findall(r"\{(\w+)", address)):
                assert status in (302, 404), (address, status)
    # The words are where they are looked for.
    for address in ("/", "/experiments", "/experiments/{experiment_id}", "/models/{name}", "/find"):
        assert address in shown, sorted(shown)
    assert len(shown) >= 12, sorted(shown)


async def test_a_role_that_is_taken_closes_the_page(
    service_app: FastAPI, two: tuple[tuple[Mine, Pages], tuple[Mine, Pages]]
) -> None:
    mine, pages = two[0]
    assert (await pages.open(f"/experiments/{mine.experiment_id}")).status == 200
    await take(service_app, f"user-{mine.word[::-1]}")

    async def is_gone() -> bool:
        return (await pages.open(f"/experiments/{mine.experiment_id}")).status == 404

    await until_async("the page is closed", is_gone)


async def test_no_stream_tells_of_the_others_things(
    two: tuple[tuple[Mine, Pages], tuple[Mine, Pages]],
) -> None:
    (_, pages), (other, _) = two
    for topic in (
        f"experiment:{other.experiment_id}",
        f"trial:{other.trial_id}",
        f"task:{other.tasks['commands']}",
        f"logs:{other.trial_task}",
        f"pipeline:{other.pipeline_id}",
    ):
        answer = await pages.client.get("/det/events", params={"topic": topic})
        assert answer.status_code == 404, topic
