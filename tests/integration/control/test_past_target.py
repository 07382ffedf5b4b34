"""A script that never asks for the searcher's operations, under a search that stops trials only there."""

from __future__ import annotations

import pytest

from tests.integration.control.test_searcher_metric import report, warnings
from tests.integration.control.world import CONFIG, Trial, World, ok

SEARCHER = "{name: random, metric: loss, max_length: 8, max_trials: 4, max_concurrent_trials: 2}"


def config(searcher: str) -> str:
    return CONFIG.replace(SEARCHER, f"{{metric: loss, {searcher}}}")


# The lengths of its rungs are 4 and 8 batches.
ASHA = config(
    "name: async_halving, max_length: {batches: 8}, num_rungs: 2, divisor: 2, max_trials: 4,"
    " max_concurrent_trials: 1"
)


async def begun(world: World, text: str) -> Trial:
    await world.register(slots=1)
    await world.started(text)
    trial = await world.launched()
    ok(await trial.started())
    return trial


async def test_the_first_validation_past_the_target_says_the_two_ways_out(world: World) -> None:
    trial = await begun(world, ASHA)
    for step in (1, 2, 3, 4):
        await report(trial, step, loss=0.5)
    assert await warnings(world, trial) == []
    await report(trial, 5, loss=0.5)
    (warning,) = await warnings(world, trial)
    assert warning == (
        "the searcher told this trial to train for 4 batches and to report to it there, but it validates "
        "on, after 5 batches now. With max_length, async_halving stops trials only where their script asks "
        "for the next operation: this one trains to its own end. Loop over "
        "core_context.searcher.operations() and call op.report_completed() in the script; or give the "
        "searcher time_metric: batches and max_time instead of max_length: then it goes by the "
        "validations, each of which reports 'batches' as a metric, and needs no operations\n"
    )
    await report(trial, 6, 7, 8, loss=0.5)
    assert len(await warnings(world, trial)) == 1
    ok(await trial.exited())
    ended = await world.trial(trial.id)
    assert (ended["state"], ended["reason"]) == (
        "COMPLETED",
        "the training code trained to 8, past the searcher's target of 4 batches, but never completed that "
        "operation (op.report_completed): the searcher knows of no result",
    )


async def test_several_validations_in_one_batch(world: World) -> None:
    trial = await begun(world, ASHA)
    await report(trial, *range(1, 9), loss=0.5)
    assert len(await warnings(world, trial)) == 1


async def test_a_script_that_asks_may_train_past_the_target_once(world: World) -> None:
    trial = await begun(world, ASHA)
    # It counts in epochs of three batches.
    await report(trial, 3, loss=0.5)
    await report(trial, 6, loss=0.5)
    ok(await trial.complete(4, 0.5))
    await report(trial, 9, loss=0.5)
    assert await warnings(world, trial) == []


async def test_other_units_are_read_from_the_metrics(world: World) -> None:
    trial = await begun(world, ASHA.replace("batches", "epochs"))
    for epoch in range(1, 5):
        await report(trial, 100 * epoch, loss=0.5, epochs=epoch)
    assert await warnings(world, trial) == []
    await report(trial, 500, loss=0.5, epochs=5)
    (warning,) = await warnings(world, trial)
    assert "time_metric: epochs" in warning


@pytest.mark.parametrize(
    "searcher",
    [
        "name: single, max_length: {batches: 2}",
        # The unit of the script's steps is unknown.
        "name: async_halving, max_length: 2, num_rungs: 1, max_trials: 1",
        "name: async_halving, max_length: {epochs: 2}, num_rungs: 1, max_trials: 1",
    ],
)
async def test_no_victims_or_unknown_victims(world: World, searcher: str) -> None:
    trial = await begun(world, config(searcher))
    await report(trial, 1, 2, 3, 4, loss=0.5)
    assert await warnings(world, trial) == []


async def test_pbt_has_one_way_out(world: World) -> None:
    text = "name: pbt, max_length: {batches: 8}, population_size: 2, num_rounds: 4"
    trial = await begun(world, config(text))
    await report(trial, 1, 2, 3, loss=0.5)
    (warning,) = await warnings(world, trial)
    assert warning.endswith("call op.report_completed() in the script\n")
