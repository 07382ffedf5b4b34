"""ASHA by promotion: trials pause at every rung, and the best 1/divisor of a rung go on."""

from __future__ import annotations

from bisect import bisect_right
from typing import Any

from determined_searchers.asha import Entry, Halving, Rung
from determined_searchers.metrics import WORST
from determined_searchers.operations import Operation, ValidateAfter


class PromotingHalving(Halving):
    """``max_length`` with ``stop_once: false``.

    Each measurement leads to at most one promotion, of the measured trial or of one paused in the
    same rung; without any, to a new trial. Trials that were never promoted are closed when the
    bottom rung is full and nobody is on the way to theirs: until then another's result may still
    move them up.
    """

    def validation_completed(self, request_id: str, metric: Any, length: int) -> list[Operation]:
        return self.record(request_id, metric)

    def record(self, request_id: str, metric: float) -> list[Operation]:
        operations = self._measure(request_id, metric)
        if len(self.rungs[0].entries) == self.bracket.max_trials:
            operations += self._close_out()
        return operations

    def _measure(self, request_id: str, metric: float) -> list[Operation]:
        """Promotes, closes or creates. A promoted trial that has exited is measured at once in
        the next rung, as the worst, and so is one whose next rung is no longer than this one, with
        the metric it has; that may go on up the rungs."""
        while True:
            trial = self.trials[request_id]
            self.arrive(trial)
            rung = self.rungs[trial.rung]
            rung.swept = False
            if rung is self.rungs[-1]:
                rung.entries.append(Entry(request_id, metric))
                ended = [] if trial.exited else self.end_trial(request_id)
                return ended + self.start_if_any_left()
            chosen = self._choose(rung, Entry(request_id, metric))
            if chosen is None:
                return self.start_if_any_left()
            chosen.promoted = True
            request_id = chosen.request_id
            promoted = self.trials[request_id]
            above = self.advance(promoted)
            if not promoted.exited and above.length > rung.length:
                return [ValidateAfter(request_id, above.length)]
            metric = WORST if promoted.exited else chosen.metric

    def _choose(self, rung: Rung, new: Entry) -> Entry | None:
        """Inserts ``new`` (after its equals) and says which of the rung is to be promoted.

        The new one, if it is among the best 1/divisor; else, when this measurement made that share
        grow by one, the one that now is the last within it.
        """
        count = len(rung.entries)
        before, quota = int(count / self.divisor), int((count + 1) / self.divisor)
        place = bisect_right(rung.entries, new.metric, key=lambda entry: entry.metric)
        rung.entries.insert(place, new)
        if place < quota:
            return new
        other = rung.entries[before]
        if quota == before or other.promoted or self._gone(other):
            return None
        return other

    def _gone(self, entry: Entry) -> bool:
        """Closed in a full rung before a replacement of an invalid trial came this far."""
        trial = self.trials[entry.request_id]
        return trial.closed and not trial.exited

    def _close_out(self) -> list[Operation]:
        operations: list[Operation] = []
        for rung in self.rungs:
            if rung.outstanding:
                break
            if rung.swept:
                continue
            rung.swept = True
            for entry in rung.entries:
                trial = self.trials[entry.request_id]
                if not (entry.promoted or trial.closed or trial.exited):
                    operations += self.end_trial(entry.request_id)
        return operations
