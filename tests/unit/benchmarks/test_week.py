"""The week in virtual time: no trial is lost, and the measures match the events."""

from __future__ import annotations

import pytest

from benchmarks.week import SCHEDULERS
from benchmarks.week.cluster import RESTORE_S, SAVE_S, replay
from benchmarks.week.measures import jain, quantile
from benchmarks.week.trace import DAY_S, LONGEST_S, WEEK_S, Experiment, Trial, draw


def experiment(
    number: int, submitted: float, slots: int, *durations: float, priority: int = 42
) -> Experiment:
    trials = tuple(Trial(f"{number}.{n}", taken) for n, taken in enumerate(durations))
    return Experiment(number, 0, submitted, slots, priority, 1.0, len(trials), trials)


def test_a_trace_is_the_seeds() -> None:
    first, again = draw(5), draw(5)
    assert [one.trials for one in first] == [one.trials for one in again]
    assert [one.submitted for one in first] == sorted(one.submitted for one in first)
    assert all(0 <= one.submitted < WEEK_S for one in first)
    assert max(trial.duration for one in first for trial in one.trials) <= LONGEST_S


@pytest.mark.parametrize("name", SCHEDULERS)
def test_every_trial_ends_and_all_work_is_done_once(name: str) -> None:
    trace = [one for one in draw(5) if one.submitted < DAY_S / 2][:15]
    found = replay(SCHEDULERS[name], trace)
    assert set(found.ends) == set(trace)
    assert sum(map(len, found.waits.values())) == sum(len(one.trials) for one in trace)
    work = sum(one.work for one in trace)
    assert sum(found.by_hour.values()) == pytest.approx(work)


def test_a_preempted_trial_goes_on_later() -> None:
    """Eight agents are full; one trial of the least important experiment makes room."""
    full = experiment(1, 0.0, 8, *[1000.0] * 8, priority=50)
    urgent = experiment(2, 100.0, 8, 500.0, priority=1)
    found = replay(SCHEDULERS["priority, preemption"], [full, urgent])
    assert found.preemptions == 1
    assert found.waits[1] == [SAVE_S]
    assert found.ends[urgent] == 100 + SAVE_S + 500
    assert found.ends[full] == found.ends[urgent] + RESTORE_S + 900
    assert found.useful == 8 * (8 * 1000 + 500)
    assert found.held == found.useful + 8 * (SAVE_S + RESTORE_S)


def test_the_measures() -> None:
    assert jain([2.0, 2.0, 2.0]) == 1
    assert jain([3.0, 0.0, 0.0]) == pytest.approx(1 / 3)
    assert quantile([5, 1, 3], 0.5) == 3
    assert quantile([], 0.5) == 0
