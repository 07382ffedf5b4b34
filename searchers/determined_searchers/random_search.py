"""``random``: independent samples; and ``single``: one sample."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from determined_searchers.events import ExitReason
from determined_searchers.method import SearchContext, SearchMethod
from determined_searchers.operations import Operation
from determined_searchers.settings import read_whole


class RandomSearch(SearchMethod):
    """``max_trials`` samples trained to the end, at most ``cap`` at a time (0: all at once).

    A sample whose trial calls it invalid does not count and is replaced by another sample.
    """

    def __init__(self, context: SearchContext, max_trials: int, cap: int) -> None:
        self.context = context
        self.max_trials = max_trials
        self.cap = cap or max_trials
        self.created = 0  # less those found invalid
        self.closed = 0  # without those found invalid

    @classmethod
    def from_config(cls, context: SearchContext) -> Self:
        section = context.section
        return cls(
            context,
            max_trials=read_whole(section, "max_trials", 1),
            cap=read_whole(section, "max_concurrent_trials", 0, default=16),
        )

    @property
    def invalid_limit(self) -> int | None:
        return 10 * self.max_trials

    def initial_operations(self) -> list[Operation]:
        return [op for _ in range(min(self.max_trials, self.cap)) for op in self._start()]

    def trial_exited(self, request_id: str, reason: ExitReason) -> list[Operation]:
        if reason.invalid:
            self.created -= 1
        return []

    def trial_closed(self, request_id: str, exited: ExitReason | None) -> list[Operation]:
        if not (exited and exited.invalid):
            self.closed += 1
        return self._start() if self.created < self.max_trials else []

    def progress(self, open_trials: Mapping[str, float]) -> float:
        full = self.context.max_length or 1
        done = sum(min(progress / full, 1.0) for progress in open_trials.values())
        return (self.closed + done) / self.max_trials

    def state(self) -> dict[str, Any]:
        return {"created": self.created, "closed": self.closed}

    def load(self, state: Mapping[str, Any]) -> None:
        self.created, self.closed = state["created"], state["closed"]

    def _start(self) -> list[Operation]:
        self.created += 1
        return self.context.full_length(self.context.new_trial())


class SingleSearch(RandomSearch):
    """One sample, not replaced: invalid hyperparameters end the search (as completed)."""

    @classmethod
    def from_config(cls, context: SearchContext) -> Self:
        return cls(context, max_trials=1, cap=1)

    @property
    def invalid_limit(self) -> int | None:
        return None

    def trial_exited(self, request_id: str, reason: ExitReason) -> list[Operation]:
        return []

    def trial_closed(self, request_id: str, exited: ExitReason | None) -> list[Operation]:
        self.closed += 1
        return []
