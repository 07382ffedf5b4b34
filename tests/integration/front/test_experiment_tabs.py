"""The tabs of an experiment: configuration, code, analysis, checkpoints, and what is about it."""

from __future__ import annotations

import base64
from typing import Any

import httpx
import pytest
import sqlalchemy as sa
from fastapi import FastAPI

from determined_registry.database.tables import experiments, projects
from determined_service.front import experiment_code, markdown
from determined_service.front.diffs import MOST_LINES, diff
from determined_service.front.parallel import parallel
from tests.integration.front.conftest import Pages
from tests.integration.front.test_visits import HOSTILE
from tests.integration.roles import give, put_mode, workspace
from tests.integration.service_api.test_checkpoints import store
from tests.integration.service_api.world import World, report

CONFIG = """\
# A comment.
name: mine
entrypoint: python3 train.py
searcher: {name: random, metric: loss, max_trials: 4, max_length: 10}
hyperparameters:
  lr: {type: log, base: 10, minval: -4, maxval: -1}
"""
TABS = ("", "/trials", "/analysis", "/checkpoints", "/code", "/configuration", "/about")


def files(**texts: str | bytes) -> list[dict[str, Any]]:
    """A model definition; two underscores in a name are a slash, and one is a dot."""
    return [
        {
            "path": name.replace("__", "/").replace("_", "."),
            "type": 48,
            "content": base64.b64encode(text.encode() if isinstance(text, str) else text).decode(),
        }
        for name, text in texts.items()
    ]


async def submit(user: httpx.AsyncClient, config: str = CONFIG, code: Any = (), **more: Any) -> int:
    """A paused experiment."""
    body = {"config": config, "modelDefinition": list(code), "activate": False, **more}
    answer = await user.post("/api/v1/experiments", json=body)
    assert answer.status_code == 200, answer.text
    return int(answer.json()["experiment"]["id"])


async def test_the_configuration_and_its_difference(pages: Pages, user: httpx.AsyncClient) -> None:
    one = await submit(user)
    two = await submit(user, CONFIG.replace("max_trials: 4", "max_trials: 5"))
    page = await pages.open(f"/experiments/{two}/configuration")
    assert "# A comment." in page.text
    assert not page.has(".diff")
    row = page.soup.find("code") or page.soup.find("td", string="searcher.max_trials")
    assert row is not None
    sources = {
        str(row.select("td")[0].get_text()): str(row.select("td")[2].get_text())
        for row in page.soup.select("details tbody tr")
    }
    assert sources["searcher.max_trials"] == "the configuration"
    assert "default" in sources["max_restarts"]
    page = await pages.open(f"/experiments/{two}/configuration?against={one}")
    assert [line.get_text() for line in page.soup.select(".diff .add")][-1] == "+  max_trials: 5"
    assert [line.get_text() for line in page.soup.select(".diff .del")][-1] == "-  max_trials: 4"
    page = await pages.open(f"/experiments/{two}/configuration?against={two}")
    assert "are the same" in page.text
    assert (await pages.open(f"/experiments/{two}/configuration?against=999")).status == 404


async def test_long_texts_are_not_compared() -> None:
    found = await diff("a\n" * (MOST_LINES + 1), "b\n", ("x", "y"))
    assert found.too_long
    assert not (await diff("a\n" * (MOST_LINES + 1), "a\n" * (MOST_LINES + 1), ("x", "y"))).too_long


