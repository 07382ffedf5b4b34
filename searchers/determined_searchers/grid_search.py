"""``grid``: every point of the grid once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from determined_searchers.events import ExitReason
from determined_searchers.method import SearchContext, SearchMethod
from determined_searchers.operations import Operation
from determined_searchers.settings import read_whole
from determined_searchers.space import Grid


class GridSearch(SearchMethod):
    """All points trained to the end, the last point first, at most ``cap`` at a time (0: all).

    Trials that exit for any reason are not replaced, since their point has been tried.
    """

    def __init__(self, context: SearchContext, grid: Grid, cap: int) -> None:
        self.context = context
        self.grid = grid
        self.points = len(grid)
        self.cap = cap or self.points
        self.remaining = self.points
        self.closed = 0

    @classmethod
    def from_config(cls, context: SearchContext) -> Self:
        cap = read_whole(context.section, "max_concurrent_trials", 0, default=16)
        return cls(context, context.space.grid(), cap)

    def initial_operations(self) -> list[Operation]:
        return [op for _ in range(min(self.points, self.cap)) for op in self._start()]

    def trial_closed(self, request_id: str, exited: ExitReason | None) -> list[Operation]:
        self.closed += 1
        return self._start()

    def progress(self, open_trials: Mapping[str, float]) -> float:
        full = self.context.max_length or 1
        done = sum(min(progress / full, 1.0) for progress in open_trials.values())
        return (self.closed + done) / self.points

    def state(self) -> dict[str, Any]:
        return {"points": self.points, "remaining": self.remaining, "closed": self.closed}

    def load(self, state: Mapping[str, Any]) -> None:
        self.points, self.remaining = state["points"], state["remaining"]
        self.closed = state["closed"]

    def _start(self) -> list[Operation]:
        if not self.remaining:
            return []
        self.remaining -= 1
        return self.context.full_length(self.context.new_trial(self.grid[self.remaining]))
