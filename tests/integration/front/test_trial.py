"""One trial's pages."""

from __future__ import annotations

import datetime
import io
import uuid
import zipfile
from typing import Any

import pytest
import sqlalchemy as sa
from fastapi import FastAPI

from determined.common import printable
from determined_registry.database.tables import allocation_resources, allocations, legs, trials
from determined_service.base.settings import Settings
from tests.integration.front.conftest import Pages
from tests.integration.roles import put_mode
from tests.integration.service_api import test_downloads as stored
from tests.integration.service_api.world import Leg, World, report

HOSTILE = "<script>alert(1)</script>\u202e\x1b[31m\"'&\u2028"
SHOWN = printable.one_line(HOSTILE)


async def _set(world: World, leg: Leg, **values: Any) -> None:
    async with world.db.tx() as conn:
        await conn.execute(sa.update(trials).where(trials.c.id == leg.trial_id).values(**values))


async def test_it_shows_what_it_reported(pages: Pages, world: World) -> None:
    leg = await world.leg(name="digits")
    await _set(world, leg, hparams={"optimizer": {"lr": 0.25}, "layers": [1, 2]})
    await leg.store(*(report(step, loss=2 / step, epoch=step / 2) for step in range(1, 5)))
    await leg.store(report(4, "validation", loss=0.5, **{HOSTILE: 1.0}))
    page = await pages.open(f"/trials/{leg.trial_id}")
    assert "Trial" in page.one("h1").get_text()
    assert "optimizer.lr" in page.text and "0.25" in page.text
    names = [one["value"] for one in page.soup.select("#metric option")]
    assert {"training.loss", "training.epoch", "validation.loss"} <= set(names)
    assert page.one("#metric option[selected]")["value"] == "validation.loss", (
        "the searcher's metric"
    )
    assert [one["value"] for one in page.soup.select("#x option")] == ["steps", "time", "epoch"]
    assert SHOWN in page.text and "<script>alert" not in page.answer.text
    assert page.one("body")["data-live"] == f"trial:{leg.trial_id}"
    kept = await pages.open(
        f"/trials/{leg.trial_id}?metric=training.loss&x=time&scale=log&smooth=0.5&low=1&high=3"
    )
    chosen = [
        one["value"] for one in kept.soup.select("#metric option[selected], #x option[selected]")
    ]
    assert chosen == ["training.loss", "time"]
    assert kept.one("#smooth")["value"] == "0.5"
    figure = kept.one("figure.chart")
    assert (figure["data-low"], figure["data-high"]) == ("1", "3")


async def test_curves_by_what_counts(pages: Pages, world: World) -> None:
    leg = await world.leg()
    await leg.store(*(report(step, loss=1 / step, epoch=(5 - step) / 2) for step in range(1, 5)))

    async def curve(**given: Any) -> dict[str, Any]:
        params = {"id": leg.trial_id, "metric": "training.loss", **given}
        found = await pages.json("/curves/trials", params=params)
        (only,) = found["curves"]
        return dict(only)

    assert (await curve())["x"] == [1, 2, 3, 4]
    by_epoch = await curve(x="epoch")
    assert (by_epoch["x"], by_epoch["steps"]) == ([0.5, 1.0, 1.5, 2.0], [4, 3, 2, 1])
    by_time = await curve(x="time")
    assert (by_time["steps"], by_time["x"]) == ([1, 2, 3, 4], sorted(by_time["x"]))
    assert (await curve(low=2, high=3))["x"] == [2, 3]
    assert (await curve(x="nothing"))["x"] == []


async def test_a_spike_is_drawn(pages: Pages, world: World) -> None:
    leg = await world.leg()
    await leg.store(*(report(step, loss=99.0 if step == 777 else 1.0) for step in range(1, 1501)))
    found = await pages.json(
        "/curves/trials", params={"id": leg.trial_id, "metric": "training.loss"}
    )
    (curve,) = found["curves"]
    assert len(curve["x"]) <= 300
    assert dict(zip(curve["x"], curve["y"], strict=True))[777] == 99.0


async def test_the_profiler_has_a_curve_for_each_device(pages: Pages, world: World) -> None:
    leg = await world.leg()
    values = {"agent-1": {"GPU-a": {"gpu_util": 10.0}, "GPU-b": {"gpu_util": 20.0}}}
    await leg.store(report(0, "gpu", **values), report(0, "gpu", **values))
    await leg.store(report(0, "cpu", **{"agent-1": {"cpu_util_simple": 5.0}}))
    page = await pages.open(f"/trials/{leg.trial_id}/profiler")
    titles = [one.get_text() for one in page.soup.select("h2")]
    assert titles == ["cpu: cpu_util_simple", "gpu: gpu_util"]
    found = await pages.json(
        f"/curves/trials/{leg.trial_id}/profiler", params={"group": "gpu", "leaf": "gpu_util"}
    )
    curves = [(one["label"], one["y"]) for one in found["curves"]]
    assert curves == [("agent-1 GPU-a", [10.0, 10.0]), ("agent-1 GPU-b", [20.0, 20.0])]
    nothing = await world.leg()
    empty = await pages.open(f"/trials/{nothing.trial_id}/profiler")
    assert "profiling: {enabled: true}" in empty.text


