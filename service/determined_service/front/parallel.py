"""Parallel coordinates as the places of lines in a drawing: a line for each trial, an axis for each
hyperparameter, and the metric last."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from determined_service.plots.hparams import Axis, axes, flatten

MOST_AXES = 12
WIDTH, HEIGHT = 1000, 340
LEFT, RIGHT, TOP, BOTTOM = 60, 90, 46, 20
BEST_SHARE = 10
"""One of so many trials, the best, is drawn strongly."""
MOST_TICKS = 8
NAME_LENGTH, TICK_LENGTH = 18, 12


@dataclass(frozen=True, slots=True)
class Tick:
    y: float
    text: str


@dataclass(frozen=True, slots=True)
class Drawn:
    """An axis. ``text``: its name, cut to its room."""

    name: str
    text: str
    x: float
    log: bool
    ticks: list[Tick]


@dataclass(frozen=True, slots=True)
class Line:
    """A trial. ``points``: as SVG writes them; ``said``: its values; ``best``: it is drawn strongly."""

    trial_id: int
    points: str
    said: str
    best: bool


@dataclass(frozen=True, slots=True)
class Parallel:
    """A drawing of :data:`WIDTH` by :data:`HEIGHT`, without lines where nothing is to be compared.

    ``constant``: hyperparameters that are the same in all trials; ``left_out``: names without an axis.
    The lines of the best trials come last, and so are on top.
    """

    axes: list[Drawn]
    lines: list[Line]
    constant: dict[str, str]
    left_out: list[str]
    width: int = WIDTH
    height: int = HEIGHT
    top: int = TOP
    bottom: int = HEIGHT - BOTTOM


def parallel(
    trials: Sequence[Mapping[str, Any]],
    hyperparameters: Mapping[str, Any] | None,
    metric: str,
) -> Parallel:
    """The drawing of ``trials`` (their JSON), the best first; those without a finite metric are left out."""
    known = [one for one in trials if _is_finite(one.get("searcherMetricValue"))]
    points = [flatten(one["hparams"]) for one in known]
    found, constant = axes(hyperparameters, points)
    shown = found[:MOST_AXES]
    if len(known) < 2 or not shown:
        return Parallel([], [], constant, [])
    values = [float(one["searcherMetricValue"]) for one in known]
    shown.append(Axis(metric, list(values), log=_is_wide(values)))
    step = (WIDTH - LEFT - RIGHT) / (len(shown) - 1)
    places = [_Scale(axis) for axis in shown]
    drawn = [
        Drawn(axis.name, _cut(axis.name, NAME_LENGTH), LEFT + step * i, axis.log, places[i].ticks())
        for i, axis in enumerate(shown)
    ]
    best = max(1, len(known) // BEST_SHARE)
    lines = []
    for index, one in enumerate(known):
        ys = [scale.place(axis.places[index]) for scale, axis in zip(places, shown, strict=True)]
        said = ", ".join(f"{name} {_short(value)}" for name, value in points[index].items())
        lines.append(
            Line(
                one["id"],
                " ".join(f"{axis.x:.1f},{y:.1f}" for axis, y in zip(drawn, ys, strict=True)),
                f"trial {one['id']}: {metric} {values[index]:.6g}; {said}"[:1000],
                index < best,
            )
        )
    return Parallel(drawn, lines[::-1], constant, [axis.name for axis in found[MOST_AXES:]])


class _Scale:
    """The height of a value on its axis: the least at the bottom, and below it "(none)"."""

    def __init__(self, axis: Axis) -> None:
        self._axis = axis
        known = [self._measure(place) for place in axis.known]
        self._low, self._high = min(known), max(known)

    def _measure(self, place: float) -> float:
        return math.log10(place) if self._axis.log else place

    def place(self, value: float | None) -> float:
        bottom = HEIGHT - BOTTOM
        room = bottom - TOP - (0 if self._axis.complete else 16)
        if value is None:
            return bottom
        width = self._high - self._low
        share = (self._measure(value) - self._low) / width if width else 0.5
        return TOP + room * (1 - share)

    def ticks(self) -> list[Tick]:
        if self._axis.categories is not None:
            names = self._axis.categories
            each = math.ceil(len(names) / MOST_TICKS)
            found = [
                Tick(self.place(float(i)), _cut(name, TICK_LENGTH)) for i, name in enumerate(names)
            ]
            found = found[::each]
        else:
            middle = (self._low + self._high) / 2
            ends = [self._low, middle, self._high] if self._low < self._high else [self._low]
            values = [10**one if self._axis.log else one for one in ends]
            found = [Tick(self.place(value), f"{value:.3g}") for value in values]
        return found if self._axis.complete else [*found, Tick(self.place(None), "(none)")]


def _is_finite(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _is_wide(values: Sequence[float]) -> bool:
    """True if a linear axis would show most of the values as one."""
    return min(values) > 0 and max(values) / min(values) >= 100


def _cut(text: str, most: int) -> str:
    """The end of a text, which says most of a path."""
    return text if len(text) <= most else f"…{text[1 - most :]}"


def _short(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)[:60]
