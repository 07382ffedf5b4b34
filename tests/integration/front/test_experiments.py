"""The list of experiments: queries, columns, order, and actions on chosen rows."""

from __future__ import annotations

import sqlalchemy as sa

from determined_registry.database.tables import experiments
from tests.integration.front.conftest import Page, Pages
from tests.integration.front.test_visits import HOSTILE
from tests.integration.service_api.world import World, report


def names(page: Page) -> list[str]:
    return [one.get_text() for one in page.soup.select("#list tbody a bdi")]


async def send(pages: Pages, page: Page, **fields: object) -> Page:
    csrf = str(page.soup.select("input[name=csrf]")[0]["value"])
    return await pages.post(
        "/actions/experiments.chosen", {"csrf": csrf, "to": page.path, **fields}
    )


async def test_a_query_a_choice_of_columns_and_an_order(pages: Pages, world: World) -> None:
    for name, lr, loss in (("one", 0.1, 3.0), ("two", 0.001, 2.0), ("three", 0.2, 1.0)):
        leg = await world.start(
            own := await world.experiment(name, labels=["vision"]),
            *await world.trial(own, hparams={"lr": lr}),
        )
        await leg.store(report(1, "validation", loss=loss, acc=loss / 4))
    page = await pages.open("/experiments?q=vision -two&sort=best&order=asc&column=best&more=lr")
    assert names(page) == ["three", "one"]
    heads = [one.get_text(strip=True) for one in page.soup.select("#list thead th")]
    assert heads == ["", "ID", "Name", "Best▲", "hp.lr"]
    assert page.soup.select("#list tbody tr td")[4].get_text() == "0.2"
    assert "det experiment list --query 'vision -two'" in page.soup.get_text()
    for link in page.links():
        if "sort=hp.lr" in link:
            sorted_by = await pages.open(link.removeprefix("/det"))
    assert names(sorted_by) == ["three", "one"] and "column=hp.lr" in sorted_by.path
    offered = {str(one["value"]) for one in page.soup.select("input[name=column]")}
    assert {"hp.lr", "validation.acc", "owner"} <= offered
    half = await pages.open('/experiments?q="vis')
    assert "the quotation mark has no second one" in half.one("#problem").get_text()
    assert "No experiment matches" in (await pages.open("/experiments?q=lr<0")).text
    many = "+".join(f"hp.x{number}" for number in range(13))
    assert "13 hyperparameters" in (await pages.open(f"/experiments?more={many}")).text


async def test_an_action_on_chosen_experiments_says_what_was_refused(
    pages: Pages, world: World
) -> None:
    done = await world.experiment("done", state="COMPLETED")
    active = await world.experiment("active")
    page = await pages.open("/experiments?q=o")
    page = await send(pages, page, id=[done, active], do="archive")
    assert page.said.startswith("1 of 2 chosen experiments: archived.")
    assert f"Experiment {active}: " in page.said and "q=o" in page.path
    assert names(await pages.open("/experiments")) == ["active"]
    assert "Nothing was changed" in (await send(pages, page, id=active, do="archive")).said
    assert "No experiment is chosen" in (await send(pages, page, do="pause")).said
    assert "not known" in (await send(pages, page, id=active, do="x")).said
    assert "at most 200" in (await send(pages, page, id=list(range(1, 300)), do="kill")).said


async def test_labels_moves_deletions_and_comparison(pages: Pages, world: World) -> None:
    first, second = [await world.experiment(name, state="COMPLETED", labels=["a"]) for name in "xy"]
    page = await pages.open("/experiments")
    page = await send(pages, page, id=[first, second], do="label", label="new one")
    assert page.said == "2 of 2 chosen experiments: labeled."
    page = await send(pages, page, id=[first], do="unlabel", label="a")
    rows = await world.rows(sa.select(experiments.c.labels).order_by(experiments.c.id))
    assert [row.labels for row in rows] == [["new one"], ["a", "new one"]]
    assert "the label is empty" in (await send(pages, page, id=first, do="label")).said
    moving = await send(pages, page, id=[first, second], do="move")
    assert f"Experiments {first}, {second} go to another project" in moving.text
    assert moving.one("select option").get_text() == "Uncategorized / Uncategorized"
    assert "moved" in (await pages.send(moving, "experiments.chosen", project="1")).said
    assert "does not exist" in (await send(pages, page, id=first, do="move", project=999)).said
    page = await send(pages, page, id=[first, second], do="compare")
    assert page.path == f"/det/compare?experiment={first}&experiment={second}"
    page = await send(pages, await pages.open("/experiments"), id=first, do="delete")
    assert "1 of 1 chosen experiments: being deleted" in page.said
    (row,) = await world.rows(sa.select(experiments.c.state).where(experiments.c.id == first))
    assert row.state == "DELETING"


async def test_an_action_needs_the_pages_own_form(pages: Pages, world: World) -> None:
    one = await world.experiment("one")
    answer = await pages.post("/actions/experiments.chosen", {"id": one, "do": "kill", "csrf": "x"})
    assert answer.status == 403
    (row,) = await world.rows(sa.select(experiments.c.state).where(experiments.c.id == one))
    assert row.state == "ACTIVE"


async def test_hostile_names_labels_and_columns_are_texts(pages: Pages, world: World) -> None:
    own = await world.experiment(HOSTILE, labels=[HOSTILE])
    leg = await world.start(own, *await world.trial(own, hparams={HOSTILE: HOSTILE}))
    await leg.store(report(1, "validation", **{"loss": 1.0, HOSTILE: 2.0}))
    page = await pages.open(
        "/experiments", params={"q": HOSTILE, "column": [f"hp.{HOSTILE}", f"validation.{HOSTILE}"]}
    )
    assert page.status == 200
    for mark in ("<script>alert", "\u202e", "\x1b", "\u2028"):
        assert mark not in page.answer.text
