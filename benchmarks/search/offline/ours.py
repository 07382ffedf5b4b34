"""Our searchers behind the simulator's interface, through the engine's public functions only."""

from __future__ import annotations

import math
from collections import deque
from typing import Any

from benchmarks.search.offline.simulator import Decision, EndReason, Job
from benchmarks.search.offline.space import Config, Param
from benchmarks.search.offline.tasks import MAX_EPOCHS, Task
from determined_searchers import (
    Close,
    Create,
    ExitReason,
    Operation,
    TrialClosed,
    TrialCreated,
    TrialExitedEarly,
    ValidateAfter,
    ValidationCompleted,
    create_searcher,
)

MANY = 1_000_000  # trials: more than any budget here can start
_ASHA = {"name": "adaptive_asha", "max_rungs": 5, "divisor": 3}
SEARCHERS: dict[str, dict[str, Any]] = {
    "random": {"name": "random"},
    **{
        f"{rule} {mode}": {**_ASHA, "mode": mode, "stop_once": rule == "stop_once"}
        for rule in ("promotion", "stop_once")
        for mode in ("aggressive", "standard", "conservative")
    },
    "tpe": {**_ASHA, "name": "tpe", "mode": "standard"},
}
"""The ``searcher`` section of each of our contenders, less what all have in common."""

OWN_SAMPLER = {"tpe"}


def make_search(name: str, task: Task, seed: int, workers: int) -> Search:
    """The contender ``name`` with a place for each worker."""
    return Search(
        {
            "searcher": {
                **SEARCHERS[name],
                "metric": "loss",
                "max_length": {"epochs": MAX_EPOCHS},
                "max_trials": MANY,
                "max_concurrent_trials": workers,
            },
            "hyperparameters": {param.name: _hyperparameter(param) for param in task.space},
            "reproducibility": {"experiment_seed": seed},
        },
        own_sampler=name in OWN_SAMPLER,
    )


def _hyperparameter(param: Param) -> dict[str, Any]:
    if param.kind == "choice":
        return {"type": "categorical", "vals": list(param.choices)}
    if param.kind == "log":
        low, high = math.log10(param.low), math.log10(param.high)
        return {"type": "log", "base": 10, "minval": low, "maxval": high}
    return {"type": "double", "minval": param.low, "maxval": param.high}


class _Trial:
    __slots__ = ("busy", "config", "number", "request_id", "stage", "target")

    def __init__(self, number: int, request_id: str, config: Config | None) -> None:
        self.number = number
        self.request_id = request_id
        self.config = config
        self.target: int | None = None  # epochs asked for
        self.busy = False  # on a worker
        self.stage = "open"  # then "closing", "closed"


class Search:
    """A search of the operations form as a cluster would run it: first come, first served."""

    def __init__(self, config: dict[str, Any], own_sampler: bool = False) -> None:
        self.searcher = create_searcher(config)
        self.own_sampler = own_sampler
        self.trials: list[_Trial] = []
        self.by_id: dict[str, _Trial] = {}
        self.ready: deque[_Trial] = deque()
        self.carry_out(self.searcher.initial_operations())

    def next_job(self) -> Job | None:
        if not self.ready:
            return None
        trial = self.ready.popleft()
        trial.busy = True
        return Job(trial.number, trial.config)

    def report(self, trial: int, epoch: int, loss: float) -> Decision:
        reporting = self.trials[trial]
        if epoch != reporting.target:
            return Decision.CONTINUE
        reporting.target = None
        event = ValidationCompleted(reporting.request_id, loss, epoch)
        self.carry_out(self.searcher.handle(event))
        if self.trials[trial].target is not None:
            return Decision.CONTINUE
        reporting.busy = False
        if reporting.stage == "open":
            return Decision.PAUSE
        self.close(reporting)
        return Decision.STOP

    def exited(self, trial: int, reason: EndReason) -> None:
        leaving = self.trials[trial]
        leaving.target = None
        why = ExitReason.INVALID_HP if reason is EndReason.INVALID else ExitReason.ERRORED
        self.carry_out(self.searcher.handle(TrialExitedEarly(leaving.request_id, why)))
        leaving.busy = False
        self.close(leaving)

    def close(self, trial: _Trial) -> None:
        if trial.stage != "closed":
            trial.stage = "closed"
            self.carry_out(self.searcher.handle(TrialClosed(trial.request_id)))
            del self.by_id[trial.request_id]

    def carry_out(self, operations: list[Operation]) -> None:
        for operation in operations:
            match operation:
                case Create():
                    config = operation.hparams if self.own_sampler else None
                    trial = _Trial(len(self.trials), operation.request_id, config)
                    self.trials.append(trial)
                    self.by_id[operation.request_id] = trial
                    self.carry_out(self.searcher.handle(TrialCreated(operation.request_id)))
                case ValidateAfter():
                    trial = self.by_id[operation.request_id]
                    trial.target = operation.length
                    if not trial.busy:
                        self.ready.append(trial)
                case Close():
                    trial = self.by_id[operation.request_id]
                    trial.stage = "closing"
                    if not trial.busy and trial.target is None:
                        self.close(trial)
                case _:
                    raise RuntimeError(f"{operation} from a search without an end")
