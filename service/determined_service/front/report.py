"""A report: an experiment, or trials side by side, as one HTML file that asks no host for anything.

It is made for ``GET /api/v1/report`` from what REST answers in the asker's name, by the parts of the pages.
The file's own policy allows the scripts and styles that are in it, by their hashes, and nothing else.
"""

from __future__ import annotations

import asyncio
import base64
import datetime
import hashlib
from collections.abc import Sequence
from typing import Annotated, Any

import orjson
from fastapi import Query, Request
from fastapi.responses import HTMLResponse
from markupsafe import Markup
from starlette.responses import Response

from determined.expconf import masked_for_others
from determined_service.access.dependencies import ExperimentReader
from determined_service.base.aside import aside
from determined_service.base.bounds import Id, ManyIds
from determined_service.base.checks import check_int
from determined_service.base.errors import BadRequest, NotFound
from determined_service.base.pages import FRONT_HOME, of_service
from determined_service.front import markdown
from determined_service.front.assets import assets
from determined_service.front.curves import MOST_CURVES, curves_of
from determined_service.front.experiment_configuration import as_yaml
from determined_service.front.passage import Passage
from determined_service.front.rendering import PageRouter, render
from determined_service.front.side_by_side import (
    MOST_EXPERIMENTS,
    choice_of,
    chosen,
    differing,
    first_metric,
    flat,
    metric_rows,
    metrics_of,
    read_trials,
)
from determined_service.front.visits import Visit, Visitor, visit
from determined_service.web.router import Router

rest = Router("Experiments", "/api/v1")
router = PageRouter()

MOST_METRICS = 6
"""Metrics with a chart, the searcher's first."""
DIGITS = 6
"""Significant digits of a point in a chart."""
STYLES, SCRIPTS = ("pages.css", "uplot.css"), ("uplot.js", "charts.js")
HEADERS = {
    # It is a file to keep; opened here it could do nothing.
    "Content-Security-Policy": "default-src 'none'; sandbox",
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
}
Many = Annotated[ManyIds, Query(default_factory=list)]


@rest.get("/report", response_class=HTMLResponse)
async def report(
    request: Request,
    user: ExperimentReader,
    experimentIds: Many,  # noqa: N803 - as in the API
    trialIds: Many,  # noqa: N803
    best: int = 0,
) -> Response:
    """One HTML file that needs no network: an experiment with its trials, or trials side by side.

    It has at most 200 trials: those of `trialIds`, and the `best` of each of `experimentIds` (without `best`:
    of an experiment alone all, of several the best one each). Secrets of configurations are left out, also
    for their owner, because a file is passed on.
    """
    if not experimentIds and not trialIds:
        raise BadRequest("nothing is named: give experimentIds, trialIds or both")
    check_int(best, "best", least=0, most=MOST_CURVES)
    async with visit(request, user) as asking:
        values = await _collected(asking, experimentIds, trialIds, best)
    points = sum(len(chart) for _, chart in values["charts"])
    text = await aside(points + 4096 * len(values["trials"]), _file, values)
    name = f"report_{experimentIds[0]}.html" if values["alone"] else "report.html"
    named = {"Content-Disposition": f'attachment; filename="{name}"'}
    return HTMLResponse(text, headers=HEADERS | named)


@router.get("/report", include_in_schema=False)
async def download(
    visit: Visitor,
    experiment: Annotated[list[Id], Query(default_factory=list, max_length=MOST_EXPERIMENTS)],
    trial: Annotated[list[Id], Query(default_factory=list, max_length=MOST_CURVES)],
) -> Response:
    """The report as a download of the browser."""
    return Passage(visit, "/api/v1/report", {"experimentIds": experiment, "trialIds": trial})


