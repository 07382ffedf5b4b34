"""Previews a search: the trials and lengths it will ask for, before anything runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from determined_searchers.errors import SearcherError
from determined_searchers.method import BracketStanding
from determined_searchers.operations import Create, Operation
from determined_searchers.searcher import Searcher, create_searcher
from determined_searchers.settings import Form, read_divisor, read_unit
from determined_searchers.simulation import SimulationResult, simulate
from determined_searchers.space import Space

MOST_TRIALS = 100_000
"""Larger searches are refused: a preview answers within seconds."""

Lengths = tuple[int, ...]


@dataclass(frozen=True)
class RungPreview:
    """One bracket of the search; searches without rungs have a single bracket of one.

    Attributes:
        lengths: the lengths at which trials are compared, in units of the preview; None: at their own end.
        trials: how many are measured at each, in the simulated search. max_concurrent: how many of them may
        have work at the same time.
    """

    lengths: tuple[int | None, ...]
    trials: tuple[int, ...]
    max_concurrent: int


@dataclass(frozen=True)
class Preview:
    """The size of a search, from a simulation with random metrics and as many workers as it uses.

    If the search decides by metrics, the number of trials at each length depends on them: another seed
    gives other numbers, the same seed always gives the same.

    Attributes:
        form: "operations" or "reports".
        trials: how many the search makes, if none is invalid.
        breakdown: (how many trials, the lengths at which each of them is validated), by lengths;
            no lengths: trained to the end of their own code.
        training_times: (how many trials, total length or None: to completion), by length. By the
            closed form: at each rung of n trials the best 1/divisor (at least one) go on.
        rungs: the brackets. peak_trials: how many trials train at the same time at most. total_units:
        length trained by all trials together; None if the trials decide. unit: the unit of all lengths:
        batches, records, epochs or the name of the time metric; None if the configuration does not say.
    """

    form: str
    trials: int
    breakdown: list[tuple[int, Lengths]]
    training_times: list[tuple[int, int | None]]
    rungs: list[RungPreview]
    peak_trials: int
    total_units: int | None
    unit: str | None

    def to_json(self) -> dict[str, Any]:
        """The preview as a JSON object."""
        return {
            "form": self.form,
            "trials": self.trials,
            "breakdown": [
                {"trials": count, "lengths": list(lengths)} for count, lengths in self.breakdown
            ],
            "training_times": [
                {"trials": count, "length": length} for count, length in self.training_times
            ],
            "rungs": [
                {
                    "lengths": list(bracket.lengths),
                    "trials": list(bracket.trials),
                    "max_concurrent": bracket.max_concurrent,
                }
                for bracket in self.rungs
            ],
            "peak_trials": self.peak_trials,
            "total_units": self.total_units,
            "unit": self.unit,
        }


def preview(config: Mapping[str, Any], seed: int = 0) -> Preview:
    """Preview the search of ``config`` by a simulation with metrics from ``seed``.

    Raises SearcherError for a configuration that is refused, for a search that only its own
    program knows (``custom``), and for more than :data:`MOST_TRIALS` trials.
    """
    section = config.get("searcher")
    if isinstance(section, Mapping) and section.get("name") == "custom":
        raise SearcherError(
            "searcher.name: a custom searcher cannot be previewed, because the program that "
            "runs it decides which trials there are"
        )
    seeded = {**config, "reproducibility": {"experiment_seed": seed}}
    searcher = create_searcher(seeded)
    section = config["searcher"]
    _refuse_large(config)
    brackets = searcher.standings()
    lengths = sorted({length for bracket in brackets for length in bracket.lengths})
    timed = searcher.form is Form.REPORTS and section.get("max_time") is not None
    run, last = _simulate(seeded, lengths or ([section["max_time"]] if timed else None))
    if brackets:
        brackets = last.standings()
        reached = _lengths_reached(brackets)
        ends = _closed_form(brackets, read_divisor(section))
    elif searcher.form is Form.OPERATIONS:
        reached = {trial.request_id: tuple(trial.lengths) for trial in run.trials}
        ends = Counter(lengths[-1] if lengths else None for lengths in reached.values())
    else:
        reached = {trial.request_id: () for trial in run.trials}
        ends = Counter({None: len(run.trials)})
    breakdown = Counter(reached[trial.request_id] for trial in run.trials)
    return Preview(
        form=searcher.form.value,
        trials=len(run.trials),
        breakdown=[(count, lengths) for lengths, count in sorted(breakdown.items())],
        training_times=[
            (count, length)
            for length, count in sorted(ends.items(), key=lambda item: (item[0] is None, item[0]))
        ],
        rungs=[_rungs(bracket) for bracket in brackets] or [_one_bracket(run, reached)],
        peak_trials=run.peak_trials,
        total_units=(
            sum(lengths[-1] for lengths in reached.values() if lengths)
            if brackets or searcher.form is Form.OPERATIONS
            else None
        ),
        unit=read_unit(section),
    )


def _refuse_large(config: Mapping[str, Any]) -> None:
    """Refuse searches whose first operations alone are too many. Others are refused while they are
    simulated.
    """
    section = config["searcher"]
    for field in ("max_trials", "population_size"):
        count = section.get(field)
        if isinstance(count, int) and count > MOST_TRIALS:
            raise SearcherError(
                f"searcher.{field}: {count} trials are too many to preview (at most {MOST_TRIALS})"
            )
    if section["name"] == "grid":
        points = len(Space(config.get("hyperparameters")).grid())
        if points > MOST_TRIALS:
            raise SearcherError(
                f"hyperparameters: a grid of {points} points is too large to preview (at most "
                f"{MOST_TRIALS})"
            )


def _simulate(
    config: Mapping[str, Any], report_times: list[int] | None
) -> tuple[SimulationResult, Searcher]:
    """The simulated search, and its searcher at the end."""
    seen: list[Searcher] = []
    made = 0

    def watch(searcher: Searcher, _: Any, operations: list[Operation]) -> None:
        nonlocal made
        seen[:] = [searcher]
        made += sum(isinstance(operation, Create) for operation in operations)
        if made > MOST_TRIALS:
            raise SearcherError(f"more than {MOST_TRIALS} trials are too many to preview")

    run = simulate(config, report_times=report_times, observe=watch)
    if run.error is not None:
        raise SearcherError(run.error)
    return run, seen[0]


def _lengths_reached(brackets: list[BracketStanding]) -> dict[str, Lengths]:
    """By trial, the lengths it was measured at; rungs that coincide count once."""
    reached: dict[str, Lengths] = {}
    for bracket in brackets:
        for length, trials in zip(bracket.lengths, bracket.measured, strict=True):
            for trial in trials:
                before = reached.get(trial, ())
                if before[-1:] != (length,):
                    reached[trial] = (*before, length)
    return reached


def _closed_form(brackets: list[BracketStanding], divisor: float) -> Counter[int | None]:
    """The number of trials that end at each length if every rung lets exactly its share go on.

    The table of the reports form is made as upstream makes it: at least one trial goes on, even from a rung
    without trials, so a rung may have a row of 0 trials.
    """
    ends: Counter[int | None] = Counter()
    for bracket in brackets:
        left = bracket.max_trials
        for length in bracket.lengths[:-1]:
            going_on = max(int(left / divisor), 1)
            ends[length] += left - going_on
            left = going_on
        ends[bracket.lengths[-1]] += left
    return ends


def _rungs(bracket: BracketStanding) -> RungPreview:
    return RungPreview(
        lengths=bracket.lengths,
        trials=tuple(len(trials) for trials in bracket.measured),
        max_concurrent=min(bracket.max_concurrent, bracket.max_trials),
    )


def _one_bracket(run: SimulationResult, reached: Mapping[str, Lengths]) -> RungPreview:
    """The rungs of a search without brackets: every length at which any trial is validated."""
    at = Counter(length for lengths in reached.values() for length in lengths)
    if not at:
        return RungPreview((None,), (len(run.trials),), run.peak_trials)
    lengths = sorted(at)
    return RungPreview(tuple(lengths), tuple(at[length] for length in lengths), run.peak_trials)
