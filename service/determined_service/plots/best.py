"""The best metric over time."""

from __future__ import annotations

import datetime

from plotly import graph_objects as go

from determined_service.plots.model import Search
from determined_service.plots.section import (
    BEST,
    PlotSection,
    core_range,
    count,
    digits,
    label,
    layout,
)

MOST_TRIALS = 2000


def best_over_time(search: Search) -> PlotSection:
    """The section with the running best by the wall clock, and each trial's own best."""
    section = PlotSection(
        "best",
        "Best metric over time",
        "The line is the best value that any trial had reported by then; a dot is the best of one trial.",
    )
    steps = search.improvements()
    if not steps:
        section.notes.append("No trial has reported a finite value yet.")
        return section
    unit, seconds = _time_unit(((search.end or search.now) - search.start).total_seconds())

    def since(moment: datetime.datetime) -> float:
        return digits((moment - search.start).total_seconds() / seconds)

    dots = [
        t for t in search.sample(MOST_TRIALS) if t.best_time is not None and t.metric is not None
    ]
    if len(dots) < len(search.ranked()):
        section.notes.append(
            f"Dots are shown for {len(dots):,} of {count(len(search.ranked()), 'trial')}."
        )
    if search.is_thinned():
        section.notes.append(
            "The line uses the points of the learning curves above, which leave some points "
            "out, so a step may come later than it did in the search. The line includes the "
            "best value of every trial."
        )
    end = max(since(search.end or search.now), since(steps[-1].time))
    name = label(search.metric)
    figure = go.Figure(layout=layout(height=380))
    figure.add_trace(
        go.Scatter(
            x=[since(t.best_time) for t in dots if t.best_time is not None],
            y=[t.metric for t in dots],
            customdata=[t.id for t in dots],
            mode="markers",
            marker={"size": 6, "color": "#6a9fcf", "opacity": 0.75},
            name="best of a trial",
            hovertemplate=f"trial %{{customdata}}<br>{name} %{{y}}<br>after %{{x}} {unit}<extra></extra>",
        )
    )
    figure.add_trace(
        go.Scatter(
            x=[*(since(step.time) for step in steps), end],
            y=[*(step.metric for step in steps), steps[-1].metric],
            customdata=[*(step.trial_id for step in steps), steps[-1].trial_id],
            mode="lines",
            line={"color": BEST, "width": 2.4, "shape": "hv"},
            name="best so far",
            hovertemplate=(
                f"best so far: {name} %{{y}}<br>trial %{{customdata}}<br>after %{{x}} {unit}<extra></extra>"
            ),
        )
    )
    shown = core_range(
        [*(t.metric for t in dots if t.metric is not None), steps[-1].metric],
        smaller_is_better=search.smaller_is_better,
    )
    if shown is not None:
        section.notes.append(
            "A few values lie far from the others: the axis leaves them out. A double click in the "
            "figure shows everything."
        )
    figure.update_layout(
        xaxis={"title": {"text": f"{unit} since the experiment began"}, "rangemode": "tozero"},
        yaxis={"title": {"text": name}, "range": shown},
    )
    section.figure = figure
    return section


def _time_unit(seconds: float) -> tuple[str, float]:
    for unit, size in (("days", 86400.0), ("hours", 3600.0), ("minutes", 60.0)):
        if seconds >= 3 * size:
            return unit, size
    return "seconds", 1.0
