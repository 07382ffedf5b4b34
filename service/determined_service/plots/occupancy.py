"""Assign trials to brackets, and count the trials that reached each rung."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from determined_searchers import SearcherError, create_searcher
from determined_searchers.settings import Form
from determined_service.plots.model import PlottedOutcome, PlottedTrial, Search

MOST_LENGTHS = 16
LIVE = (PlottedOutcome.RUNNING, PlottedOutcome.WAITING)


def ladders(config: Mapping[str, Any]) -> list[tuple[int, ...]]:
    """The lengths of each bracket's rungs, ascending, each once; [] for searches without rungs and
    for methods that are not installed here."""
    try:
        standings = create_searcher(config).standings()
    except SearcherError:
        return []
    return [tuple(sorted(set(standing.lengths))) for standing in standings]


@dataclass(frozen=True, slots=True)
class ComparedTrials:
    """Trials that are compared with each other. ``members``: its numbers in the search; several
    when their rungs are the same and nothing tells their trials apart."""

    members: tuple[int, ...]
    lengths: tuple[int, ...]  # ascending, each once

    @property
    def name(self) -> str:
        numbers = ", ".join(str(member + 1) for member in self.members)
        return f"bracket{'s' if len(self.members) > 1 else ''} {numbers}"


@dataclass(slots=True)
class Occupancy:
    """The numbers of trials at one rung: on their way to it, measured there and going on, or staying."""

    length: int
    on_the_way: int = 0
    went_on: int = 0
    waiting: int = 0
    ended: int = 0


@dataclass(slots=True)
class Table:
    """The rungs of one bracket; ``name`` "" when the search has one ladder for all."""

    name: str
    rungs: list[Occupancy] = field(default_factory=list)


def brackets(search: Search) -> list[ComparedTrials]:
    """Those of the search."""
    return [ComparedTrials((number,), ladder) for number, ladder in enumerate(search.ladders)]


def bracket_of(trial: PlottedTrial, found: Sequence[ComparedTrials]) -> ComparedTrials | None:
    """By the searcher's saved state or, in the operations form, by which of its targets a trial's
    present one is; None when that does not say."""
    if trial.bracket is not None:
        return next((one for one in found if trial.bracket in one.members), None)
    if len(found) == 1:
        return found[0]
    place = trial.targets - 1
    fitting = [
        one for one in found if 0 <= place < len(one.lengths) and one.lengths[place] == trial.target
    ]
    return fitting[0] if len(fitting) == 1 else None


def merge_equal(found: Sequence[ComparedTrials]) -> list[ComparedTrials]:
    """Brackets of the same lengths as one."""
    ladders: dict[tuple[int, ...], tuple[int, ...]] = {}
    for one in found:
        ladders[one.lengths] = (*ladders.get(one.lengths, ()), *one.members)
    return [ComparedTrials(members, lengths) for lengths, members in ladders.items()]


def rungs_by_trial(search: Search) -> dict[int, tuple[int, ...]]:
    """The lengths at which each trial is compared; () while its bracket is not known."""
    _, owners = _owners(search)
    return {
        trial.id: owner.lengths if owner else ()
        for trial, owner in zip(search.trials, owners, strict=True)
    }


def _owners(search: Search) -> tuple[list[ComparedTrials], list[ComparedTrials | None]]:
    """The brackets, and that of each trial; those that look the same are one if need be."""
    found = brackets(search)
    owners = [bracket_of(trial, found) for trial in search.trials]
    if None in owners:
        found = merge_equal(found)
        owners = [bracket_of(trial, found) for trial in search.trials]
    return found, owners


def occupancy(search: Search) -> list[Table]:
    """A table per bracket; one for all where brackets or trials' brackets are not known."""
    found, owners = _owners(search)
    lengths = tuple(sorted({length for one in found for length in one.lengths}))
    if not any(owners):
        return _one_table(search, lengths)
    tables = []
    for bracket in (*found, None):
        members = [t for t, owner in zip(search.trials, owners, strict=True) if owner is bracket]
        if bracket is not None:
            name = bracket.name if len(found) > 1 else ""
            tables.append(Table(name, _count(search, members, bracket.lengths)))
        elif members:
            # The searcher's saved state lags behind the newest trials.
            tables.append(Table("not known yet", _count(search, members, lengths)))
    return tables


def _one_table(search: Search, lengths: tuple[int, ...]) -> list[Table]:
    if not lengths and search.form is Form.OPERATIONS:
        targets = {trial.target for trial in search.trials if trial.target is not None}
        lengths = tuple(sorted(targets))
    if not lengths or len(lengths) > MOST_LENGTHS:
        return []
    return [Table("", _count(search, search.trials, lengths))]


def _count(
    search: Search, trials: Sequence[PlottedTrial], lengths: Sequence[int]
) -> list[Occupancy]:
    rungs = [Occupancy(length) for length in lengths]
    for trial in trials:
        last = None
        for rung in rungs:
            if _measured(search, trial, rung.length):
                rung.went_on += 1
                last = rung
            else:
                if _under_way(search, trial, rung.length):
                    rung.on_the_way += 1
                    last = None
                break
        if last is not None:
            last.went_on -= 1
            if trial.outcome in LIVE:
                last.waiting += 1
            else:
                last.ended += 1
    return rungs


def _measured(search: Search, trial: PlottedTrial, length: int) -> bool:
    if search.form is Form.REPORTS or trial.target is None:
        return trial.reached >= length
    return trial.reached >= length or trial.target > length


def _under_way(search: Search, trial: PlottedTrial, length: int) -> bool:
    """Towards ``length``, the lowest that it has not been measured at."""
    if trial.outcome not in LIVE:
        return False
    return search.form is Form.REPORTS or trial.target == length
