"""Trials side by side."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from determined_registry.database.tables import users
from determined_service.front import side_by_side
from tests.integration.front.conftest import Page, Pages
from tests.integration.front.test_visits import HOSTILE
from tests.integration.roles import give, put_mode, workspace
from tests.integration.service_api.world import World, report


async def trial(world: World, experiment: int, loss: float, **hparams: Any) -> int:
    leg = await world.start(experiment, *await world.trial(experiment, hparams=hparams))
    await leg.store(
        report(1, "validation", loss=9.0, acc=0.5), report(5, "validation", loss=loss, acc=0.6)
    )
    return leg.trial_id


def shown(page: Page) -> list[int]:
    return [
        int(str(one["href"]).rpartition("/")[2]) for one in page.soup.select("table thead th a")
    ]


def row(page: Page, title: str) -> list[str]:
    for one in page.soup.select("table tr"):
        head = one.find("th")
        if head is not None and head.get_text() == title:
            return [cell.get_text().strip() for cell in one.select("td")]
    raise AssertionError(f"no row {title!r} in {page.text}")


async def test_what_differs_and_what_was_reported(pages: Pages, world: World) -> None:
    first, second = await world.experiment("a"), await world.experiment("b")
    one = await trial(world, first, 1.0, lr=0.1, net={"width": 64}, same=3)
    two = await trial(world, second, 2.0, lr=0.2, net={"width": 64}, same=3)
    page = await pages.open(f"/compare?trial={two}&trial={one}&trial={two}")
    assert shown(page) == [two, one]
    assert row(page, "lr") == ["0.2", "0.1"]
    assert "net.width" not in page.text and "2 not shown: the same in all these trials" in page.text
    assert row(page, "least") == ["2", "1"] and row(page, "greatest") == ["9", "9"]
    assert page.soup.select("td.extreme")[0].get_text() == "1"
    assert f"/det/experiments/{second}/configuration?against={first}" in page.links()
    assert page.one("figure")["data-chart"] == f"/det/curves/trials?id={two}&id={one}"
    assert page.one("#metric option[selected]")["value"] == "validation.loss"
    curves = await pages.json(f"/curves/trials?id={two}&id={one}&metric=validation.loss")
    assert [(curve["trial"], curve["y"]) for curve in curves["curves"]] == [
        (two, [9.0, 2.0]),
        (one, [9.0, 1.0]),
    ]
    everything = await pages.open(f"/compare?trial={two}&trial={one}&same=true")
    assert row(everything, "net.width") == ["64", "64"]
    at = await pages.open(f"/compare?trial={one}&trial={two}&step=3&metric=validation.acc")
    assert row(at, "validation.acc at step 3") == ["0.5", "0.5"]
    default = await pages.open(f"/compare?trial={one}&trial={two}&step=5")
    assert row(default, "validation.loss at step 5") == ["1", "2"]


async def test_trials_are_added_and_taken_away(pages: Pages, world: World) -> None:
    own = await world.experiment("resnet")
    ids = [await trial(world, own, loss, lr=loss) for loss in (3.0, 1.0, 2.0)]
    other = await world.experiment("bert")
    far = await trial(world, other, 0.5, lr=1)
    best_first = [ids[1], ids[2], ids[0]]
    page = await pages.open(f"/compare?experiment={own}")
    assert shown(page) == best_first
    page = await pages.open(f"/compare?experiment={own}&add={far}")
    assert shown(page) == [far, *best_first]
    fields = [
        (str(one["name"]), str(one["value"]))
        for one in page.soup.select("#compared input[type=hidden]")
    ]
    page = await pages.open("/compare", params=[*fields, ("without", str(ids[1]))])
    assert shown(page) == [far, ids[2], ids[0]]
    page = await pages.open("/compare", params=[*fields, ("without", str(far))])
    assert shown(page) == best_first
    page = await pages.open(f"/compare?trial={far}&add=e{own}")
    assert shown(page) == [far, *best_first]
    page = await pages.open(f"/compare?experiment={own}&add=e{other}")
    assert shown(page) == [*best_first, far], "what was there stays"
    page = await pages.open(f"/compare?experiment={own}&best=&step=&metric=")
    assert shown(page) == best_first, "fields of a form may be left empty"
    page = await pages.open(f"/compare?experiment={own}&experiment={other}")
    assert shown(page) == [ids[1], far]
    assert f"Of experiment {own}, the best 1 of 3 trials are shown." in page.text
    page = await pages.open(f"/compare?experiment={own}&best=2")
    assert shown(page) == best_first[:2] and "the best 2 of 3 trials" in page.text
    found = await pages.open("/compare?add=res lr<5")
    assert [one["value"] for one in found.soup.select("button[name=experiment]")] == [str(own)]
    assert "No experiment matches" in (await pages.open("/compare?add=nothing")).text
    assert "there is no field foo" in (await pages.open("/compare?add=foo:x")).text


async def test_nothing_is_left_out_in_silence(pages: Pages, world: World, monkeypatch: Any) -> None:
    own = await world.experiment("a")
    ids = [await trial(world, own, loss, lr=loss) for loss in (3.0, 1.0, 2.0)]
    monkeypatch.setattr(side_by_side, "MOST_CURVES", 2)
    chosen = "&".join(f"trial={one}" for one in ids)
    page = await pages.open(f"/compare?{chosen}")
    assert shown(page) == ids[:2] and "3 trials are chosen, and the first 2 are shown" in page.text
    page = await pages.open("/compare?trial=2147483647")
    assert "There is no trial 2147483647" in page.text and "No trial is chosen" in page.text
    many = "&".join(f"experiment={number}" for number in range(1, 52))
    assert "at most 50 are allowed" in (await pages.open(f"/compare?{many}")).text
    assert (await pages.open("/compare?experiment=99")).status == 404


async def test_hostile_texts_are_texts(pages: Pages, world: World) -> None:
    own = await world.experiment(HOSTILE)
    leg = await world.start(own, *await world.trial(own, hparams={HOSTILE: {HOSTILE: HOSTILE}}))
    await leg.store(report(1, "validation", **{"loss": 1.0, HOSTILE: 2.0}))
    page = await pages.open(f"/compare?trial={leg.trial_id}&same=true&add=%3Cscript%3Ealert")
    assert page.status == 200 and shown(page) == [leg.trial_id]
    for mark in ("<script>alert", "\u202e", "\x1b", "\u2028"):
        assert mark not in page.answer.text


async def test_a_limited_reader_sees_nothing_of_others(stranger: Pages, world: World) -> None:
    secret = "zebra-of-another"
    own = await world.experiment(secret, labels=[secret])
    hidden = await trial(world, own, 1.0, **{secret: secret})
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
    for path in (
        "/experiments",
        "/experiments?q=zebra",
        f"/experiments?q={secret}<5",
        f"/experiments?sort=hp.{secret}&column=hp.{secret}",
        f"/compare?trial={hidden}",
        f"/compare?experiment={own}",
        "/compare?add=zebra",
        f"/curves/trials?id={hidden}&metric=validation.loss",
    ):
        page = await stranger.open(path)
        told = page.soup.get_text() if "curves" in path else page.text
        # What the reader typed is in fields and links, and nothing else of it is.
        assert "zebra" not in told.replace(f"hp.{secret}", ""), path
        assert not page.has("#list tbody"), path
    page = await stranger.open("/compare")
    csrf = str(page.soup.select("input[name=csrf]")[0]["value"])
    fields = {"csrf": csrf, "to": "/det/experiments", "id": own, "do": "kill"}
    page = await stranger.post("/actions/experiments.chosen", fields)
    assert f"Experiment {own}: not found: experiment {own} does not exist" in page.said
