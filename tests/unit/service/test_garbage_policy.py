"""The checkpoints that a policy keeps, compared with a definition that only counts better ones."""

from __future__ import annotations

import datetime
import math
import uuid

from hypothesis import given
from hypothesis import strategies as st

from determined_service.deleting.garbage import Candidate, KeepPolicy, keep

START = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)

losses = st.one_of(
    st.none(),
    st.sampled_from([0.0, 1.0, -1.0, math.nan, math.inf, -math.inf]),
    st.floats(allow_nan=False, allow_infinity=False),
)


@st.composite
def candidates(draw: st.DrawFn) -> list[Candidate]:
    without_metric = draw(st.sets(st.integers(1, 3)))
    found = draw(
        st.lists(
            st.tuples(st.integers(1, 3), st.integers(0, 4), losses, st.integers(0, 3)), max_size=12
        )
    )
    return [
        Candidate(
            uuid.UUID(int=number),
            trial,
            steps,
            START + datetime.timedelta(seconds=seconds),
            loss,
            # Several checkpoints of one step share their validation.
            None if loss is None else 100 + trial * 10 + steps,
            unnamed=trial in without_metric,
        )
        for number, (trial, steps, given, seconds) in enumerate(found)
        for loss in [None if trial in without_metric else given]
    ]


def has_metric(candidate: Candidate) -> bool:
    return candidate.loss is not None and math.isfinite(candidate.loss)


def is_better(a: Candidate, b: Candidate) -> bool:
    if not has_metric(a) or not has_metric(b):
        return has_metric(a)
    return (a.loss, a.validation_id, a.report_time, a.uuid) < (
        b.loss,
        b.validation_id,
        b.report_time,
        b.uuid,
    )


def is_later(a: Candidate, b: Candidate) -> bool:
    return (a.steps_completed, a.report_time, a.uuid) > (b.steps_completed, b.report_time, b.uuid)


@given(candidates(), st.integers(0, 4), st.integers(0, 4), st.integers(0, 4))
def test_by_counting_the_requests_ahead(
    given: list[Candidate], experiment_best: int, trial_best: int, trial_latest: int
) -> None:
    expected = set()
    known = any(has_metric(one) for one in given)
    for one in given:
        siblings = [other for other in given if other.trial_id == one.trial_id and other is not one]
        others = [other for other in given if other is not one]
        if (
            (has_metric(one) and sum(is_better(o, one) for o in others) < experiment_best)
            or (has_metric(one) and sum(is_better(o, one) for o in siblings) < trial_best)
            or sum(is_later(o, one) for o in siblings) < trial_latest
        ):
            expected.add(one.uuid)
        wanted = trial_best > 0 or (experiment_best > 0 and not known)
        unknown = wanted and not any(map(has_metric, [one, *siblings]))
        if unknown and (one.unnamed or not any(is_later(o, one) for o in siblings)):
            expected.add(one.uuid)
    assert keep(given, KeepPolicy(experiment_best, trial_best, trial_latest)) == expected


def test_the_defaults_of_a_section() -> None:
    assert KeepPolicy.of({"type": "shared_fs", "host_path": "/x"}) == KeepPolicy(0, 1, 1)
    assert KeepPolicy.of({"save_experiment_best": 3, "save_trial_latest": None}) == KeepPolicy(
        3, 1, 1
    )


def test_of_equally_good_ones_the_first_validated_stays() -> None:
    first, second = (
        Candidate(uuid.UUID(int=9 - number), number, 1, START, 0.5, 10 + number)
        for number in range(2)
    )
    assert keep([second, first], KeepPolicy(1, 0, 0)) == {first.uuid}


def of_steps(*losses: float | None, trial: int = 1, unnamed: bool = False) -> list[Candidate]:
    return [
        Candidate(
            uuid.UUID(int=trial * 100 + steps),
            trial,
            steps,
            START,
            loss,
            None if loss is None else steps,
            unnamed,
        )
        for steps, loss in enumerate(losses, 1)
    ]


def kept(given: list[Candidate], policy: KeepPolicy) -> list[int]:
    found = keep(given, policy)
    return [one.steps_completed for one in given if one.uuid in found]


BEST_ONLY = KeepPolicy(save_experiment_best=1, save_trial_best=1, save_trial_latest=0)


def test_nothing_goes_of_a_trial_that_never_reported_the_metric() -> None:
    assert kept(of_steps(None, None, None, unnamed=True), BEST_ONLY) == [1, 2, 3]
    assert kept(of_steps(None, None, None, unnamed=True), KeepPolicy()) == [1, 2, 3]


def test_a_trial_of_nothing_but_nan_keeps_its_last() -> None:
    assert kept(of_steps(math.nan, math.inf, math.nan), BEST_ONLY) == [3]


def test_of_checkpoints_at_other_steps_than_validations_the_last_stays() -> None:
    assert kept(of_steps(None, None, None), BEST_ONLY) == [3]


def test_a_policy_without_best_keeps_none() -> None:
    nothing = KeepPolicy(0, 0, 0)
    assert kept(of_steps(None, None, unnamed=True), nothing) == []
    assert kept(of_steps(math.nan, math.nan), nothing) == []
    assert kept(of_steps(None, None, unnamed=True), KeepPolicy(0, 0, 1)) == [2]


def test_the_best_of_an_experiment_is_known_without_a_trial_of_nan() -> None:
    given = of_steps(math.nan, math.nan) + of_steps(0.5, 0.25, trial=2)
    found = keep(given, KeepPolicy(save_experiment_best=1, save_trial_best=0, save_trial_latest=0))
    assert found == {given[-1].uuid}
