"""The search engine alone, without processes: CPU time per decision, and memory, by number of trials.

A row that names a search is all of it: hyperparameters are sampled, ids and seeds drawn, the books
kept on every trial's creation and end. "decisions alone" is the rule without these, called as the
peers' schedulers are: what theirs are compared with.

`python -m benchmarks search.engine`. With PEER_PYTHON naming an interpreter that has Ray Tune, Optuna
and Syne Tune, theirs too (at 10,000 trials, some minutes), with the same metrics and rungs at 1, 3, 9.

Each figure is from a process of its own. A search is run once to make up its events (up to 16 trials
have work at once, and their memory is the growth of the process, this loop's own included), and then
once more for the clock: create_searcher and handle, event by event.
"""

from __future__ import annotations

import gc
import itertools
import json
import os
import random
import resource
import subprocess
import sys
import time
from collections import deque
from pathlib import Path
from typing import Any, ClassVar

from determined_searchers import (
    Close,
    Create,
    Event,
    Form,
    Operation,
    SearchContext,
    Searcher,
    Stop,
    TrialClosed,
    TrialCreated,
    TrialReported,
    ValidateAfter,
    ValidationCompleted,
    create_searcher,
)
from determined_searchers.async_halving import AsyncHalving
from determined_searchers.space import Space
from determined_searchers.stream import RandomStream

SIZES = (1_000, 10_000, 100_000)
PEER_SIZE = 10_000
HALVING: dict[str, Any] = {"name": "async_halving", "num_rungs": 3, "max_length": 9}
SEARCHES: dict[str, dict[str, Any]] = {
    "promotion": HALVING,
    "stop_once": {**HALVING, "stop_once": True},
    "time metric": {**HALVING, "max_time": 9, "time_metric": "epochs"},
    "adaptive_asha": {"name": "adaptive_asha", "max_length": 9},
    "adaptive stop_once": {"name": "adaptive_asha", "max_length": 9, "stop_once": True},
}
DECIDE = "decisions alone"
PEERS = ("sorted_list", "ray", "optuna", "syne")
"""The first is no peer but a floor: the decision alone, with a sorted list per rung."""
SPACE = {
    "lr": {"type": "log", "base": 10, "minval": -4, "maxval": -0.5},
    "hidden": {"type": "categorical", "vals": [16, 32, 64, 128]},
}


def drive(section: dict[str, Any], trials: int) -> dict[str, Any]:
    """One search's figures."""
    config = {
        "searcher": {"metric": "loss", "max_trials": trials, "divisor": 3, **section},
        "hyperparameters": SPACE,
        "reproducibility": {"experiment_seed": 1},
    }
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    searcher, events = run(config)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory
    made = searcher.trials_requested
    del searcher
    gc.collect()
    gc.freeze()  # the events are not the engine's
    start = time.process_time()
    searcher = create_searcher(config)
    searcher.initial_operations()
    for event in events:
        searcher.handle(event)
    seconds = time.process_time() - start
    assert searcher.shutdown is not None
    return {
        "trials": made,
        "cpu_s": seconds,
        "decisions": sum(isinstance(e, (ValidationCompleted, TrialReported)) for e in events),
        "bytes_per_trial": 1024 * grown / made,
    }


def run(config: dict[str, Any]) -> tuple[Searcher, list[Event]]:
    """A whole search and its events. A trial's metric is its quality and some noise."""
    chance = random.Random(0).random
    quality: dict[str, float] = {}
    coming: deque[Event] = deque()
    past: list[Event] = []
    searcher = create_searcher(config)
    reports = searcher.form == "reports"
    operations: list[Operation] = searcher.initial_operations()
    while searcher.shutdown is None:
        for operation in operations:
            if isinstance(operation, Create):
                trial = operation.request_id
                quality[trial] = chance()
                coming.append(TrialCreated(trial))
                if reports:
                    coming.append(TrialReported(trial, 1, quality[trial] + 0.05 * chance()))
            elif isinstance(operation, ValidateAfter):
                trial = operation.request_id
                metric = quality[trial] + 0.05 * chance()
                coming.append(ValidationCompleted(trial, metric, operation.length))
            elif isinstance(operation, (Close, Stop)):
                coming.append(TrialClosed(operation.request_id))
                del quality[operation.request_id]
        event = coming.popleft()
        past.append(event)
        operations = searcher.handle(event)
        if isinstance(event, TrialReported):
            trial = event.request_id
            if not (operations and isinstance(operations[0], Stop)):
                metric = quality[trial] + 0.05 * chance()
                coming.append(TrialReported(trial, (event.time or 0) + 1, metric))
    return searcher, past


