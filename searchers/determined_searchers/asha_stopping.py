"""ASHA by stopping: a trial goes on to the next rung while it is among the best 1/divisor."""

from __future__ import annotations

from typing import Any

from determined_searchers.asha import Halving
from determined_searchers.errors import SearcherError
from determined_searchers.events import ExitReason
from determined_searchers.operations import Operation, ValidateAfter


class StoppingHalving(Halving):
    """``max_length`` with ``stop_once: true``, and every search with ``max_time``.

    The first trial at a rung always goes on, and so does a trial that equals the last one within the share.
    When a trial ends, a new one is created.
    """

    at_least = 1
    equals_first = True

    def trial_reported(
        self, request_id: str, time: float | None, metric: Any, step: int | None
    ) -> list[Operation]:
        if time is None:
            raise SearcherError(
                f"trial {request_id} reported a validation without the searcher's time metric "
                f"{self.context.section.get('time_metric')!r}"
            )
        # One report may be the measurement for several rungs.
        while (
            request_id not in self.closed and time >= self.rungs[self.trial_rung[request_id]].length
        ):
            operations = self.record(request_id, metric)
            if operations:
                return operations
        return []

    def record(self, trial: str, metric: float) -> list[Operation]:
        """Handle that the trial was measured at its next rung."""
        while True:
            rung = self.arrive(trial)
            entry = rung.entry(trial, metric)
            within = rung.add(entry) is entry
            if trial in self.exited:
                return self.start_if_any_left()
            if not within or rung is self.rungs[-1]:
                return self.end_trial(trial) + self.start_if_any_left()
            above = self.advance(trial)
            if self.reports:
                return []
            if above.length > rung.length:
                return [ValidateAfter(trial, above.length)]

    def trial_closed(self, request_id: str, exited: ExitReason | None) -> list[Operation]:
        """A trial whose code ended before its next rung counts as one that exited, so that the
        rest of the search's trials are still tried (the original would never start them)."""
        operations = super().trial_closed(request_id, exited)
        if request_id not in self.closed:
            operations += self.trial_exited(request_id, ExitReason.USER_REQUESTED_STOP)
        return operations
