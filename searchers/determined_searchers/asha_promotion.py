"""ASHA by promotion: trials pause at every rung, and the best 1/divisor of a rung go on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from determined_searchers.asha import Halving
from determined_searchers.brackets import Bracket
from determined_searchers.method import SearchContext
from determined_searchers.metrics import WORST
from determined_searchers.operations import Close, Operation, ValidateAfter
from determined_searchers.rung import Entry


class PromotingHalving(Halving):
    """``max_length`` with ``stop_once: false``.

    Each measurement leads to at most one promotion, of the measured trial or of a trial paused in the same
    rung. If it leads to none, a new trial is created. Trials that were never promoted are closed when the
    bottom rung is full and no trial is on the way to their rung: until then another trial's result may
    still promote them.
    """

    at_least = 0
    equals_first = False

    def __init__(self, context: SearchContext, bracket: Bracket, divisor: float) -> None:
        super().__init__(context, bracket, divisor)
        # By rung, the trials measured since paused ones were last closed there (a hint, not saved).
        self._fresh: list[list[Entry]] = [[] for _ in self.rungs]

    def record(self, trial: str, metric: float) -> list[Operation]:
        """Handle that the trial was measured at its next rung."""
        operations = self._measure(trial, metric)
        if self.rungs[0].measured == self.bracket.max_trials:
            operations += self._close_out()
        return operations

    def _measure(self, trial: str, metric: float) -> list[Operation]:
        """Promote, close or create trials. A promoted trial that has exited is measured at once in the next
        rung, as the worst. A promoted trial whose next rung is no longer than this rung is measured there
        at once with its present metric. Either may repeat up the rungs.
        """
        while True:
            place = self.trial_rung[trial]
            rung = self.arrive(trial)
            entry = rung.entry(trial, metric)
            self._fresh[place].append(entry)
            chosen = rung.add(entry)
            if rung is self.rungs[-1]:
                ended = [] if trial in self.exited else self.end_trial(trial)
                return ended + self.start_if_any_left()
            if chosen is None or not self._waits(chosen[2], place):
                return self.start_if_any_left()
            metric, _, trial = chosen
            above = self.advance(trial)
            if trial in self.exited:
                metric = WORST
            elif above.length > rung.length:
                return [ValidateAfter(trial, above.length)]

    def _waits(self, trial: str, place: int) -> bool:
        """True if a trial can be promoted: it is neither promoted already, nor was it closed in a full rung
        before the replacement of an invalid trial came this far."""
        return self.trial_rung[trial] == place and (
            trial not in self.closed or trial in self.exited
        )

    def _close_out(self) -> list[Operation]:
        operations: list[Operation] = []
        for place, rung in enumerate(self.rungs):
            if rung.outstanding:
                break
            waiting = [
                entry
                for entry in self._fresh[place]
                if self.trial_rung[entry[2]] == place and entry[2] not in self.closed
            ]
            self._fresh[place].clear()
            self.closed.update(trial for _, _, trial in waiting)
            waiting.sort()
            operations += [Close(trial) for _, _, trial in waiting]
        return operations

    def load(self, state: Mapping[str, Any]) -> None:
        super().load(state)
        self._fresh = [rung.ranking() for rung in self.rungs]
