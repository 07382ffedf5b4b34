"""A section of the page, and the look that all sections share."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from determined_service.plots.model import PlottedOutcome, Search

if TYPE_CHECKING:
    from plotly.graph_objects import Figure


@dataclass(slots=True)
class PlotSection:
    """A figure with its heading; without a figure, ``notes`` say why. ``explains``: how to read it."""

    key: str
    title: str
    explains: str
    figure: Figure | None = None
    notes: list[str] = field(default_factory=list)


FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
INK = "#1f2937"
FAINT = "#6b7280"
GRID = "#e5e7eb"
BEST = "#d9480f"

# From the worst (left) to the best (right); the palest still shows on white.
SHADES = ("#c9d8ea", "#9dbfdd", "#6a9fcf", "#3b7ab8", "#1f5795", "#0b2f63")
SCALE: list[list[Any]] = [[index / (len(SHADES) - 1), shade] for index, shade in enumerate(SHADES)]

SYMBOLS = {
    PlottedOutcome.COMPLETED: "circle",
    PlottedOutcome.STOPPED: "x-thin-open",
    PlottedOutcome.WAITING: "diamond-open",
    PlottedOutcome.RUNNING: "triangle-right",
    PlottedOutcome.FAILED: "cross-thin-open",
    PlottedOutcome.INVALID: "hash-open",
    PlottedOutcome.CANCELED: "square-open",
}


def label(text: object, most: int = 60) -> str:
    """User's text inside a figure: Plotly reads some HTML and ``%{…}``, and must not here."""
    cut = " ".join(str(text).split())
    if len(cut) > most:
        cut = f"{cut[: most - 1]}…"
    # Quotes stay: Plotly would show their entities.
    return html.escape(cut, quote=False).replace("%{", "%\u200b{")


def scale_of(search: Search) -> list[list[Any]]:
    """:data:`SCALE` by the metric's value, dark where it is good."""
    if not search.smaller_is_better:
        return SCALE
    return [[1 - place, shade] for place, shade in reversed(SCALE)]


def layout(**more: Any) -> dict[str, Any]:
    """The layout that every figure shares; ``more`` beats it."""
    axis = {
        "gridcolor": GRID,
        "zeroline": False,
        "linecolor": "#9ca3af",
        "ticks": "outside",
        "tickcolor": "#9ca3af",
        "title": {"font": {"size": 13}},
        "automargin": True,
    }
    return {
        "template": "none",
        "font": {"family": FONT, "size": 13, "color": INK},
        "paper_bgcolor": "white",
        "plot_bgcolor": "white",
        "margin": {"l": 64, "r": 24, "t": 16, "b": 56},
        "height": 440,
        "hovermode": "closest",
        "hoverlabel": {"bgcolor": "white", "font": {"color": INK}, "align": "left"},
        "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0},
        **more,
        "xaxis": axis,
        "yaxis": axis,
    }


def digits(value: float) -> float:
    """``value`` to seven significant digits: finer is not seen, and makes the page larger."""
    return float(f"{value:.7g}")


def core_range(values: Sequence[float], *, smaller_is_better: bool) -> tuple[float, float] | None:
    """The range of nearly all ``values``, if a few bad values would squeeze them; None if no value is far.

    A diverged trial (a loss of 1e30) must not hide the others. A value is far if it is worse than the
    middle 60 % by ten times their spread. Good values are never left out.
    """
    if len(values) < 5:
        return None
    ordered = sorted(values)
    most = len(ordered) - 1
    low, high = ordered[math.ceil(0.2 * most)], ordered[math.floor(0.8 * most)]
    reach = 10 * (high - low)
    if smaller_is_better:
        near = [value for value in ordered if value <= high + reach]
    else:
        near = [value for value in ordered if value >= low - reach]
    if reach == 0 or len(near) == len(ordered):
        return None
    pad = 0.05 * (near[-1] - near[0])
    return near[0] - pad, near[-1] + pad


def color_range(search: Search, metrics: Sequence[float]) -> tuple[float, float]:
    """From which metric to which colours change."""
    extremes = min(metrics, default=0.0), max(metrics, default=1.0)
    return core_range(metrics, smaller_is_better=search.smaller_is_better) or extremes


def count(number: int, noun: str) -> str:
    """``1 trial``, ``1,234 trials``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
