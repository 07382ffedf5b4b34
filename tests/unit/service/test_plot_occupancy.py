"""The rung and the bracket of a trial, from its rows."""

from __future__ import annotations

import pytest

from determined_service.plots.model import PlottedOutcome, PlottedTrial, Search
from determined_service.plots.occupancy import Occupancy, brackets, ladders, occupancy
from tests.unit.service.plotted import config, search


def trial(
    number: int,
    outcome: PlottedOutcome = PlottedOutcome.STOPPED,
    *,
    target: int | None = None,
    targets: int = 0,
    done: bool = True,
    time: float = 0.0,
    bracket: int | None = None,
) -> PlottedTrial:
    """In the operations form: its last target, the how-manieth, and whether it was measured there;
    in the reports form: the largest time metric."""
    reached = float(target or 0) if done else 0.0
    return PlottedTrial(
        number,
        f"r{number}",
        outcome,
        {},
        target=target,
        targets=targets,
        reached=time or reached,
        bracket=bracket,
    )


def halving(**searcher: object) -> Search:
    """Rungs 1, 3, 9 for all trials."""
    return search(config=config(name="async_halving", num_rungs=3, **searcher))


def test_ladders_are_the_searchers() -> None:
    assert ladders(config()) == [(1, 3, 9), (3, 9)]
    assert ladders(config(name="async_halving", num_rungs=3)) == [(1, 3, 9)]
    # Short lengths make the lowest rungs coincide.
    assert ladders(config(name="async_halving", num_rungs=4, max_length={"epochs": 3})) == [(1, 3)]
    assert ladders(config(name="random")) == []
    assert ladders(config(name="no-such-searcher")) == []


def test_every_way_to_be_at_a_rung() -> None:
    made = halving()
    made.trials = [
        trial(1, PlottedOutcome.RUNNING, target=1, targets=1, done=False),
        trial(2, PlottedOutcome.WAITING, target=1, targets=1),
        trial(3, target=1, targets=1),
        trial(4, PlottedOutcome.RUNNING, target=3, targets=2, done=False),
        trial(5, PlottedOutcome.FAILED, target=3, targets=2, done=False),
        trial(6, PlottedOutcome.COMPLETED, target=9, targets=3),
    ]
    (table,) = occupancy(made)
    assert table.name == ""
    assert table.rungs == [
        Occupancy(1, on_the_way=1, went_on=2, waiting=1, ended=2),
        Occupancy(3, on_the_way=1, went_on=1),
        Occupancy(9, ended=1),
    ]


@pytest.mark.parametrize("saved", [True, False])
def test_brackets_by_the_saved_search_or_by_the_targets(saved: bool) -> None:
    made = search()
    made.trials = [
        trial(1, target=3, targets=2, bracket=0 if saved else None),
        trial(2, target=3, targets=1, bracket=1 if saved else None),
        trial(
            3, PlottedOutcome.RUNNING, target=9, targets=2, done=False, bracket=1 if saved else None
        ),
    ]
    first, second = occupancy(made)
    assert (first.name, second.name) == ("bracket 1", "bracket 2")
    assert first.rungs == [Occupancy(1, went_on=1), Occupancy(3, ended=1), Occupancy(9)]
    assert second.rungs == [Occupancy(3, ended=1, went_on=1), Occupancy(9, on_the_way=1)]


def test_brackets_that_look_the_same_are_one() -> None:
    made = search(config=config(bracket_rungs=[5, 4], max_length={"epochs": 9}))
    assert [bracket.lengths for bracket in brackets(made)] == [(1, 3, 9), (1, 3, 9)]
    made.trials = [trial(1, target=3, targets=2)]
    (table,) = occupancy(made)
    assert table.rungs == [Occupancy(1, went_on=1), Occupancy(3, ended=1), Occupancy(9)]


def test_the_reports_form_counts_by_the_time_metric() -> None:
    made = search(config=config(max_length=None, max_time=9, time_metric="epochs"))
    made.trials = [
        trial(1, time=1, bracket=0),
        trial(2, PlottedOutcome.RUNNING, time=4, bracket=0),
        trial(3, PlottedOutcome.RUNNING, time=0.5),
    ]
    tables = {table.name: table.rungs for table in occupancy(made)}
    assert list(tables) == ["bracket 1", "bracket 2", "not known yet"]
    # It is past 3, so on its way to 9.
    assert tables["bracket 1"] == [
        Occupancy(1, went_on=1, ended=1),
        Occupancy(3, went_on=1),
        Occupancy(9, on_the_way=1),
    ]
    assert tables["not known yet"][0] == Occupancy(1, on_the_way=1)


def test_without_brackets_every_target_is_a_rung() -> None:
    made = search(config=config(name="random"))
    made.trials = [
        trial(1, PlottedOutcome.COMPLETED, target=9, targets=1),
        trial(2, PlottedOutcome.RUNNING, target=9, targets=1, done=False),
    ]
    (table,) = occupancy(made)
    assert table.rungs == [Occupancy(9, on_the_way=1, ended=1)]
