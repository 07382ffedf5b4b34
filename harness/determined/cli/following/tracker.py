"""The changes of an experiment between two polls: pure bookkeeping, no I/O, no clock."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from determined.cli.output import format as f
from determined.common.printable import counted

Json = Mapping[str, Any]

ENDS = frozenset({"COMPLETED", "CANCELED", "ERROR"})
_END_WORDS = {"COMPLETED": "completed in", "ERROR": "failed after", "CANCELED": "canceled after"}
# The reason of a normal end, which is not worth showing.
_USUAL_REASON = "process exited with code 0"
_QUIET = frozenset({"ACTIVE", "QUEUED", "PULLING", "STARTING", ""})


class Urgent(str):
    """The line of a change that is shown at once everywhere: a failure, or the experiment's new state."""


class Tracker:
    """Compares the service's answers with the earlier ones; describes each change in a line of text.

    Each :meth:`update` takes the trials from index :attr:`offset` on, ordered by their ids. The trials
    before it have ended, so they need not be fetched again.
    """

    def __init__(self) -> None:
        self.experiment: Json = {}
        self.trials: dict[int, Json] = {}
        self.best: Json | None = None
        self.offset = 0
        self._started: set[int] = set()

    @property
    def state(self) -> str:
        """The experiment's state, without its prefix."""
        return f.state(self.experiment.get("state"))

    @property
    def ended(self) -> bool:
        return self.state in ENDS

    @property
    def metric(self) -> str:
        """The name of the searcher's metric."""
        return str(self._searcher().get("metric") or "metric")

    def counts(self) -> Counter[str]:
        """Trials by state."""
        return Counter(f.state(trial["state"]) for trial in self.trials.values())

    def update(self, experiment: Json, trials: Iterable[Json]) -> list[str]:
        """Takes the service's latest answers; returns a line for each change."""
        events = self._experiment_events(experiment)
        listed = list(trials)
        for trial in listed:
            events += self._trial_events(self.trials.get(trial["id"]), trial)
            self.trials[trial["id"]] = trial
        for trial in listed:
            if f.state(trial["state"]) not in ENDS:
                break
            self.offset += 1
        return events

    def _searcher(self) -> Json:
        config = self.experiment.get("config") or {}
        found: Json = config.get("searcher") or {}
        return found

    def _experiment_events(self, experiment: Json) -> list[str]:
        before, self.experiment = self.state, experiment
        if self.state == before or self.ended or self.state in _QUIET or before in _QUIET:
            return []
        return [Urgent(f"experiment {experiment['id']} {self.state.lower().replace('_', ' ')}")]

    def _trial_events(self, before: Json | None, trial: Json) -> list[str]:
        events = []
        name = f"trial {trial['id']}"
        was, now = f.state(before["state"] if before else ""), f.state(trial["state"])
        # A short run may start and fail between two polls.
        ran = now not in _QUIET or bool(trial.get("restarts"))
        if ran and trial["id"] not in self._started:
            self._started.add(trial["id"])
            hparams = f.pairs(trial.get("hparams") or {})
            events.append(f"{name} started{': ' if hparams else ''}{hparams}")
        events += self._run_events(name, before or {}, trial)
        value = trial.get("searcherMetricValue")
        if value is not None and (before is None or before.get("searcherMetricValue") != value):
            events += self._metric_event(name, trial, value)
        if now in ENDS and was != now:
            events.append(self._end(name, trial, now))
        elif now == "PAUSED" and was != now:
            events.append(f"{name} paused")
        return events

    @staticmethod
    def _run_events(name: str, before: Json, trial: Json) -> list[str]:
        """A line for a failure that counts against ``max_restarts``, or for another new run."""

        def grown(key: str) -> bool:
            return key in before and (trial.get(key) or 0) > (before[key] or 0)

        if f.state(trial["state"]) in ENDS:
            return []
        if grown("restarts"):
            why = f": {trial['reason']}" if trial.get("reason") else ""
            return [
                Urgent(f"{name} failed and is started again (restart {trial['restarts']}){why}")
            ]
        if grown("runCount") and before["runCount"]:
            return [f"{name} continues (run {trial['runCount']})"]
        return []

    def _metric_event(self, name: str, trial: Json, value: Any) -> list[str]:
        best = self.best is None or self.best["id"] == trial["id"] or self._better(value)
        if best:
            self.best = trial
        shown = f"{self.metric} {f.number(value)}"
        steps = (trial.get("bestValidation") or {}).get("totalBatches")
        after = f" after {counted(steps, 'step')}" if steps is not None else ""
        return [f"{name}: {shown}{after}{', the best so far' if best else ''}"]

    def _better(self, value: float) -> bool:
        assert self.best is not None
        known = self.best["searcherMetricValue"]
        smaller = self._searcher().get("smaller_is_better", True)
        return bool(value < known if smaller else value > known)

    def _end(self, name: str, trial: Json, state: str) -> str:
        line = f"{name} {_END_WORDS[state]} {f.duration(trial.get('wallClockTime') or 0.0)}"
        reason = trial.get("reason")
        shown = line if not reason or reason == _USUAL_REASON else f"{line}: {reason}"
        return Urgent(shown) if state == "ERROR" else shown

    def refresh_best(self) -> None:
        """Takes the best trial from the service's answer; call it after the experiment's end."""
        known = self.experiment.get("bestTrialId")
        if known in self.trials:
            self.best = self.trials[known]
