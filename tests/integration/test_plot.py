"""The plot of an experiment: drawn from the tables, opened by its link, seen in a browser."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import sqlalchemy as sa
from fastapi import FastAPI

from determined_registry.database.tables import searches
from determined_service.base.settings import Settings
from determined_service.plots import links
from determined_service.plots.model import PlottedOutcome
from determined_service.plots.queries import NoSuchExperiment, read_search
from tests.integration.browser import open_browser
from tests.integration.prefect_server import Prefect
from tests.integration.service_api.world import Leg, World, report
from tests.local_cluster import LocalCluster
from tests.waiting import TIMEOUT_S, until

HALVING = {
    "name": "async_halving",
    "metric": "loss",
    "max_length": {"batches": 16},
    "num_rungs": 3,
    "divisor": 4,
    "max_trials": 4,
}


@pytest.fixture
async def world(service_app: FastAPI) -> AsyncIterator[World]:
    found = World(service_app)
    yield found
    for client in found.clients:
        await client.aclose()


async def halving(world: World, **trial: Any) -> Leg:
    """A running trial of a search with the rungs 1, 4, 16."""
    config = {
        "searcher": HALVING,
        "hyperparameters": {"lr": {"type": "double", "minval": 0, "maxval": 1}},
        "reproducibility": {"experiment_seed": 1},
    }
    experiment = await world.experiment(config=config)
    return await world.start(experiment, *await world.trial(experiment, **trial))


async def test_values_read_for_a_page(world: World, database_url: str) -> None:
    leg = await halving(world, op_length=16, op_index=3, op_complete=False)
    other = await world.start(
        leg.experiment_id,
        *await world.trial(
            leg.experiment_id, state="COMPLETED", op_length=4, op_index=2, op_complete=True
        ),
    )
    await world.trial(leg.experiment_id, state="PAUSED")
    await leg.store(
        report(1, "validation", loss=0.5),
        report(2, "validation", accuracy=1.0),
        report(4, "validation", loss="NaN"),
        report(8, "validation", loss=0.25),
    )
    await other.store(report(4, "validation", loss=0.75))
    async with world.db.tx() as conn:
        table = [[leg.request_id, 0], [other.request_id, 0]]
        snapshot = {"method_state": {"brackets": {"trial_table": table}}}
        await conn.execute(sa.update(searches).values(snapshot=snapshot))
    search = read_search(database_url, leg.experiment_id, "http://prefect")
    assert search.ladders == [(1, 4, 16)]
    first, second, third = search.trials
    assert (first.outcome, first.metric, first.best_steps) == (PlottedOutcome.RUNNING, 0.25, 8)
    assert (first.validations, first.not_finite, first.bracket, first.target) == (3, 1, 0, 16)
    assert (second.outcome, second.reached) == (PlottedOutcome.STOPPED, 4)
    assert (third.outcome, third.metric, third.bracket) == (PlottedOutcome.WAITING, None, None)
    curves = {
        trial: [(point.x, point.y) for point in points] for trial, points in search.curves.items()
    }
    assert curves == {first.id: [(1, 0.5), (4, None), (8, 0.25)], second.id: [(4, 0.75)]}
    assert [(one.trial_id, one.metric) for one in search.improvements()] == [
        (first.id, 0.5),
        (first.id, 0.25),
    ]
    with pytest.raises(NoSuchExperiment):
        read_search(database_url, leg.experiment_id + 1)


async def test_long_curves_are_thinned_evenly(
    world: World, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("determined_service.plots.queries.POINTS_PER_CURVE", (2, 11))
    leg = await halving(world)
    losses = [1.0] * 300
    losses[123] = 0.5
    await leg.store(
        *(report(100 + step, "validation", loss=loss) for step, loss in enumerate(losses))
    )
    search = read_search(database_url, leg.experiment_id)
    (points,) = search.curves.values()
    steps = [point.x for point in points]
    even = [100 + 299 * place // 10 for place in range(11)]
    assert sorted({*steps} ^ {*even}) == [223]
    assert min(point.y for point in points if point.y is not None) == 0.5
    assert search.is_thinned()


async def test_the_reports_form_is_drawn_over_its_time(world: World, database_url: str) -> None:
    searcher = {
        "name": "async_halving", "metric": "loss", "max_time": 9, "time_metric": "epochs",
        "num_rungs": 2, "divisor": 3, "max_trials": 4,
    }  # fmt: skip
    config = {"searcher": searcher, "reproducibility": {"experiment_seed": 1}}
    experiment = await world.experiment(config=config)
    leg = await world.start(experiment, *await world.trial(experiment, stop_requested=True))
    await leg.store(
        report(100, "validation", loss=0.5, epochs=1), report(300, "validation", loss=0.4, epochs=3)
    )
    search = read_search(database_url, experiment)
    assert search.ladders == [(3, 9)]
    (trial,) = search.trials
    assert trial.reached == 3
    assert [point.x for point in search.curves[trial.id]] == [1, 3]


async def test_access_to_the_page(
    world: World,
    settings: Settings,
    service_app: FastAPI,
    user: httpx.AsyncClient,
    anonymous: httpx.AsyncClient,
) -> None:
    leg = await halving(world)
    await leg.store(report(1, "validation", loss=0.5))
    path = f"/api/v1/experiments/{leg.experiment_id}/plot"
    assert (await anonymous.get(path)).status_code == 401
    assert (await user.get("/api/v1/experiments/999/plot")).status_code == 404
    page = await user.get(path)
    assert page.status_code == 200
    assert page.headers["content-type"].startswith("text/html")
    assert "<h2>Learning curves</h2>" in page.text
    # The cluster's id is known once the service has started.
    link = links.link(service_app.state.settings, leg.experiment_id)
    opened = await anonymous.get(httpx.URL(link).path)
    assert opened.status_code == 200
    assert "<h2>Learning curves</h2>" in opened.text
    token = user.headers["Authorization"].removeprefix("Bearer ")
    for secret in (
        token,
        settings.agent_token.get_secret_value(),
        leg.client.headers["Authorization"],
    ):
        assert secret not in opened.text
    other = link.replace(f"/{leg.experiment_id}/", f"/{leg.experiment_id + 1}/")
    for wrong in (other, f"{link}x", link[:-1]):
        assert (await anonymous.get(httpx.URL(wrong).path)).status_code == 403
    assert (await anonymous.post(httpx.URL(link).path)).status_code == 405


async def test_the_numbers_of_its_figures(world: World, user: httpx.AsyncClient) -> None:
    leg = await halving(world)
    for index in range(12):
        trial = {"hparams": {"lr": index / 12}, "searcher_metric_value": (index - 6) ** 2}
        await world.trial(leg.experiment_id, **trial)
    answer = await user.get(f"/api/v1/experiments/{leg.experiment_id}/analysis")
    found = answer.json()
    assert [one["name"] for one in found["importance"]] == ["lr"]
    assert found["importance"][0]["share"] == pytest.approx(1)
    (table,) = found["rungs"]
    assert [rung["length"] for rung in table["rungs"]] == [1, 4, 16]
    assert found["unit"] == "batches"
    assert (await user.get("/api/v1/experiments/999/analysis")).status_code == 404


SCRIPT = """
import determined as det

