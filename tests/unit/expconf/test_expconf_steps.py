"""Files from when training was counted in steps: what to write today, with the numbers of the file."""

from __future__ import annotations

import pytest

from determined import expconf
from determined.expconf import ConfigError

HEAD = "entrypoint: model_def:Trial\nname: old\n"


def problems(text: str) -> dict[str, str]:
    with pytest.raises(ConfigError) as caught:
        expconf.check(expconf.load_yaml(HEAD + text))
    return {problem.path: problem.message for problem in caught.value.problems}


@pytest.mark.parametrize(
    ("fields", "length"),
    [
        ("name: single, max_steps: 20", "{batches: 1000} (20 steps of 50 batches)"),
        ("name: random, max_trials: 3, max_steps: 7", "{batches: 350} (7 steps of 50 batches)"),
        ("name: adaptive_asha, max_trials: 3, target_trial_steps: 64", "{batches: 3200} (64 steps"),
        (
            "name: pbt, population_size: 4, num_rounds: 3, steps_per_round: 2",
            "{batches: 300} (2 steps of 50 batches, 3 rounds)",
        ),
        ("max_steps: 20", "{batches: 1000}"),
        ("name: single, max_steps: many", "{batches: n}"),
    ],
)
def test_a_number_of_steps_is_said_in_batches(fields: str, length: str) -> None:
    found = problems(f"batches_per_step: 50\nsearcher: {{metric: loss, {fields}}}\n")

    (said,) = (
        words for path, words in found.items() if path.startswith("searcher.") and "_" in path
    )
    assert said.startswith(f"unknown field: steps are gone: write max_length: {length}")
    assert "scheduling_unit: 50" in found["batches_per_step"]


def test_a_step_has_100_batches_unless_the_file_says_otherwise() -> None:
    found = problems(
        "searcher: {name: single, metric: loss, max_steps: 5}\nmin_validation_period: 2\n"
    )
    assert found == {
        "searcher.max_steps": "unknown field: steps are gone: write max_length: {batches: 500} (5 steps "
        "of 100 batches)",
        "min_validation_period": "steps are gone: write min_validation_period: {batches: 200} (2 steps "
        "of 100 batches)",
    }


def test_a_bare_number_in_a_current_file_is_not_a_step() -> None:
    found = problems(
        "searcher: {name: single, metric: loss, max_length: {batches: 5}}\nmin_checkpoint_period: 2\n"
    )
    assert found == {
        "min_checkpoint_period": "expected a length with its unit, such as {batches: 2}"
    }


def test_the_published_file() -> None:
    """determined-ai/works-with-determined, dvc: each message says what to write, and no other message
    follows."""
    found = problems(
        "batches_per_step: 10\nsearcher:\n  name: adaptive_simple\n  metric: loss\n  max_steps: 30\n"
        "  max_trials: 16\n  mode: aggressive\n"
    )
    assert found.keys() == {"batches_per_step", "searcher.name", "searcher.max_steps"}
    assert found["searcher.name"].endswith(
        ": write name: adaptive_asha, max_length: {batches: 300}, max_trials: 16; keep mode"
    )


@pytest.mark.parametrize(
    ("fields", "trials"),
    [
        ("name: adaptive, target_trial_steps: 64, step_budget: 1000, mode: aggressive", "1000"),
        ("name: adaptive, max_length: {epochs: 9}, budget: {epochs: 100}", "19"),
        ("name: adaptive, max_length: {epochs: 9}, budget: {batches: 100}", "n"),
        ("name: sync_halving, num_rungs: 3, max_length: {batches: 8}, budget: {batches: 80}", "64"),
        (
            "name: sync_halving, num_rungs: 99999, max_length: {batches: 8}, budget: {batches: 9}",
            "n",
        ),
    ],
)
def test_a_budget_is_said_in_trials(fields: str, trials: str) -> None:
    found = problems(f"searcher: {{metric: loss, {fields}}}\n")

    assert f"max_trials: {trials};" in found["searcher.name"]
