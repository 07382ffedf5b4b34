"""Parallel coordinates: hyperparameters beside the metric."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from plotly import graph_objects as go

from determined_service.plots.hparams import Axis, axes
from determined_service.plots.model import Search, paths
from determined_service.plots.section import (
    FONT,
    INK,
    PlotSection,
    color_range,
    count,
    digits,
    label,
    layout,
    scale_of,
)

MOST_TRIALS = 2000
MOST_AXES = 12
MOST_TICKS = 24
ROOM = 120
"""Characters that the ticks of all axes have side by side."""
MARGIN = 14
"""Characters left of the first axis."""
NONE = "(none)"


def parallel_coordinates(search: Search, importance: dict[str, float]) -> PlotSection:
    """The section; if there are too many hyperparameters, the more important ones are shown."""
    section = PlotSection(
        "parallel",
        "Hyperparameters and metric",
        "A line per trial. Drag along an axis to choose a range, drag an axis by its name to move it; "
        "a click on the axis removes the range.",
    )
    ranked = search.ranked()
    chosen = {trial.id for trial in search.sample(MOST_TRIALS)}
    trials = [trial for trial in ranked if trial.id in chosen]
    found, constant = axes(search.config.get("hyperparameters"), [paths(t) for t in trials])
    if constant:
        listed = ", ".join(f"{name} = {value}" for name, value in list(constant.items())[:20])
        more = f" and {len(constant) - 20} more" if len(constant) > 20 else ""
        section.notes.append(f"The same in all these trials: {listed}{more}.")
    if len(trials) < 2 or not found:
        section.notes.insert(
            0,
            "This figure needs at least two trials with a finite metric and different hyperparameters.",
        )
        return section
    if len(trials) < len(ranked):
        section.notes.append(f"The figure shows {len(trials):,} of {count(len(ranked), 'trial')}.")
    if len(ranked) < len(search.trials):
        left = len(search.trials) - len(ranked)
        section.notes.append(
            f"Left out, because they have no finite metric: {count(left, 'trial')}."
        )
    shown = sorted(found, key=lambda axis: -importance.get(axis.name, 0.0))[:MOST_AXES]
    if len(shown) < len(found):
        names = ", ".join(axis.name for axis in found if axis not in shown)
        section.notes.append(f"Hyperparameters left out to save space: {names}.")
    metrics = [trial.metric for trial in trials if trial.metric is not None]
    # The lines are drawn in this order: the best ones last, on top.
    order = sorted(range(len(trials)), reverse=True)
    low, high = color_range(search, metrics)
    line = {
        "color": [min(max(metrics[i], low), high) for i in order],
        "colorscale": scale_of(search),
        "cmin": low,
        "cmax": high,
    }
    room = max(ROOM // (len(shown) + 1), 6)
    dimensions = [_dimension(axis, order, room) for axis in found if axis in shown]
    figure = go.Figure(
        go.Parcoords(
            dimensions=[*dimensions, _metric_dimension(search, [metrics[i] for i in order])],
            line=line,
            labelfont={"family": FONT, "size": 13, "color": INK},
            tickfont={"family": FONT, "size": 11, "color": INK},
            rangefont={"size": 1, "color": "rgba(0,0,0,0)"},
            labelangle=-12 if len(shown) > 5 else 0,
        ),
        layout=layout(height=460, margin={"l": 90, "r": 90, "t": 72, "b": 32}),
    )
    section.figure = figure
    return section


def _metric_dimension(search: Search, metrics: Sequence[float]) -> dict[str, Any]:
    low, high = color_range(search, metrics)
    values = [digits(min(max(metric, low), high)) for metric in metrics]
    return {"label": label(search.metric, 24), "values": values, **_range(low, high)}


def _dimension(axis: Axis, order: Sequence[int], room: int) -> dict[str, Any]:
    places = [axis.places[i] for i in order]
    if axis.categories is not None:
        ticks = [float(i) for i in range(len(axis.categories))]
        texts = list(axis.categories)
        below = -1.0
    else:
        if axis.log:
            places = [None if place is None else math.log10(place) for place in places]
        known = [place for place in places if place is not None]
        low, high = min(known), max(known)
        ticks, texts = _log_ticks(low, high) if axis.log else _ticks(low, high)
        below = low - 0.1 * ((high - low) or 1.0)
    if not axis.complete:
        ticks, texts = [below, *ticks], [NONE, *texts]
    step = math.ceil(len(ticks) / MOST_TICKS)
    values = [digits(below if place is None else place) for place in places]
    return {
        "label": label(_end(axis.name, room + 6)),
        "values": values,
        "tickvals": ticks[::step],
        "ticktext": [_tick(text, min(room, MARGIN)) for text in texts[::step]],
        **_range(min(values), max(values)),
    }


def _range(low: float, high: float) -> dict[str, Any]:
    pad = 0.02 * (high - low) or max(abs(low), 1.0) * 0.02
    return {"range": [low - pad, high + pad]}


def _end(name: str, room: int) -> str:
    """Cut a long path at its beginning, because its end says most."""
    return name if len(name) <= room else f"…{name[-room + 1 :].lstrip('.')}"


def _tick(text: str, room: int) -> str:
    """Ticks of this figure are plain text: nothing is escaped, only cut."""
    cut = " ".join(text.split())
    return cut if len(cut) <= room else f"{cut[: room - 1]}…"


def _ticks(low: float, high: float) -> tuple[list[float], list[str]]:
    if low == high:
        return [low], [f"{low:.6g}"]
    step = 10.0 ** math.floor(math.log10((high - low) / 3))
    step *= next(f for f in (1, 2, 5, 10) if (high - low) / (step * f) <= 6)
    first = math.ceil(low / step)
    ticks = [index * step for index in range(first, math.floor(high / step) + 1)]
    return ticks, [f"{tick:.6g}" for tick in ticks]


def _log_ticks(low: float, high: float) -> tuple[list[float], list[str]]:
    """``low`` and ``high`` are powers of ten; decades, and 2 and 5 between them if they are few."""
    factors = (1, 2, 5) if high - low <= 2.5 else (1,)
    decades = range(math.floor(low), math.ceil(high) + 1)
    values = [factor * 10.0**decade for decade in decades for factor in factors]
    inside = [value for value in values if low <= math.log10(value) <= high]
    if not inside:
        inside = [10.0**low, 10.0**high]
    return [math.log10(value) for value in inside], [f"{value:.3g}" for value in inside]