info = det.get_cluster_info()
rate = info.trial.hparams["model"]["rate"]
with det.core.init() as core_context:
    for op in core_context.searcher.operations():
        loss = abs(rate - 0.3) + 1 / op.length
        core_context.train.report_validation_metrics(op.length, {"loss <b>x</b>": loss})
        with core_context.checkpoint.store_path({"steps_completed": op.length}) as (path, _):
            (path / "state").write_text(str(op.length))
        op.report_completed(loss)
"""

CONFIG = """
name: plotted <img src=x onerror=alert(1)>
entrypoint: python3 script.py
hyperparameters:
  model:
    rate: {type: double, minval: 0.0, maxval: 1.0}
    kind: {type: categorical, vals: [a, "<script>alert(1)</script>"]}
searcher:
  name: async_halving
  metric: loss <b>x</b>
  max_length: {batches: 4}
  num_rungs: 2
  divisor: 2
  max_trials: 10
  max_concurrent_trials: 2
max_restarts: 0
"""

DRAWN = "return document.documentElement.dataset.drawn"
FIGURES = """
return [...document.querySelectorAll(".figure")].map(
  (figure) => [figure.id, figure.classList.contains("js-plotly-plot"),
               figure.querySelectorAll(".main-svg").length]);
"""


def test_the_page_in_a_browser(
    cluster: LocalCluster, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    experiment = cluster.submit(tmp_path, CONFIG, script_py=SCRIPT)
    assert cluster.wait(experiment) == "COMPLETED"
    trials = cluster.trials(experiment)
    file = tmp_path / "plot.html"
    done = cluster.det("experiment", "plot", str(experiment), "-o", str(file))
    assert done.stdout.strip() == str(file)
    with open_browser(tmp_path_factory.mktemp("chromium"), log=True) as browser:
        look_at(browser, file.as_uri(), len(trials))
        # The same page from Prefect's side, in a browser that is logged in nowhere.
        prefect = Prefect(cluster)
        run = cluster.describe(experiment)["flowRunId"]
        look_at(browser, plot_link(prefect, experiment, run), len(trials))
        browser.save_screenshot(str(tmp_path / "plot.png"))


def look_at(browser: Any, address: str, trials: int) -> None:
    """Every figure is drawn, without complaints, and no user's text becomes markup."""
    browser.get(address)
    until("every figure", lambda: browser.execute_script(DRAWN), equals="yes")
    figures = browser.execute_script(FIGURES)
    assert [name for name, _, _ in figures] == [
        f"figure-{key}" for key in ("curves", "best", "parallel", "importance", "rungs")
    ]
    assert all(plotly and svgs >= 1 for _, plotly, svgs in figures), figures
    severe = [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]
    assert severe == []
    text = browser.find_element("tag name", "body").text
    assert "plotted <img src=x onerror=alert(1)>" in text
    assert "loss <b>x</b>" in text
    assert browser.execute_script("return document.images.length") == 0
    ended = browser.execute_script(
        "return document.getElementById('figure-curves').data"
        ".filter((trace) => trace.mode == 'markers' && trace.name != 'went on')"
        ".reduce((sum, trace) => sum + trace.x.length, 0)"
    )
    assert ended == trials


