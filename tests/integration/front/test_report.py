"""Reports: an experiment, or trials side by side, as one file."""

from __future__ import annotations

import json
import re
from typing import Any

import httpx
import pytest
import sqlalchemy as sa
from bs4 import BeautifulSoup

from determined_registry.database.tables import users
from determined_service.front import side_by_side
from tests.integration.front.conftest import Page, Pages
from tests.integration.front.test_compare import trial
from tests.integration.front.test_visits import HOSTILE
from tests.integration.roles import give, put_mode, workspace
from tests.integration.service_api.world import World, report

SEARCHER = {"name": "single", "metric": "loss"}


async def ask(client: httpx.AsyncClient, **given: Any) -> BeautifulSoup:
    answer = await client.get("/api/v1/report", params=given)
    assert answer.status_code == 200, answer.text
    return BeautifulSoup(answer.text, "html.parser")


def words(found: Any) -> str:
    return " ".join(found.get_text(" ").split())


def charts(found: BeautifulSoup) -> list[dict[str, Any]]:
    return [json.loads(str(one["data-points"])) for one in found.select("figure[data-points]")]


def rows(found: BeautifulSoup, section: str) -> list[list[str]]:
    table = found.select_one(f"section[aria-labelledby={section}] table")
    assert table is not None
    return [[words(cell) for cell in row.select("th, td")] for row in table.select("tbody tr")]


async def test_an_experiment_with_its_trials(user: httpx.AsyncClient, world: World) -> None:
    own = await world.experiment("digits", notes="It *works*.", labels=["vision"])
    one = await trial(world, own, 1.0, lr=0.1, same=3)
    two = await trial(world, own, 0.5, lr=0.2, same=3)
    answer = await user.get("/api/v1/report", params={"experimentIds": own})
    assert f'filename="report_{own}.html"' in answer.headers["content-disposition"]
    found = BeautifulSoup(answer.text, "html.parser")
    text = words(found.body)
    for said in ("digits", "vision", "It works .", "det experiment download-model-def"):
        assert said in text
    assert found.select_one(".prose em") is not None
    # The best first; what is the same is not a column.
    table = rows(found, "h-trials")
    assert [row[0] for row in table] == [str(two), str(one)]
    assert "0.2" in table[0] and "3" not in table[0]
    assert "1 hyperparameter is not shown" in text
    by_metric = {chart["metric"]: chart["curves"] for chart in charts(found)}
    assert by_metric["validation.loss"] == [
        {"trial": two, "x": [1, 5], "y": [9.0, 0.5]},
        {"trial": one, "x": [1, 5], "y": [9.0, 1.0]},
    ]
    assert "searcher:" in words(found.select_one("section[aria-labelledby=h-config] pre"))


async def test_a_comparison_shows_what_differs(user: httpx.AsyncClient, world: World) -> None:
    first, second = [
        await world.experiment(name, config={"name": name, "searcher": SEARCHER, "same": {"a": 1}})
        for name in ("first-one", "second-one")
    ]
    one = await trial(world, first, 1.0, lr=0.1)
    await trial(world, first, 3.0, lr=0.3)
    other = await trial(world, second, 2.0, lr=0.2)
    found = await ask(user, experimentIds=[first, second])
    assert [row[:2] for row in rows(found, "h-trials")] == [
        [str(one), str(first)],
        [str(other), str(second)],
    ]
    assert [row[1] for row in rows(found, "h-experiments")] == ["first-one", "second-one"]
    assert rows(found, "h-config") == [["name", "first-one", "second-one"]]
    assert f"Of experiment {first}, the best 1 of 2 trials are shown." in words(found.body)
    assert f"det experiment report {first} {second} " in words(found.body)
    two_each = await ask(user, experimentIds=[first, second], best=2)
    assert len(rows(two_each, "h-trials")) == 3
    named = await ask(user, trialIds=[other, one])
    assert [row[0] for row in rows(named, "h-trials")] == [str(other), str(one)]
    assert f"det experiment report --trials {other},{one}" in words(named.body)


async def test_an_experiment_without_trials_has_a_report(
    user: httpx.AsyncClient, world: World
) -> None:
    found = await ask(user, experimentIds=await world.experiment("empty"))
    assert not found.select("script") and found.select_one("h1") is not None