async def test_legs_have_their_reasons_and_nodes(pages: Pages, world: World) -> None:
    leg = await world.leg()
    began = datetime.datetime.now(datetime.UTC) - datetime.timedelta(hours=2)
    async with world.db.tx() as conn:
        await conn.execute(
            sa.update(legs).values(
                state="ERROR", start_time=began, end_time=began + datetime.timedelta(hours=1),
                reason=HOSTILE,
            )
        )  # fmt: skip
        await conn.execute(sa.update(allocations).values(nodes=2, exit_code=7, state="TERMINATED"))
        await conn.execute(
            sa.insert(allocation_resources),
            [
                {
                    "id": f"node-{node}", "allocation_id": leg.allocation_id, "node": node,
                    "agent_id": f"agent-{node}", "slot_ids": [node], "state": "TERMINATED",
                    "exit_code": 7 * node,
                }
                for node in range(2)
            ],
        )  # fmt: skip
    await world.start(leg.experiment_id, leg.trial_id, leg.request_id, run_id=2)
    page = await pages.open(f"/trials/{leg.trial_id}")
    rows = [one.get_text(" ", strip=True) for one in page.soup.select("#legs tbody tr")]
    assert [one.split()[0] for one in rows] == ["2", "1", "terminated", "terminated"]
    assert SHOWN in rows[1] and " 7 " in rows[1]
    assert "node 1: agent-1" in rows[3]
    drawn = page.soup.select("svg.legs rect")
    assert [one["class"] for one in drawn] == [["ERROR"], ["RUNNING"]]
    assert 480 < float(str(drawn[0]["width"])) < 520, "half of the time until now"


async def test_it_says_why_it_does_not_train(pages: Pages, world: World) -> None:
    experiment = await world.experiment()
    trial, _ = await world.trial(experiment)
    page = await pages.open(f"/trials/{trial}")
    assert "its searcher has not told it to go on" in page.one("#facts .remark").get_text()
    assert "It has not run yet" in page.text
    paused = await world.experiment(state="PAUSED", reason="the night is for others")
    trial, _ = await world.trial(paused, state="PAUSED")
    page = await pages.open(f"/trials/{trial}")
    assert "the night is for others" in page.one("#facts .remark").get_text()
    running = await world.leg()
    page = await pages.open(f"/trials/{running.trial_id}")
    assert not page.has("#facts .remark")


async def test_who_may_kills_it(pages: Pages, world: World) -> None:
    leg = await world.leg()
    page = await pages.open(f"/trials/{leg.trial_id}")
    assert "The search of experiment" in page.text, "the form says what it will do"
    page = await pages.send(page, "trial.kill")
    assert f"Trial {leg.trial_id} is killed" in page.said
    (state,) = await world.rows(sa.select(trials.c.state).where(trials.c.id == leg.trial_id))
    assert state[0] == "STOPPING_KILLED"
    await _set(world, leg, state="CANCELED", end_time=sa.func.now())
    page = await pages.open(f"/trials/{leg.trial_id}")
    assert not page.has('form[action$="/actions/trial.kill"]')
    assert page.one("body")["data-live"] == "", "nothing of it changes any more"


async def test_stacks_are_asked_for(pages: Pages, world: World) -> None:
    leg = await world.leg()
    page = await pages.open(f"/trials/{leg.trial_id}")
    form = page.one('form[action$="/stacks"]')
    fields = {str(one["name"]): str(one.get("value", "")) for one in form.select("input")}
    page = await pages.post(f"/trials/{leg.trial_id}/stacks", fields)
    assert page.status == 409 and "which opens no doors" in page.text
    await _set(world, leg, state="CANCELED", end_time=sa.func.now())
    page = await pages.open(f"/trials/{leg.trial_id}")
    assert not page.has('form[action$="/stacks"]')


async def _with_checkpoint(world: World, settings: Settings) -> tuple[Leg, str]:
    section = {"type": "shared_fs", "host_path": str(settings.data_dir / "checkpoints")}
    leg = await world.leg(config={"searcher": stored.SEARCHER, "checkpoint_storage": section})
    files = {**stored.FILES, "page.html": b"<script>alert(1)</script>"}
    return leg, await stored.report(leg, section, files)


async def test_checkpoints_give_their_files(pages: Pages, world: World, settings: Settings) -> None:
    leg, name = await _with_checkpoint(world, settings)
    page = await pages.open(f"/trials/{leg.trial_id}/checkpoints")
    files = {one.get_text(): str(one["href"]) for one in page.soup.select("#checkpoints td a")}
    assert set(files) == {*stored.FILES, "page.html"}
    for path, data in {**stored.FILES, "page.html": b"<script>alert(1)</script>"}.items():
        answer = await pages.client.get(files[path])
        assert (answer.status_code, answer.content) == (200, data), path
        headers = answer.headers
        assert headers["content-disposition"].startswith("attachment; filename=")
        assert "sandbox" in headers["content-security-policy"]
        assert headers["content-type"] == "application/octet-stream"
    part = await pages.client.get(files["notes ü.txt"], headers={"Range": "bytes=1-2"})
    assert (part.status_code, part.content) == (206, b"el")
    whole = await pages.client.get(f"/det/checkpoints/{name}/download?form=zip")
    with zipfile.ZipFile(io.BytesIO(whole.content)) as archive:
        assert archive.read("notes ü.txt") == b"hello"
    missing = await pages.open(f"/checkpoints/{name}/files/none")
    assert (missing.status, missing.one("h1").get_text()) == (404, "There is nothing here")
    unknown = await pages.open(f"/checkpoints/{uuid.uuid4()}/download")
    assert unknown.status == 404 and "does not exist" in unknown.text


