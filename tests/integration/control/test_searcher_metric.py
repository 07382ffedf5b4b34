"""A script that does not report the searcher's metric: the messages of the log, the search and its end."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from determined_searchers import SearcherError
from tests.integration.control.test_search_path import SINGLE
from tests.integration.control.world import CONFIG, Trial, World, ok

ASHA = CONFIG.replace(
    "{name: random, metric: loss, max_length: 8, max_trials: 4, max_concurrent_trials: 2}",
    "{name: adaptive_asha, metric: loss, divisor: 2, max_trials: 4, time_metric: batches, max_time: 8,"
    " max_concurrent_trials: 1}",
)
RANDOM = CONFIG.replace("max_length: 8, max_trials: 4, max_concurrent_trials: 2", "max_trials: 4")


async def report(trial: Trial, *steps: int, group: str = "validation", **metrics: Any) -> None:
    reports = [
        {"group": group, "steps_completed": step, "metrics": metrics | {"batches": step}}
        for step in steps
    ]
    body = {"run_id": trial.spec["run_id"], "reports": reports}
    ok(await trial.client.post(f"/api/v1/trials/{trial.id}/metrics/batch", json=body))


async def warnings(world: World, trial: Trial) -> list[str]:
    answer = await world.user.get(f"/api/v1/tasks/{trial.spec['task_id']}/logs")
    lines = [orjson.loads(one)["result"] for one in answer.text.splitlines()]
    return [one["log"] for one in lines if one["level"] == "LOG_LEVEL_WARNING"]


async def test_a_misspelt_metric_is_said_at_the_first_validation(world: World) -> None:
    await world.register(slots=1)
    await world.started(SINGLE)
    trial = await world.launched()
    await report(trial, 1, val_loss=0.5)
    (warning,) = await warnings(world, trial)
    assert warning.startswith(
        "searcher.metric is 'loss', but the validation after 1 steps has no such metric; it has "
        "val_loss, batches (did you mean 'val_loss'?). Until one has it, this trial has no best"
    )
    await report(trial, 2, val_loss=0.25)
    assert await warnings(world, trial) == [warning]


async def test_training_reports_alone_have_it(world: World) -> None:
    await world.register(slots=1)
    await world.started(SINGLE)
    trial = await world.launched()
    await report(trial, 1, group="training", loss=0.5)
    assert await warnings(world, trial) == []
    await report(trial, 1, accuracy=0.5)
    (warning,) = await warnings(world, trial)
    assert "; training reports have 'loss', but the searcher goes by validations. Until" in warning


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (
            "loss",
            "training reports have 'loss' (searcher.metric), and the searcher goes by validations",
        ),
        (
            "train_loss",
            "training reports have batches, train_loss, searcher.metric is 'loss', and the",
        ),
    ],
)
async def test_trainings_without_a_validation(world: World, name: str, words: str) -> None:
    await world.register(slots=1)
    driver = await world.started(RANDOM)
    for done in range(4):
        trial = await world.launched()
        ok(await trial.started())
        await report(trial, 1, 2, group="training", **{name: 0.5})
        path = f"/api/v1/experiments/{driver.experiment_id}?remarks=true"
        remarks = (await world.user.get(path)).json()["remarks"]
        assert any(words in one for one in remarks) == (done > 0)
        ok(await trial.exited())
        await driver.step()
        (warning,) = await warnings(world, trial)
        assert warning.startswith(f"this trial has reported no validation: {words}")
    ended = await world.experiment(driver.experiment_id)
    start = "the search is complete; but no trial ever reported a validation: "
    assert ended["reason"].startswith(start + words)


async def test_a_metric_that_is_not_a_number(world: World) -> None:
    await world.register(slots=1)
    await world.started(SINGLE)
    trial = await world.launched()
    await report(trial, 1, loss="0.5")
    (warning,) = await warnings(world, trial)
    assert "has no number of this name: it is of type string" in warning


@pytest.mark.parametrize("loss", [0.5, "NaN", "Infinity"])
async def test_a_present_metric_needs_no_remark(world: World, loss: Any) -> None:
    await world.register(slots=1)
    await world.started(SINGLE)
    trial = await world.launched()
    await report(trial, 1, loss=loss)
    # Another validation of the same script need not have it.
    await report(trial, 2, accuracy=0.5)
    assert await warnings(world, trial) == []


async def test_asha_by_time_fails_at_the_first_validation_that_lacks_it(world: World) -> None:
    await world.register(slots=1)
    driver = await world.started(ASHA)
    trial = await world.launched()
    await report(trial, 2, val_loss=0.5)
    with pytest.raises(SearcherError) as failed:
        await driver.step()
    assert str(failed.value) == (
        f"trial {trial.id}: searcher.metric is 'loss', but the validation after 2 steps has no such metric; "
        "it has val_loss, batches (did you mean 'val_loss'?); the adaptive_asha searcher stops trials by "
        "this metric and cannot go on without it: report all metrics of a validation at once"
    )


@pytest.mark.parametrize("at_once", [True, False])
async def test_pieces_of_a_validation_count_in_their_order(world: World, at_once: bool) -> None:
    """For any batches of the harness."""
    await world.register(slots=1)
    driver = await world.started(ASHA)
    trial = await world.launched()
    pieces = [
        {"group": "validation", "steps_completed": 1, "metrics": {name: 0.5, "batches": 1}}
        for name in ("accuracy", "loss")
    ]
    for batch in [pieces] if at_once else [[one] for one in pieces]:
        body = {"run_id": trial.spec["run_id"], "reports": batch}
        ok(await trial.client.post(f"/api/v1/trials/{trial.id}/metrics/batch", json=body))
    with pytest.raises(SearcherError, match="report all metrics of a validation at once"):
        await driver.step()


async def test_a_trial_that_has_reported_it_once_may_leave_it_out(world: World) -> None:
    await world.register(slots=1)
    driver = await world.started(ASHA)
    trial = await world.launched()
    for step in (1, 2, 3):
        await report(trial, step, loss=0.5)
        await report(trial, step, accuracy=0.5)
        await driver.step()
    assert (await world.experiment(driver.experiment_id))["state"] == "ACTIVE"


@pytest.mark.parametrize(
    ("metrics", "reason"),
    [
        (
            {"val_loss": 0.5},
            "the search is complete; but no trial ever reported 'loss' (searcher.metric); they reported "
            "batches, val_loss (did you mean 'val_loss'?)",
        ),
        ({"loss": "NaN"}, "the search is complete"),
        ({}, "the search is complete"),
    ],
)
async def test_the_reason_at_the_end_says_so(
    world: World, metrics: dict[str, Any], reason: str
) -> None:
    await world.register(slots=1)
    driver = await world.started(RANDOM)
    for _ in range(4):
        trial = await world.launched()
        ok(await trial.started())
        if metrics:
            await report(trial, 1, 2, **metrics)
        ok(await trial.exited())
        await driver.step()
    ended = await world.experiment(driver.experiment_id)
    assert (ended["state"], ended["reason"]) == ("COMPLETED", reason)


async def test_many_long_names_make_a_short_word(world: World) -> None:
    await world.register(slots=1)
    await world.started(SINGLE)
    trial = await world.launched()
    await report(trial, 1, **{f"{number:03}{'loss' * 40}": 0.5 for number in range(500)})
    (warning,) = await warnings(world, trial)
    assert "… and 489 more" in warning
    assert len(warning) < 3000
