"""Rung occupancy: how many trials reached each rung, and how many went on from it."""

from __future__ import annotations

from plotly import graph_objects as go

from determined_service.plots.model import PlottedOutcome, Search
from determined_service.plots.occupancy import occupancy
from determined_service.plots.section import PlotSection, count, label, layout


def rung_occupancy(search: Search) -> PlotSection:
    """The section."""
    section = PlotSection(
        "rungs",
        "Rung occupancy",
        "How many trials were measured at each length, and how many of them went on.",
    )
    tables = occupancy(search)
    if not any(table.rungs for table in tables) or not search.trials:
        section.notes.append(
            "No trial has been created yet."
            if not search.trials
            else "This search has no rungs: the training code decides how long each trial trains."
        )
        return section
    if len(tables) == 1 and len(search.ladders) > 1:
        section.notes.append("All brackets together: the trials' brackets are not known (yet).")
    _note_lost(section, search)
    named = len(tables) > 1
    lengths = [f"{rung.length:,}" for table in tables for rung in table.rungs]
    x = [[t.name for t in tables for _ in t.rungs], lengths] if named else lengths
    rungs = [rung for table in tables for rung in table.rungs]
    figure = go.Figure(layout=layout(height=380, barmode="stack", bargap=0.3))
    for name, color, values in (
        ("went on", "#1f5795", [rung.went_on for rung in rungs]),
        ("ended here", "#9dbfdd", [rung.ended for rung in rungs]),
        ("waits here", "#f2c894", [rung.waiting for rung in rungs]),
        ("on the way here", "#e5e7eb", [rung.on_the_way for rung in rungs]),
    ):
        if any(values):
            figure.add_trace(
                go.Bar(
                    x=x,
                    y=values,
                    name=name,
                    marker={"color": color},
                    text=[value or "" for value in values],
                    textposition="inside",
                    insidetextanchor="middle",
                    textangle=0,
                    constraintext="none",
                    hovertemplate=f"%{{x}}<br>{name}: %{{y}}<extra></extra>",
                )
            )
    figure.update_layout(
        xaxis={
            "type": "multicategory" if named else "category",
            "showgrid": False,
            "title": {"text": f"length ({label(search.unit, 24)})"},
        },
        legend={"traceorder": "normal"},
        yaxis={"title": {"text": "trials"}, "rangemode": "tozero"},
    )
    section.figure = figure
    return section


def _note_lost(section: PlotSection, search: Search) -> None:
    lost = [
        trial
        for trial in search.trials
        if trial.outcome in (PlottedOutcome.FAILED, PlottedOutcome.INVALID, PlottedOutcome.CANCELED)
    ]
    if lost:
        section.notes.append(
            f"{count(len(lost), 'trial')} failed, {'was' if len(lost) == 1 else 'were'} canceled or had "
            f"invalid hyperparameters: counted at the rungs that "
            f"{'it' if len(lost) == 1 else 'they'} had reached."
        )
