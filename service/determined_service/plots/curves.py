"""Learning curves: every trial's metric over its training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from plotly import graph_objects as go
from plotly.colors import sample_colorscale

from determined_service.plots.model import PlottedOutcome, PlottedTrial, Point, Search
from determined_service.plots.occupancy import rungs_by_trial
from determined_service.plots.section import (
    BEST,
    FAINT,
    SYMBOLS,
    PlotSection,
    color_range,
    core_range,
    count,
    digits,
    label,
    layout,
    scale_of,
)

SHADES = 12
"""The number of colours of the lines. There is one trace for each colour, because a thousand traces would
take the browser many seconds.
"""
MOST_PROMOTIONS = 3000


def curves(search: Search) -> PlotSection:
    """The section of learning curves."""
    section = PlotSection(
        "curves",
        "Learning curves",
        "A line per trial, darker the better its best value; the sign at its end shows "
        "its outcome, a small ring means that it went on to the next rung.",
    )
    drawn = [trial for trial in search.trials if trial.id in search.curves]
    _explain_gaps(section, search, drawn)
    if not drawn:
        section.notes.insert(0, f"No trial has reported the metric {search.metric!r} yet.")
        return section
    metrics = [trial.metric for trial in drawn if trial.metric is not None]
    figure = go.Figure(layout=layout(height=520))
    for trace in _lines(search, drawn, metrics):
        figure.add_trace(trace)
    lengths = _rungs_on_axis(search, drawn)
    if lengths:
        figure.add_trace(_promotions(search, drawn))
    for trace in _ends(search, drawn):
        figure.add_trace(trace)
    best = next(iter(search.ranked()), None)
    if best is not None and best.id in search.curves:
        figure.add_trace(_best(search, best))
    for length in lengths:
        figure.add_vline(length, line={"color": "#cbd5e1", "width": 1, "dash": "dot"})
    shown = core_range(
        [p.y for points in search.curves.values() for p in points if p.y is not None],
        smaller_is_better=search.smaller_is_better,
    )
    if shown is not None:
        section.notes.append(
            "A few values lie far from the others: the axis leaves them out. A double click in the "
            "figure shows everything."
        )
    figure.update_layout(
        xaxis={
            "title": {"text": label(search.time_metric or "steps completed")},
            "rangemode": "tozero",
        },
        yaxis={"title": {"text": label(search.metric)}, "range": shown},
        coloraxis=_color_axis(search, metrics),
    )
    section.figure = figure
    return section


def _explain_gaps(section: PlotSection, search: Search, drawn: Sequence[PlottedTrial]) -> None:
    reported = [trial for trial in search.trials if trial.validations]
    if len(drawn) < len(reported):
        section.notes.append(
            f"The figure shows {len(drawn):,} of {count(len(reported), 'trial')}: the best, and of "
            "the others every n-th."
        )
    thinned = [trial for trial in drawn if trial.validations > search.curve_points]
    if thinned:
        section.notes.append(
            f"Curves of more than {count(search.curve_points, 'point')} are thinned to that; first, last "
            f"and best points stay ({count(len(thinned), 'curve')})."
        )
    silent = len(search.trials) - len(reported)
    if silent and drawn:
        section.notes.append(f"{count(silent, 'trial')} without a value yet.")
    broken = [trial for trial in search.trials if trial.not_finite]
    if broken:
        values = sum(trial.not_finite for trial in broken)
        section.notes.append(
            f"{count(values, 'value')} of {count(len(broken), 'trial')} "
            f"{'is' if values == 1 else 'are'} NaN or infinite: gaps in the lines."
        )


def _color_axis(search: Search, metrics: Sequence[float]) -> dict[str, Any]:
    low, high = color_range(search, metrics)
    return {
        "colorscale": scale_of(search),
        "cmin": low,
        "cmax": high,
        "showscale": high > low,
        "colorbar": {
            "title": {
                "text": f"best {label(search.metric, 24)}",
                "side": "right",
                "font": {"size": 13},
            },
            "thickness": 12,
            "outlinewidth": 0,
        },
    }


def _lines(
    search: Search, drawn: Sequence[PlottedTrial], metrics: Sequence[float]
) -> list[go.Scatter]:
    """One trace per shade, its trials' lines separated by gaps; the good ones last, on top."""
    low, high = color_range(search, metrics)
    groups: dict[int, list[PlottedTrial]] = {}
    for trial in drawn:
        # A trial without a finite value is as pale as the worst.
        worst = high if search.smaller_is_better else low
        metric = worst if trial.metric is None else min(max(trial.metric, low), high)
        share = (metric - low) / (high - low) if high > low else 0.5
        groups.setdefault(min(int(share * SHADES), SHADES - 1), []).append(trial)
    colors = sample_colorscale(scale_of(search), [(i + 0.5) / SHADES for i in range(SHADES)])
    order = sorted(groups, reverse=search.smaller_is_better)
    return [_line(search, groups[shade], colors[shade]) for shade in order]


