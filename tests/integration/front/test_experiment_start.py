"""New experiments: from an example, by a fork, and continued ones."""

from __future__ import annotations

from typing import Any

import httpx
import sqlalchemy as sa
from fastapi import FastAPI

from determined_registry.database.tables import experiments
from determined_service.front.experiment_start import Problem, problems_of
from tests.integration.front.conftest import Page, Pages
from tests.integration.front.test_experiment_tabs import CONFIG, files, submit
from tests.integration.roles import give, put_mode, workspace
from tests.integration.service_api.world import World


def fields(page: Page, **changed: str) -> dict[str, str]:
    """What the form of the page holds."""
    form = page.one("form[data-editor]")
    found = {
        str(one["name"]): str(one.get("value", "") if one.name == "input" else one.get_text())
        for one in form.select("input[name]:not([type=checkbox]), textarea[name]")
    }
    for one in form.select("select"):
        chosen = one.select_one("option[selected]") or one.select_one("option")
        found[str(one["name"])] = "" if chosen is None else str(chosen["value"])
    return found | changed


async def test_an_example_is_checked_and_submitted(pages: Pages, user: httpx.AsyncClient) -> None:
    page = await pages.open("/experiments/new")
    assert "Press Check" in page.text
    offered = [str(one["value"]) for one in page.soup.select("#origin-choice option")]
    assert {"core/const.yaml", "core/random.yaml", "pytorch/adaptive.yaml"} <= set(offered)
    sent = fields(page)
    assert "hyperparameters" in sent["config"]
    checked = await pages.post("/experiments/new", {**sent, "do": "check"})
    assert "no mistakes" in checked.one("#checked").get_text()
    assert "At a time" in checked.text
    assert "default: 0 of" in checked.text
    assert "the cluster configuration" in checked.text
    assert (await user.get("/api/v1/experiments")).json()["experiments"] == []
    page = await pages.post("/experiments/new", {**sent, "do": "submit", "paused": "true"})
    made = int(page.path.rpartition("/")[2])
    assert f"Experiment {made} is made, and paused" in page.said
    tree = (await user.get(f"/api/v1/experiments/{made}/file_tree")).json()["files"]
    assert "train.py" in {one["path"] for one in tree}
    again = await pages.post("/experiments/new", {**sent, "do": "submit", "paused": "true"})
    assert again.path == page.path, "a form that is sent twice makes one experiment"
    sent["config"] += "max_restarts: 3\n" if "max_restarts" not in sent["config"] else "\n#\n"
    changed = await pages.post("/experiments/new", {**sent, "do": "submit", "paused": "true"})
    assert changed.path != page.path, "who goes back and changes it wants another one"


async def test_mistakes_have_lines_and_the_text_stays(pages: Pages) -> None:
    sent = fields(await pages.open("/experiments/new?origin=none"))
    wrong = "name: x\r\nentrypoint: a\r\nsearcher:\r\n  name: randm\r\n  metric: loss\r\n# <b>\r\n"
    for do in ("check", "submit"):
        page = await pages.post("/experiments/new", {**sent, "config": wrong, "do": do})
        assert page.status == (200 if do == "check" else 400)
        assert page.one("textarea").get_text().strip() == wrong.replace("\r\n", "\n").strip()
        assert "4" in {one["data-line"] for one in page.soup.select("#checked [data-line]")}
        assert "did you mean 'random'?" in page.text
    page = await pages.post("/experiments/new", {**sent, "config": "a: [1\nb: 2", "do": "check"})
    assert page.one("#checked [data-line]")["data-line"] == "2"


def test_refusals_are_taken_apart() -> None:
    text = (
        "<config>:4: searcher.name: found 'a: b'\n<config>: storage: is missing\n"
        "template t: labels: wrong\nthe pool has gone: ask"
    )
    assert problems_of(text) == [
        Problem("found 'a: b'", "searcher.name", 4),
        Problem("is missing", "storage"),
        Problem("wrong", "labels", None, "template t"),
        Problem("the pool has gone: ask"),
    ]


async def test_a_template_is_beneath(pages: Pages, user: httpx.AsyncClient) -> None:
    await user.post("/api/v1/templates/t", json={"config": {"description": "words"}})
    page = await pages.open("/experiments/new?template=t")
    sent = fields(page)
    assert sent["template"] == "t"
    page = await pages.post("/experiments/new", {**sent, "do": "check"})
    assert "template t" in page.one("#checked details").get_text()


async def test_a_fork_has_the_code_of_its_parent(pages: Pages, user: httpx.AsyncClient) -> None:
    parent = await submit(user, code=files(train_py="x"))
    page = await pages.open(f"/experiments/{parent}/fork")
    sent = fields(page)
    assert sent["config"].strip() == CONFIG.strip(), "as it was written, with its comments"
    changed = sent["config"].replace("max_trials: 4", "max_trials: 9")
    page = await pages.post(
        "/experiments/new", {**sent, "config": changed, "paused": "true", "do": "submit"}
    )
    made = int(page.path.rpartition("/")[2])
    found = (await user.get(f"/api/v1/experiments/{made}")).json()["experiment"]
    assert (found["forkedFrom"], found["config"]["searcher"]["max_trials"]) == (parent, 9)
    content = await user.post(f"/api/v1/experiments/{made}/file", json={"path": "train.py"})
    assert content.status_code == 200
    page = await pages.open(f"/experiments/{parent}/about")
    assert f"/det/experiments/{made}" in page.links()


async def test_forms_need_their_session(pages: Pages, user: httpx.AsyncClient) -> None:
    made = await submit(user)
    for path in ("/experiments/new", f"/experiments/{made}/continue"):
        page = await pages.post(path, {"config": CONFIG, "key": "k", "do": "submit"})
        assert page.status == 403


async def test_continue(pages: Pages, world: World, user: httpx.AsyncClient) -> None:
    single = CONFIG.replace("name: random", "name: single").replace("max_trials: 4, ", "")
    made = await submit(user, single)
    page = await pages.open(f"/experiments/{made}/continue")
    csrf = str(page.one("main form[action$='/continue'] input[name=csrf]")["value"])
    sent: dict[str, Any] = {"csrf": csrf, "changes": "searcher: {max_length: 20}"}
    page = await pages.post(f"/experiments/{made}/continue", sent)
    assert page.status == 409
    assert "only an experiment that has ended can be continued" in page.text
    assert "max_length: 20" in page.one("textarea").get_text()
    async with world.db.tx() as conn:
        await conn.execute(
            sa.update(experiments).where(experiments.c.id == made).values(state="CANCELED")
        )
    assert f"/det/experiments/{made}/continue" in (await pages.open(f"/experiments/{made}")).links()
    page = await pages.post(f"/experiments/{made}/continue", {**sent, "changes": "searchr: 1"})
    assert (page.status, "did you mean" in page.text) == (400, True)
    page = await pages.post(f"/experiments/{made}/continue", sent)
    assert f"Experiment {made} goes on." in page.said


async def test_who_may_make_none_is_told_so(
    pages: Pages, service_app: FastAPI, user: httpx.AsyncClient
) -> None:
    await put_mode(service_app)
    await give(service_app, "determined", "Viewer", await workspace(service_app, "elsewhere"))
    page = await pages.open("/experiments/new")
    if page.status == 200:
        page = await pages.post("/experiments/new", {**fields(page), "do": "check"})
    assert page.status == 403