class Numbered(SearchContext):
    """Trials by number, without hyperparameters and seeds, as the peers' schedulers are given them."""

    numbers: ClassVar = itertools.count()

    def new_trial(self, hparams: dict[str, Any] | None = None, source: str | None = None) -> Create:
        return Create(str(next(self.numbers)), {}, 0, source=source)


def decide(trials: int) -> dict[str, Any]:
    """The stopping rule on reports at 1, 2 .. until stopped, one trial after the other."""
    section = {"max_trials": trials, "divisor": 3, **SEARCHES["time metric"]}
    context = Numbered(section, Space({}), RandomStream(1), Form.REPORTS, None)
    chance = random.Random(0).random
    decisions = 0
    start = time.process_time()
    method = AsyncHalving.from_config(context)
    waiting = deque(method.initial_operations())
    while waiting:
        create = waiting.popleft()
        assert isinstance(create, Create)
        trial = create.request_id
        quality = chance()
        epoch = 0
        operations: list[Operation] = []
        while not operations:
            epoch += 1
            metric = quality + 0.05 * chance()
            operations = method.trial_reported(trial, epoch, metric, epoch)
        decisions += epoch
        waiting.extend(operations[1:])  # after the Stop
        method.trial_closed(trial, None)
    return {"trials": trials, "cpu_s": time.process_time() - start, "decisions": decisions}


def apart(command: list[str]) -> dict[str, Any] | None:
    """The last line of a process' output, as JSON; None if it failed."""
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        return None
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def show(name: str, figures: dict[str, Any], ours: float | None = None) -> None:
    per_decision = 1e6 * figures["cpu_s"] / figures["decisions"]
    memory = f"{figures['bytes_per_trial']:,.0f}" if "bytes_per_trial" in figures else ""
    ratio = f"{figures['cpu_s'] / ours:,.1f} x" if ours else ""
    print(
        f"{name:20} {figures['trials']:>8,} {figures['cpu_s']:>9.3f} {per_decision:>12.1f} "
        f"{memory:>12} {ratio:>9}",
        flush=True,
    )


def main() -> None:
    print(
        f"{'':20} {'trials':>8} {'CPU s':>9} {'us/decision':>12} {'bytes/trial':>12} {'of ours':>9}"
    )
    ours = 0.0
    for name in [*SEARCHES, DECIDE]:
        for trials in SIZES:
            figures = apart([sys.executable, "-m", __spec__.name, name, str(trials)])
            if figures is None:
                raise SystemExit(f"the run of {name} with {trials} trials failed")
            show(name, figures)
            if (name, trials) == (DECIDE, PEER_SIZE):
                ours = figures["cpu_s"]
    python = os.environ.get("PEER_PYTHON")
    for peer in PEERS if python else PEERS[:1]:
        script = Path(__file__).parent / "peers" / f"engine_{peer}.py"
        figures = apart([python or sys.executable, str(script), str(PEER_SIZE)])
        if figures is None:
            print(f"{peer:20} not installed in {python}, or failed")
        else:
            show(peer, figures, ours)
    if not python:
        print("PEER_PYTHON is not set: no figures of Ray Tune, Optuna and Syne Tune")


if __name__ == "__main__":
    name, count = sys.argv[1], int(sys.argv[2])
    print(json.dumps(decide(count) if name == DECIDE else drive(SEARCHES[name], count)))
