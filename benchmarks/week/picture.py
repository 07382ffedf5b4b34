"""The week as a picture: :func:`figure`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.week.measures import BUCKET_S, CAPACITY, Measures
from benchmarks.week.trace import PRIORITIES, WEEK_S


def figure(found: Mapping[str, Measures]) -> Any:
    """Three rows: slots at work, trials that wait, and the share of trials that waited at most so long, by
    priority; one colour for each scheduler."""
    import plotly.graph_objects as go
    from plotly.colors import qualitative
    from plotly.subplots import make_subplots

    priorities = sorted(PRIORITIES)
    columns = len(priorities)
    whole = [{"colspan": columns}, *[None] * (columns - 1)]
    shown = make_subplots(
        rows=3,
        cols=columns,
        specs=[whole, whole, [{}] * columns],
        subplot_titles=(
            "slots at work, of all",
            "trials that wait",
            *(f"priority {one}: trials placed after so long" for one in priorities),
        ),
        vertical_spacing=0.1,
    )
    for (name, one), colour in zip(found.items(), qualitative.Safe, strict=False):
        style = {"name": name, "legendgroup": name, "line": {"color": colour, "width": 1.5}}
        hours = range(int(WEEK_S / BUCKET_S) + 24)
        days = [hour / 24 for hour in hours]
        work = [one.by_hour[hour] / BUCKET_S / CAPACITY for hour in hours]
        queue = [one.queued_by_hour[hour] / BUCKET_S for hour in hours]
        shown.add_trace(go.Scatter(x=days, y=work, **style), row=1, col=1)
        shown.add_trace(go.Scatter(x=days, y=queue, showlegend=False, **style), row=2, col=1)
        for column, priority in enumerate(priorities, 1):
            waits = sorted(one.waits[priority])
            shares = [(place + 1) / len(waits) for place in range(len(waits))]
            minutes = [max(wait / 60, 0.1) for wait in waits]
            line = go.Scatter(x=minutes[::20], y=shares[::20], showlegend=False, **style)
            shown.add_trace(line, row=3, col=column)
            shown.update_xaxes(type="log", title="minutes", row=3, col=column)
    for row in (1, 2):
        shown.update_xaxes(title="days", row=row, col=1)
    shown.update_yaxes(range=[0, 1.02], row=1, col=1)
    shown.update_layout(
        width=1100, height=900, template="plotly_white", legend={"orientation": "h"}
    )
    return shown
