"""preview(): how many trials, how far, how many at a time, before anything runs."""

from __future__ import annotations

import json
from typing import Any

import pytest
from search_configs import config

from determined_searchers import SearcherError
from determined_searchers.preview import RungPreview, preview

ADAPTIVE = {"max_trials": 16, "max_length": {"batches": 1000}}
TIMED = {"max_trials": 16, "max_time": 1000, "time_metric": "batches"}


@pytest.mark.parametrize(
    ("fields", "length", "unit"),
    [
        ({"max_length": {"epochs": 5}}, 5, "epochs"),
        ({"max_length": {"batches": None, "records": 5}}, 5, "records"),
        ({"max_length": 5}, 5, None),
    ],
)
def test_a_search_that_trains_every_trial_to_the_end(fields: Any, length: int, unit: Any) -> None:
    seen = preview(config("random", max_trials=20, max_concurrent_trials=3, **fields))
    assert (seen.form, seen.trials, seen.unit) == ("operations", 20, unit)
    assert seen.breakdown == [(20, (length,))]
    assert seen.training_times == [(20, length)]
    assert seen.rungs == [RungPreview((length,), (20,), 3)]
    assert (seen.peak_trials, seen.total_units) == (3, 100)


@pytest.mark.parametrize(
    ("name", "fields", "trials"),
    [
        ("single", {}, 1),
        ("grid", {}, 12),
        ("random", {"max_trials": 7}, 7),
        ("random", {"max_trials": 7, "max_time": 9, "time_metric": "steps"}, 7),
    ],
)
def test_trials_that_end_by_themselves(name: str, fields: Any, trials: int) -> None:
    seen = preview(config(name, **fields))
    assert (seen.form, seen.trials, seen.total_units) == ("reports", trials, None)
    assert seen.unit == fields.get("time_metric")
    assert seen.breakdown == [(trials, ())]
    assert seen.training_times == [(trials, None)]
    assert seen.rungs == [RungPreview((None,), (trials,), trials)]


@pytest.mark.parametrize("fields", [ADAPTIVE, {**ADAPTIVE, "stop_once": True}, TIMED])
def test_the_numbers_of_a_halving_search_fit_together(fields: Any) -> None:
    seen = preview(config("adaptive_asha", **fields))
    assert seen.unit == "batches"
    assert [(rung.lengths, rung.trials[0]) for rung in seen.rungs] == [
        ((62, 250, 1000), 12),
        ((250, 1000), 4),
    ]
    assert seen.trials == sum(count for count, _ in seen.breakdown) == 16
    for bracket in seen.rungs:
        for i, length in enumerate(bracket.lengths):
            path = bracket.lengths[: i + 1]
            came = sum(n for n, lengths in seen.breakdown if lengths[: i + 1] == path)
            assert (length, bracket.trials[i]) == (length, came)
    assert seen.total_units == sum(count * lengths[-1] for count, lengths in seen.breakdown)
    assert [lengths for _, lengths in seen.breakdown] == sorted(
        lengths for _, lengths in seen.breakdown
    )


def test_training_times_in_closed_form() -> None:
    """12 trials in 3 rungs: 9 stop, 2 of 3, 1 of 1; and 4 in 2 rungs: 3 stop, 1 goes on."""
    for fields in (ADAPTIVE, TIMED):
        seen = preview(config("adaptive_asha", **fields))
        assert seen.training_times == [(9, 62), (5, 250), (2, 1000)]
    tiny = preview(config("async_halving", num_rungs=3, max_trials=1, divisor=2, max_length=4))
    assert tiny.training_times == [(0, 1), (0, 2), (1, 4)]
    assert tiny.breakdown == [(1, (1,))]


def test_rungs_that_coincide_are_one_length() -> None:
    seen = preview(config("async_halving", num_rungs=4, max_trials=20, max_length=8))
    assert seen.rungs[0].lengths == (1, 1, 2, 8)
    assert {lengths[:1] for _, lengths in seen.breakdown} == {(1,)}
    assert all(len(set(lengths)) == len(lengths) for _, lengths in seen.breakdown)


def test_the_same_seed_gives_the_same_preview_and_json_can_carry_it() -> None:
    settings = config("adaptive_asha", seed=5, max_trials=100, max_length=1000)
    assert preview(settings) == preview({**settings, "reproducibility": {"experiment_seed": 6}})
    assert preview(settings, seed=1) != preview(settings)
    written = json.loads(json.dumps(preview(settings).to_json(), allow_nan=False))
    assert written["trials"] == 100
    assert written["breakdown"][0].keys() == {"trials", "lengths"}
    assert written["training_times"][0].keys() == {"trials", "length"}
    assert written["rungs"][0].keys() == {"lengths", "trials", "max_concurrent"}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, r"^searcher: "),
        (config("custom"), "a custom searcher cannot be previewed"),
        (config("adaptive_asha", max_trials=4), "requires `max_time` and `time_metric`"),
        (config("random", max_trials=10**9), "1000000000 trials are too many"),
        (
            config(
                "grid", space={"x": {"type": "int", "minval": 0, "maxval": 10**6, "count": 10**6}}
            ),
            "a grid of 1000000 points",
        ),
    ],
)
def test_impossible_previews(settings: Any, message: str) -> None:
    with pytest.raises(SearcherError, match=message):
        preview(settings)


def test_a_search_that_turns_out_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """More brackets than max_trials make more trials than that."""
    monkeypatch.setattr("determined_searchers.preview.MOST_TRIALS", 4)
    settings = config("adaptive_asha", max_trials=4, max_length=4, bracket_rungs=[1] * 4)
    assert preview(settings).trials == 4
    settings["searcher"]["bracket_rungs"] = [1] * 5
    with pytest.raises(SearcherError, match="more than 4 trials"):
        preview(settings)
