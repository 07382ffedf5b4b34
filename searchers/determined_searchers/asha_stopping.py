"""ASHA by stopping: a trial goes on to the next rung while it is among the best 1/divisor."""

from __future__ import annotations

from bisect import bisect_left
from typing import Any

from determined_searchers.asha import Entry, Halving
from determined_searchers.errors import SearcherError
from determined_searchers.events import ExitReason
from determined_searchers.operations import Operation, ValidateAfter
from determined_searchers.settings import Form


class StoppingHalving(Halving):
    """``max_length`` with ``stop_once: true``, and every search with ``max_time``.

    The first trial at a rung always goes on, and so does one that equals the last within the
    share. An ended trial makes room for a new one.
    """

    def validation_completed(self, request_id: str, metric: Any, length: int) -> list[Operation]:
        return self.record(request_id, metric)

    def trial_reported(
        self, request_id: str, time: float | None, metric: Any, step: int | None
    ) -> list[Operation]:
        if time is None:
            raise SearcherError(
                f"trial {request_id} reported a validation without the searcher's time metric "
                f"{self.context.section.get('time_metric')!r}"
            )
        trial = self.trials[request_id]
        # One report may be the measurement for several rungs.
        while not trial.closed and time >= self.rungs[trial.rung].length:
            operations = self.record(request_id, metric)
            if operations:
                return operations
        return []

    def record(self, request_id: str, metric: float) -> list[Operation]:
        trial = self.trials[request_id]
        self.arrive(trial)
        rung = self.rungs[trial.rung]
        place = bisect_left(rung.entries, metric, key=lambda entry: entry.metric)
        entry = Entry(request_id, metric)
        rung.entries.insert(place, entry)
        if trial.exited:
            return self.start_if_any_left()
        within = place < max(int(len(rung.entries) / self.divisor), 1)
        if rung is self.rungs[-1] or not within:
            return [*self.end_trial(request_id), *self.start_if_any_left()]
        entry.promoted = True
        above = self.advance(trial)
        if self.context.form is Form.REPORTS:
            return []
        if above.length == rung.length:
            return self.record(request_id, metric)
        return [ValidateAfter(request_id, above.length)]

    def trial_closed(self, request_id: str, exited: ExitReason | None) -> list[Operation]:
        """A trial whose code ended before its next rung counts as one that exited, so that the
        rest of the search's trials are still tried (the original would never start them)."""
        operations = super().trial_closed(request_id, exited)
        trial = self.trials[request_id]
        if not trial.closed:
            operations += self.trial_exited(request_id, ExitReason.USER_REQUESTED_STOP)
        return operations