async def test_a_checkpoint_becomes_a_version(
    pages: Pages, world: World, settings: Settings
) -> None:
    leg, _ = await _with_checkpoint(world, settings)
    for version in (1, 2):
        page = await pages.open(f"/trials/{leg.trial_id}/checkpoints")
        form = page.one('form[action$="/register"]')
        fields = {str(one["name"]): str(one.get("value", "")) for one in form.select("input")}
        page = await pages.post(f"/trials/{leg.trial_id}/register", {**fields, "model": "m ü"})
        assert page.said == f"The checkpoint is version {version} of model m ü."
    assert page.one("datalist option")["value"] == "m ü"
    refused = await pages.post(
        f"/trials/{leg.trial_id}/register", {**fields, "model": "m ü", "uuid": str(uuid.uuid4())}
    )
    assert "does not exist" in refused.said
    stolen = await pages.post(f"/trials/{leg.trial_id}/register", {**fields, "csrf": "0" * 40})
    assert stolen.status == 403


async def test_a_tensorboard_is_opened_on_it(pages: Pages, world: World) -> None:
    leg = await world.leg()
    page = await pages.open(f"/trials/{leg.trial_id}")
    form = page.one('form[action$="/tensorboard"]')
    fields = {str(one["name"]): str(one.get("value", "")) for one in form.select("input")}
    answer = await pages.client.post(
        f"/det/trials/{leg.trial_id}/tensorboard", data=fields, follow_redirects=False
    )
    assert answer.headers["location"].startswith(("/det/tasks/", f"/det/trials/{leg.trial_id}"))


async def test_a_limited_visitor_sees_nothing_of_others(
    pages: Pages, admin: Pages, world: World, settings: Settings, service_app: FastAPI
) -> None:
    leg, name = await _with_checkpoint(world, settings)
    await put_mode(service_app)
    trial = f"/trials/{leg.trial_id}"
    paths = [
        trial,
        f"{trial}/checkpoints",
        f"{trial}/profiler",
        f"{trial}/logs",
        f"{trial}/logs/download",
        f"{trial}/logs/lines/1",
        f"/experiments/{leg.experiment_id}/logs",
        f"/tasks/{leg.task_id}/logs",
        f"/tasks/{leg.task_id}/logs/download",
        f"/tasks/{leg.task_id}/logs/lines/1",
        f"/checkpoints/{name}/download",
        f"/checkpoints/{name}/files/page.html",
        f"/curves/trials/{leg.trial_id}/profiler?group=gpu&leaf=gpu_util",
    ]
    for path in paths:
        mine = await pages.open(path)
        assert mine.status == 404 or (mine.status == 200 and '"curves":[]' in mine.answer.text), (
            path
        )
        theirs = await admin.open(path)
        assert theirs.status == 200 or path.endswith("/lines/1"), path
    found = await pages.json(
        "/curves/trials", params={"id": leg.trial_id, "metric": "training.loss"}
    )
    assert found["curves"] == []
    for form in ("kill", "register", "tensorboard"):
        address = "/actions/trial.kill" if form == "kill" else f"{trial}/{form}"
        csrf = str((await pages.open("/")).soup.select("input[name=csrf]")[0]["value"])
        fields = {"csrf": csrf, "id": leg.trial_id, "uuid": name, "model": "x", "to": "/det/"}
        said = (await pages.post(address, fields)).said
        assert "killed" not in said and "version 1" not in said and "shows" not in said, said


@pytest.mark.parametrize("path", ["/trials/99", "/trials/x", "/trials/99/logs", "/tasks/none/logs"])
async def test_what_is_not_there_is_a_page(pages: Pages, path: str) -> None:
    page = await pages.open(path)
    assert page.status in (400, 404)
    assert page.has("[role=alert]")


async def test_hostile_hyperparameters_stay_text(pages: Pages, world: World) -> None:
    leg = await world.leg(name=HOSTILE)
    await _set(world, leg, hparams={HOSTILE: {HOSTILE: HOSTILE}}, reason=HOSTILE)
    await leg.store(report(1, HOSTILE, **{HOSTILE: 1.0, "text": HOSTILE}))
    for path in ("", "/checkpoints", "/profiler", "/logs"):
        page = await pages.open(f"/trials/{leg.trial_id}{path}")
        assert page.status == 200
        assert "<script>alert" not in page.answer.text, path
        for mark in ("\u202e", "\x1b", "\u2028"):
            assert mark not in page.answer.text, path