def plot_link(prefect: Prefect, experiment: int, run: str) -> str:
    """The link in the run's artifact."""
    wanted = {"artifacts": {"flow_run_id": {"any_": [run]}}}
    found = until("the artifact", lambda: prefect.call("/artifacts/filter", wanted))
    (artifact,) = [one for one in found if one["key"] == f"determined-experiment-{experiment}"]
    assert artifact["type"] == "markdown"
    link = re.search(r"\[learning curves[^]]*\]\((http://\S+)\)", artifact["data"])
    assert link is not None, artifact["data"]
    return link.group(1)


def test_a_run_started_from_prefect_has_its_link_too(cluster: LocalCluster, tmp_path: Path) -> None:
    """There the run is first, and submits the experiment itself."""
    (tmp_path / "script.py").write_text(SCRIPT)
    prefect = Prefect(cluster)
    deployment = prefect.deployment("experiment/experiment")
    parameters = {
        "config": CONFIG.replace("max_trials: 10", "max_trials: 1"),
        "model_dir": str(tmp_path),
    }
    run = prefect.call(
        f"/deployments/{deployment['id']}/create_flow_run", {"parameters": parameters}
    )
    ended = prefect.wait(run["id"])
    assert ended["state_type"] == "COMPLETED", ended["state"]["message"]
    newest_first = sorted(
        (row["id"] for row in cluster.json("experiment", "list", "--all")), reverse=True
    )
    experiment = next(
        one for one in newest_first if cluster.describe(one)["flowRunId"] == run["id"]
    )
    named = f"{cluster.describe(experiment)['name']} #{experiment}"
    path = f"/flow_runs/{run['id']}"
    until("the run named", lambda: prefect.call(path)["name"], equals=named)
    assert f"experiment-{experiment}" in prefect.call(path)["tags"]
    page = httpx.get(plot_link(prefect, experiment, run["id"]), timeout=TIMEOUT_S, trust_env=False)
    assert page.status_code == 200
    assert "<h2>Learning curves</h2>" in page.text