async def _collected(
    asking: Visit, experiment_ids: Sequence[int], trial_ids: Sequence[int], best: int
) -> dict[str, Any]:
    """The values of the template. Raises ApiError."""
    alone = len(set(experiment_ids)) == 1 and not trial_ids
    choice = choice_of(trial_ids, experiment_ids, (), best or (MOST_CURVES if alone else 0))
    ids, remarks = await chosen(asking, choice)
    trials = await read_trials(asking, ids, "", None) if ids else []
    found = {one["id"] for one in trials}
    lacking = [one for one in ids if one not in found]
    if lacking:
        raise NotFound(f"trial {lacking[0]} does not exist")
    named = list(dict.fromkeys([*choice.experiments, *(one["experimentId"] for one in trials)]))
    if len(named) > MOST_EXPERIMENTS:
        raise BadRequest(
            f"the trials are of {len(named)} experiments, at most {MOST_EXPERIMENTS} fit in one report"
        )
    answers = await asking.all(*(f"/experiments/{one}" for one in named))
    experiments = {one["experiment"]["id"]: one["experiment"] for one in answers}
    metrics = metrics_of(trials)
    first = first_metric(experiments, metrics)
    metrics = sorted(metrics, key=lambda name: name != first)[:MOST_METRICS]
    settings = asking.request.app.state.settings
    known = settings.checkpoint_storage or {}
    configs = [masked_for_others(one["config"], known) for one in experiments.values()]
    of_one = len(experiments) == 1
    lineage, notes, *charts = await asyncio.gather(
        asking.get(f"/experiments/{named[0]}/lineage") if alone else _none(),
        markdown.html(next(iter(experiments.values()))["notes"] or "") if alone else _none(),
        *(_chart(asking, ids, name) for name in metrics),
    )
    return {
        "alone": alone,
        "experiments": experiments,
        "trials": trials,
        "remarks": remarks,
        "hparams": differing(trials, (flat(one["hparams"]) for one in trials), same=False),
        "metrics": metric_rows(trials, metrics),
        "charts": list(zip(metrics, charts, strict=True)),
        "config": configs[0] if of_one else None,
        "settings": None if of_one else differing(configs, map(flat, configs), same=False),
        "lineage": lineage,
        "notes": notes,
        "command": _command(choice.experiments, trial_ids, best),
        "made": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "by": asking.subject.username,
        "cluster": settings.cluster_name,
        "pages": f"{of_service(settings)}{FRONT_HOME}",
    }


async def _none() -> None:
    return None


async def _chart(asking: Visit, ids: list[int], metric: str) -> str:
    found = await curves_of(asking, ids, metric, "steps")
    return await aside(sum(len(one["x"]) for one in found["curves"]) * 20, _points, found)


def _points(found: dict[str, Any]) -> str:
    """What ``charts.js`` draws, as JSON. It has no text of users but the metric's name."""
    curves = [
        {
            "trial": one["trial"],
            "x": one["x"],
            "y": [None if value is None else float(f"{value:.{DIGITS}g}") for value in one["y"]],
        }
        for one in found["curves"]
    ]
    return orjson.dumps({"metric": found["metric"], "x": "steps", "curves": curves}).decode()


def _file(values: dict[str, Any]) -> bytes:
    styles, scripts = ([_inline(name) for name in names] for names in (STYLES, SCRIPTS))
    config = values["config"]
    values = values | {"config": None if config is None else as_yaml(config)}
    shown = render(
        "report", styles=styles, scripts=scripts, policy=_policy(styles, scripts), **values
    )
    return shown.encode("utf-8", "replace")


def _inline(name: str) -> Markup:
    """A script or a style; empty: a part of the chart library, which is not installed."""
    found = assets().get(name)
    return Markup("" if found is None else found.content.decode())


def _policy(styles: Sequence[str], scripts: Sequence[str]) -> str:
    return (
        f"default-src 'none'; script-src {_hashes(scripts)}; style-src {_hashes(styles)}; "
        "base-uri 'none'; form-action 'none'"
    )


def _hashes(texts: Sequence[str]) -> str:
    digests = (hashlib.sha256(one.encode()).digest() for one in texts)
    return " ".join(f"'sha256-{base64.b64encode(one).decode()}'" for one in digests)


def _command(experiments: Sequence[int], trials: Sequence[int], best: int) -> str:
    """Makes the report again."""
    words = ["det experiment report", *map(str, experiments)]
    if trials:
        words.append(f"--trials {','.join(map(str, dict.fromkeys(trials)))}")
    if best:
        words.append(f"--best {best}")
    return " ".join(words)
