"""The whole page: title, summary, sections, table of the best trials."""

from __future__ import annotations

import datetime
import secrets
from collections import Counter
from functools import cache
from typing import Any
from urllib.parse import quote

import jinja2
import plotly.offline

from determined_service.plots.best import best_over_time
from determined_service.plots.curves import curves
from determined_service.plots.hparams import text
from determined_service.plots.importance import hyperparameter_importance
from determined_service.plots.model import PlottedTrial, Search, paths
from determined_service.plots.parallel import parallel_coordinates
from determined_service.plots.rungs import rung_occupancy
from determined_service.plots.section import PlotSection

BEST_LISTED = 10
TEXT_MOST = 120
# The page's description of the searcher: no other part of a configuration is shown, because some hold secrets
# (environment variables).
SEARCHER_FIELDS = (
    "name", "metric", "smaller_is_better", "max_trials", "max_concurrent_trials", "max_length",
    "max_time", "time_metric", "mode", "divisor", "num_rungs", "max_rungs", "bracket_rungs", "stop_once",
    "population_size", "num_rounds",
)  # fmt: skip


def render_page(search: Search) -> str:
    """The HTML document: Plotly's script and all data are in it."""
    sections = make_sections(search)
    return _template().render(
        search=search,
        sections=sections,
        facts=_facts(search),
        states=_states(search),
        best=[
            _row(search, rank, trial) for rank, trial in enumerate(search.ranked()[:BEST_LISTED], 1)
        ],
        hparams=_names(search),
        run_url=_run_url(search, search.flow_run_id),
        figures={one.key: _json(one.figure) for one in sections if one.figure is not None},
        plotly=plotly.offline.get_plotlyjs(),
        # Only scripts with it run, so no other script on the page can.
        nonce=secrets.token_urlsafe(16),
        duration=_duration((search.end or search.now) - search.start),
    )


def make_sections(search: Search) -> list[PlotSection]:
    """In the order of the page."""
    importance, shares = hyperparameter_importance(search)
    return [
        curves(search),
        best_over_time(search),
        parallel_coordinates(search, shares),
        importance,
        rung_occupancy(search),
    ]


def _facts(search: Search) -> list[tuple[str, str]]:
    found = [("Owner", search.owner), ("Resource pool", search.pool)]
    if search.labels:
        found.append(("Labels", ", ".join(search.labels)))
    slots = (search.config.get("resources") or {}).get("slots_per_trial")
    if slots is not None:
        found.append(("Slots per trial", str(slots)))
    for name in SEARCHER_FIELDS:
        value = search.section.get(name)
        if value not in (None, [], {}):
            found.append((name, _short(value)))
    seed = (search.config.get("reproducibility") or {}).get("experiment_seed")
    if seed is not None:
        found.append(("experiment_seed", str(seed)))
    return found


def _states(search: Search) -> list[tuple[str, int]]:
    counted = Counter(trial.outcome for trial in search.trials)
    return [(outcome.value, number) for outcome, number in counted.most_common()]


def _names(search: Search) -> list[str]:
    """Hyperparameters of the table of the best trials: those that are not the same in all."""
    points = [paths(trial) for trial in search.ranked()[:BEST_LISTED]]
    names = sorted({name for point in points for name in point})
    every = [paths(trial) for trial in search.trials]
    return [name for name in names if len({_short(point.get(name)) for point in every}) > 1][:12]


def _row(search: Search, rank: int, trial: PlottedTrial) -> dict[str, Any]:
    point = paths(trial)
    return {
        "rank": rank,
        "id": trial.id,
        "url": _run_url(search, trial.flow_run_id),
        "outcome": trial.outcome.value,
        "metric": f"{trial.metric:.6g}",
        "steps": trial.best_steps,
        "hparams": {name: _short(value) for name, value in point.items()},
    }


def _run_url(search: Search, flow_run_id: str | None) -> str | None:
    if search.prefect_url is None or flow_run_id is None:
        return None
    return f"{search.prefect_url}/runs/flow-run/{quote(flow_run_id)}"


def _short(value: object) -> str:
    if isinstance(value, dict):
        value = {name: item for name, item in value.items() if item is not None}
    found = text(value)
    return found if len(found) <= TEXT_MOST else f"{found[: TEXT_MOST - 1]}…"


def _duration(elapsed: datetime.timedelta) -> str:
    seconds = int(elapsed.total_seconds())
    for unit, size, smaller, part in (
        ("d", 86400, "h", 3600),
        ("h", 3600, "min", 60),
        ("min", 60, "s", 1),
    ):
        if seconds >= size:
            return f"{seconds // size} {unit} {seconds % size // part} {smaller}"
    return f"{elapsed.total_seconds():.1f} s"


def _json(figure: Any) -> str:
    """The figure as JSON that may stand inside a script element."""
    found: str = figure.to_json()
    return found.translate({ord("<"): "\\u003c", ord(">"): "\\u003e", ord("&"): "\\u0026"})


@cache
def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("determined_service.plots", "."),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("page.html")