async def test_what_cannot_be_shown_is_refused(
    user: httpx.AsyncClient, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = await world.experiment()
    ids = [await trial(world, own, loss) for loss in (3.0, 1.0)]
    for given, status, said in (
        ({}, 400, "nothing is named"),
        ({"experimentIds": own, "best": 201}, 400, "best: expected a whole number from 0 to 200"),
        ({"experimentIds": own + 1}, 404, f"not found: experiment {own + 1} does not exist"),
        ({"trialIds": [ids[0], 999]}, 404, "not found: trial 999 does not exist"),
        ({"experimentIds": list(range(1, 52))}, 400, "at most 50 are allowed"),
    ):
        answer = await user.get("/api/v1/report", params=given)
        assert (answer.status_code, said in answer.text) == (status, True), answer.text
    monkeypatch.setattr(side_by_side, "MOST_CURVES", 1)
    found = await ask(user, trialIds=ids)
    assert len(rows(found, "h-trials")) == 1
    assert "2 trials are chosen, and the first 1 are shown" in words(found.body)


async def test_the_file_holds_no_secret_even_for_its_owner(
    user: httpx.AsyncClient, world: World
) -> None:
    secret = "hunter2-of-the-bucket"
    own = await world.experiment(
        config={
            "searcher": SEARCHER,
            "environment": {"environment_variables": {"cpu": [f"PASSWORD={secret}"]}},
        }
    )
    shown = await user.get(f"/api/v1/experiments/{own}")
    assert secret in shown.text, "its owner sees it"
    assert secret not in (await user.get("/api/v1/report", params={"experimentIds": own})).text


async def test_hostile_texts_are_texts(user: httpx.AsyncClient, world: World) -> None:
    own = await world.experiment(HOSTILE, notes=HOSTILE, description=HOSTILE, labels=[HOSTILE])
    leg = await world.start(own, *await world.trial(own, hparams={HOSTILE: HOSTILE}))
    await leg.store(report(1, "validation", **{"loss": 1.0, HOSTILE: 2.0}))
    second = await world.start(own, *await world.trial(own, hparams={HOSTILE: "x"}))
    await second.store(report(1, "validation", loss=2.0))
    for given in ({"experimentIds": own}, {"trialIds": [leg.trial_id, second.trial_id]}):
        answer = await user.get("/api/v1/report", params=given)
        assert answer.status_code == 200
        for mark in ("<script>alert", "\u202e", "\x1b", "\u2028"):
            assert mark not in answer.text
        scripts = BeautifulSoup(answer.text, "html.parser").select("script")
        assert len(scripts) == 2, "the chart library and its use"
        policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', answer.text)
        assert policy is not None and "unsafe" not in policy[1]


async def test_the_pages_download_it(pages: Pages, stranger: Pages, world: World) -> None:
    own = await world.experiment("digits")
    one, two = [await trial(world, own, loss, lr=loss) for loss in (2.0, 1.0)]
    for page, said in (
        (await pages.open(f"/experiments/{own}"), f"report_{own}.html"),
        (await pages.open(f"/compare?experiment={own}"), "report.html"),
    ):
        address = str(page.one("a[download]")["href"])
        found = await pages.open(address.removeprefix("/det"))
        assert f'attachment; filename="{said}"' == found.answer.headers["content-disposition"]
        assert [row[0] for row in rows(found.soup, "h-trials")] == [str(two), str(one)]
    refused: Page = await pages.open("/report?experiment=99")
    assert refused.status == 404 and "experiment 99 does not exist" in refused.text
    # Another's things.
    async with world.db.tx() as conn:
        same = sa.select(users.c.password_hash).where(users.c.username == "determined")
        await conn.execute(
            sa.insert(users).values(
                username="limited", password_hash=same.scalar_subquery(), active=True
            )
        )
    place = await workspace(world.app, "own")
    await give(world.app, "limited", "Editor", place)
    await put_mode(world.app)
    await stranger.log_in("limited")
    for address, lacks in (
        (f"/report?experiment={own}", f"experiment {own}"),
        (f"/report?trial={one}", f"trial {one}"),
    ):
        refused = await stranger.open(address)
        assert refused.status == 404 and f"{lacks} does not exist" in refused.text