def _line(search: Search, trials: Sequence[PlottedTrial], color: str) -> go.Scatter:
    x: list[float | None] = []
    y: list[float | None] = []
    ids: list[int | None] = []
    for trial in trials:
        for point in search.curves[trial.id]:
            x.append(digits(point.x))
            y.append(None if point.y is None else digits(point.y))
            ids.append(trial.id)
        x.append(None)
        y.append(None)
        ids.append(None)
    return go.Scatter(
        x=x,
        y=y,
        customdata=ids,
        mode="lines",
        line={"color": color, "width": 1.4},
        hovertemplate=_hover(search),
        showlegend=False,
    )


def _hover(search: Search) -> str:
    x = label(search.time_metric or "step", 30)
    return (
        f"trial %{{customdata}}<br>{x} %{{x}}<br>{label(search.metric, 30)} %{{y}}<extra></extra>"
    )


def _ends(search: Search, drawn: Sequence[PlottedTrial]) -> list[go.Scatter]:
    """The last point of each curve, one trace per outcome."""
    traces = []
    for outcome in PlottedOutcome:
        ended = [
            (trial, _last(search.curves[trial.id])) for trial in drawn if trial.outcome is outcome
        ]
        found = [(trial, point) for trial, point in ended if point is not None]
        if not found:
            continue
        traces.append(
            go.Scatter(
                x=[digits(point.x) for _, point in found],
                y=[point.y for _, point in found],
                customdata=[trial.id for trial, _ in found],
                mode="markers",
                marker={
                    "symbol": SYMBOLS[outcome],
                    "size": 8 if outcome is PlottedOutcome.COMPLETED else 9,
                    "color": [trial.metric for trial, _ in found],
                    "coloraxis": "coloraxis",
                    "line": {"width": 1 if outcome is PlottedOutcome.COMPLETED else 1.8},
                },
                name=outcome.value,
                hovertemplate=f"{outcome.value}<br>{_hover(search)}",
            )
        )
    return traces


def _last(points: Sequence[Point]) -> Point | None:
    return next((point for point in reversed(points) if point.y is not None), None)


def _promotions(search: Search, drawn: Sequence[PlottedTrial]) -> go.Scatter:
    """The points at which trials were measured at a rung of their bracket and went on."""
    ladders = rungs_by_trial(search)
    found = [
        (trial.id, point)
        for trial in drawn
        for point in search.curves[trial.id][:-1]
        if point.x in ladders[trial.id] and point.y is not None
    ][:MOST_PROMOTIONS]
    return go.Scatter(
        x=[digits(point.x) for _, point in found],
        y=[point.y for _, point in found],
        customdata=[trial_id for trial_id, _ in found],
        mode="markers",
        marker={"symbol": "circle-open", "size": 5, "color": FAINT, "line": {"width": 1}},
        name="went on",
        showlegend=bool(found),
        hovertemplate=f"went on<br>{_hover(search)}",
    )


def _best(search: Search, trial: PlottedTrial) -> go.Scatter:
    points = search.curves[trial.id]
    return go.Scatter(
        x=[digits(point.x) for point in points],
        y=[point.y for point in points],
        customdata=[trial.id] * len(points),
        mode="lines+markers" if len(points) <= 30 else "lines",
        line={"color": BEST, "width": 2.6},
        marker={"size": 6},
        name=f"best: trial {trial.id}",
        hovertemplate=_hover(search),
    )


def _rungs_on_axis(search: Search, drawn: Sequence[PlottedTrial]) -> list[float]:
    """The lengths of the rungs, if they are in the unit of the axis.

    A training of 9 epochs may report its steps in batches: then no target is a step of its curve.
    """
    lengths = sorted({float(length) for ladder in search.ladders for length in ladder})
    if search.time_metric is not None:
        return lengths
    measured = [trial for trial in drawn if trial.reached]
    fitting = [t for t in measured if any(p.x == t.reached for p in search.curves[t.id])]
    return lengths if measured and len(fitting) >= 0.9 * len(measured) else []
