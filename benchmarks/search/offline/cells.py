"""A cell is one search of one tool on one task; a row is what came of it, as JSON."""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from benchmarks.search.offline.simulator import Run, Tool, simulate
from benchmarks.search.offline.tasks import MAX_EPOCHS, Outcomes, Task, make_task

BUDGETS = (2.0, 6.0, 20.0)
"""Times at which regret is read, in full trainings (81 mean epochs)."""

GRID = tuple(float(time) for time in np.geomspace(0.5, 20, 33))
"""Times of the curve, in full trainings."""


@dataclass(frozen=True)
class Cell:
    """``tool`` on instance ``seed`` of ``task`` with so many workers until ``horizon`` (in full
    trainings). ``resume_cost``: see the simulator."""

    tool: str
    task: str
    seed: int
    workers: int
    horizon: float
    resume_cost: float = 0.0

    @property
    def label(self) -> str:
        """The contender's name in tables."""
        return f"{self.tool}, resume {self.resume_cost}" if self.resume_cost else self.tool


MakeTool = Callable[[Cell, Outcomes], Tool]


class CellRunner:
    """Runs cells; keeps the outcomes of the last task, which several cells in a row share."""

    def __init__(self, make_tool: MakeTool) -> None:
        self.make_tool = make_tool
        self._task: tuple[str, int] | None = None
        self._outcomes: Outcomes | None = None

    def run(self, cell: Cell) -> dict[str, Any]:
        if self._outcomes is None or self._task != (cell.task, cell.seed):
            self._outcomes = Outcomes(make_task(cell.task, cell.seed))
            self._task = (cell.task, cell.seed)
        start = time.process_time()
        horizon = cell.horizon * MAX_EPOCHS
        tool = self.make_tool(cell, self._outcomes)
        run = simulate(self._outcomes, tool, cell.workers, horizon, cell.resume_cost)
        return row(cell, self._outcomes.task, run, time.process_time() - start)


def row(cell: Cell, task: Task, run: Run, seconds: float) -> dict[str, Any]:
    """The figures of a run. ``curve``: regret at the times of GRID; None past the horizon."""
    times = [when / MAX_EPOCHS for when, _ in run.incumbents]
    regrets = [task.worst, *(regret for _, regret in run.incumbents)]

    def regret(when: float) -> float | None:
        if when > cell.horizon:
            return None
        return round(regrets[bisect_right(times, when)], 9)

    return {
        **asdict(cell),
        "regret": [regret(budget) for budget in BUDGETS],
        "curve": [regret(when) for when in GRID],
        "utilisation": round(run.busy / (cell.workers * cell.horizon * MAX_EPOCHS), 6),
        "first_full": None if run.first_full is None else round(run.first_full / MAX_EPOCHS, 6),
        "trials": run.trials,
        "epochs": run.epochs,
        "tool_us_per_trial": round(run.tool_seconds / max(run.trials, 1) * 1e6, 1),
        "seconds": round(seconds, 3),
    }