async def test_the_code_and_its_difference(
    pages: Pages, user: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = files(train_py="a = 1\nb = 2\n", lib__util_py="x\n", gone_py="", w_bin=b"\0\1")
    new = files(train_py=f"a = 1\nb = 3\n# {HOSTILE}", lib__util_py="x\n", w_bin=b"\0\2")
    one, two = await submit(user, code=old), await submit(user, code=new)
    page = await pages.open(f"/experiments/{two}/code")
    assert [row.get_text() for row in page.soup.select(".tree bdi")] == [
        "lib", "util.py", "train.py", "w.bin",
    ]  # fmt: skip
    page = await pages.open(f"/experiments/{two}/code?path=train.py")
    assert [row.get_text() for row in page.soup.select(".code tr td:last-child")][:2] == [
        "a = 1",
        "b = 3",
    ]
    assert "<script>alert" not in page.answer.text
    assert "\\u202e" in page.answer.text
    page = await pages.open(f"/experiments/{two}/code?path=w.bin")
    assert "not a text" in page.text
    assert (await pages.open(f"/experiments/{two}/code?path=../etc/passwd")).status == 404
    page = await pages.open(f"/experiments/{two}/code?against={one}")
    section = page.one('section[aria-labelledby="h-changes"]')
    assert [one.get_text() for one in section.select("h3 bdi")] == ["gone.py", "train.py", "w.bin"]
    assert "is only in experiment" in section.get_text()
    assert "+b = 3" in section.get_text()
    monkeypatch.setattr(experiment_code, "COMPARED_BYTES", 5)
    page = await pages.open(f"/experiments/{two}/code?against={one}")
    assert "too large to be compared as a whole" in page.text
    page = await pages.open(f"/experiments/{two}/code?against={one}&path=train.py")
    assert "+b = 3" in page.text
    page = await pages.open(f"/experiments/{two}/code?against={one}&path=lib/util.py")
    assert "is the same in both" in page.text
    monkeypatch.setattr(experiment_code, "FILE_BYTES", 3)
    assert "more than" in (await pages.open(f"/experiments/{two}/code?path=train.py")).text


async def test_an_experiment_without_code_says_so(pages: Pages, user: httpx.AsyncClient) -> None:
    page = await pages.open(f"/experiments/{await submit(user)}/code")
    assert "was submitted without code" in page.text


async def test_parallel_coordinates(pages: Pages, world: World) -> None:
    config = {
        "searcher": {"name": "random", "metric": "loss", "smaller_is_better": False},
        "hyperparameters": {"lr": {"type": "log"}},
    }
    experiment = await world.experiment(config=config)
    page = await pages.open(f"/experiments/{experiment}/analysis")
    assert "at least two trials" in page.text
    ids = []
    for index in range(12):
        hparams = {"lr": 10.0 ** -(index % 4), HOSTILE: HOSTILE if index else "b", "same": 1}
        trial_id, _ = await world.trial(
            experiment, hparams=hparams, searcher_metric_value=float(index)
        )
        ids.append(trial_id)
    await world.trial(experiment)
    page = await pages.open(f"/experiments/{experiment}/analysis")
    assert len(page.soup.select("svg.parallel polyline")) == 12
    best = page.soup.select("svg.parallel a:has(polyline.best)")
    assert [str(one["href"]) for one in best] == [f"/det/trials/{ids[-1]}"]
    assert "12 of 13 trials" in page.text
    assert "lr (log)" in page.text
    assert "same=1" in page.text
    assert "<script>alert" not in page.answer.text
    assert page.one("#figures").has_attr("data-figures")
    page = await pages.open(f"/experiments/{experiment}/analysis?figures=true")
    assert page.has("#figures progress[aria-label=share]")


def test_a_value_that_a_trial_lacks_has_a_place_of_its_own() -> None:
    trials = [
        {"id": 1, "searcherMetricValue": 1.0, "hparams": {"a": 1, "b": 2}},
        {"id": 2, "searcherMetricValue": 2.0, "hparams": {"a": 2}},
        {"id": 3, "searcherMetricValue": "NaN", "hparams": {"a": 2}},
    ]
    found = parallel(trials, None, "loss")
    assert [line.trial_id for line in found.lines] == [2, 1]
    lacking = next(axis for axis in found.axes if axis.name == "b")
    assert lacking.ticks[-1].text == "(none)"
    assert lacking.ticks[-1].y == found.bottom > lacking.ticks[0].y


async def test_checkpoints_are_listed_and_deleted(pages: Pages, world: World) -> None:
    leg = await world.leg()
    empty = await pages.open(f"/experiments/{leg.experiment_id}/checkpoints")
    assert "No checkpoint is stored yet" in empty.text
    names = {}
    for step in (1, 2):
        await leg.store(report(step, "validation", loss=1 / step))
        names[step] = await store(leg, step)
    page = await pages.open(f"/experiments/{leg.experiment_id}/checkpoints")
    rows = page.soup.select("tbody tr")
    assert [names[2][:8] in rows[0].get_text(), "best" in rows[0].get_text()] == [True, True]
    assert "1.0 kB" in rows[0].get_text()
    form = next(
        form
        for form in page.soup.select('form[action$="/checkpoint.delete"]')
        if names[1] in str(form)
    )
    fields = {str(one["name"]): str(one["value"]) for one in form.select("input")}
    page = await pages.post("/actions/checkpoint.delete", fields)
    assert "are being deleted" in page.said


async def test_notes_are_markdown_without_html(pages: Pages, world: World) -> None:
    notes = (
        "# Result\n\n**good** [link](https://example.org) ![i](https://evil.example/x.png)\n\n"
        "[bad](javascript:alert(1)) <img src=x onerror=alert(1)>\n\n|a|b|\n|-|:-:|\n|1|2|\n"
    )
    experiment = await world.experiment(notes=notes)
    page = await pages.open(f"/experiments/{experiment}/about")
    prose = page.one(".prose")
    assert prose.find("h3").get_text() == "Result"  # type: ignore[union-attr]
    assert prose.find("strong").get_text() == "good"  # type: ignore[union-attr]
    assert {str(one["href"]) for one in prose.select("a")} == {
        "https://example.org",
        "https://evil.example/x.png",
    }
    assert all("noopener" in one["rel"] for one in prose.select("a"))
    assert not prose.select("img, script, [style], [onerror]")
    assert prose.select("table")


async def test_long_notes_stay_as_they_were_written() -> None:
    text = "*<b>*\n" * markdown.MOST_CHARACTERS
    found = await markdown.html(text)
    assert found.startswith('<pre tabindex="0">*&lt;b&gt;*\n*')
    assert "<em>" in await markdown.html(text[:100])


async def test_it_is_described_labelled_moved_and_deleted(pages: Pages, world: World) -> None:
    experiment = await world.experiment(state="COMPLETED")
    async with world.db.tx() as conn:
        project = await conn.scalar(
            sa.insert(projects).values(name="second", workspace_id=1).returning(projects.c.id)
        )
    path = f"/experiments/{experiment}/about"
    page = await pages.open(path)
    page = await pages.send(page, "experiment.describe", name="new name", description="words")
    assert "new name" in page.text
    page = await pages.send(page, "experiment.label", label="a/b &c")
    assert [one.get_text() for one in page.soup.select("section .label")] == ["a/b &c"]
    page = await pages.send(page, "experiment.unlabel")
    assert not page.has("section .label")
    page = await pages.send(await pages.open(f"{path}?edit=true"), "experiment.note", notes="*hm*")
    assert page.one(".prose em").get_text() == "hm"
    page = await pages.send(page, "experiment.move", project=str(project))
    assert "second" in page.one('section[aria-labelledby="h-move"]').get_text()
    page = await pages.send(page, "experiment.delete")
    assert page.path == "/det/experiments"
    assert "is being deleted" in page.said


async def test_a_tensorboard_is_opened(pages: Pages, user: httpx.AsyncClient) -> None:
    experiment = await submit(user)
    page = await pages.open(f"/experiments/{experiment}/about")
    csrf = str(page.soup.select("input[name=csrf]")[0]["value"])
    refused = await pages.post(f"/experiments/{experiment}/tensorboard", {"csrf": "x"})
    assert refused.status == 403
    page = await pages.post(f"/experiments/{experiment}/tensorboard", {"csrf": csrf})
    assert page.path.startswith("/det/tasks/")


async def test_texts_of_users_stay_texts_on_every_tab(
    pages: Pages, world: World, user: httpx.AsyncClient
) -> None:
    made = await submit(user, code=files(train_py=HOSTILE))
    async with world.db.tx() as conn:
        values = {"name": HOSTILE, "notes": HOSTILE, "labels": [HOSTILE], "description": HOSTILE}
        await conn.execute(sa.update(experiments).where(experiments.c.id == made).values(**values))
    for _ in range(2):
        await world.trial(made, hparams={HOSTILE: HOSTILE}, searcher_metric_value=1.0)
    for tab in (*TABS, "/fork"):
        page = await pages.open(f"/experiments/{made}{tab}")
        assert page.status == 200, tab
        assert "<script>alert" not in page.answer.text, tab
        for mark in ("\u202e", "\x1b", "\u2028"):
            assert mark not in page.answer.text, tab


async def test_who_may_not_change_it_sees_no_forms_for_that(pages: Pages, world: World) -> None:
    leg = await world.leg(owner_id=1, notes="admin's")
    await store(leg, 1)
    base = f"/experiments/{leg.experiment_id}"
    for tab in TABS:
        page = await pages.open(f"{base}{tab}")
        assert page.status == 200
        assert not page.has('form[action*="/actions/"]'), tab
        assert f"/det{base}/continue" not in page.links()
    csrf = str((await pages.open("/")).soup.select("input[name=csrf]")[0]["value"])
    page = await pages.post(
        "/actions/experiment.note",
        {"csrf": csrf, "id": str(leg.experiment_id), "to": f"/det{base}/about", "notes": "x"},
    )
    assert "only its owner" in page.said
    assert "admin's" in page.one(".prose").get_text()


async def test_others_see_nothing_of_it(
    pages: Pages, service_app: FastAPI, user: httpx.AsyncClient
) -> None:
    made = await submit(user, code=files(train_py="secret"))
    await put_mode(service_app)
    await give(service_app, "determined", "Editor", await workspace(service_app, "elsewhere"))
    for tab in (*TABS, "/fork", "/continue", "/code?path=train.py"):
        assert (await pages.open(f"/experiments/{made}{tab}")).status == 404, tab
