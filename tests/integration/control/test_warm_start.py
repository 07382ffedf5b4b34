"""Trials that start from another trial's latest checkpoint, as the searcher asks."""

from __future__ import annotations

import uuid
from typing import Any

from determined_searchers import Close, Create, ValidateAfter
from tests.integration.control.world import CONFIG, Driver, Trial, World, ok

PBT = CONFIG.replace(
    "{name: random, metric: loss, max_length: 8, max_trials: 4, max_concurrent_trials: 2}",
    "{name: pbt, metric: loss, max_length: 8, population_size: 2, num_rounds: 2}",
)


async def save_checkpoint(trial: Trial) -> str:
    name = str(uuid.uuid4())
    body = {
        "taskId": trial.spec["task_id"],
        "allocationId": trial.allocation_id,
        "uuid": name,
        "reportTime": "2026-01-01T00:00:00Z",
        "resources": {"weights": "3"},
        "metadata": {"steps_completed": 4},
        "state": "STATE_COMPLETED",
    }
    ok(await trial.client.post("/api/v1/checkpoints", json=body))
    return name


async def population(world: World) -> tuple[Driver, list[Trial]]:
    """An experiment whose two members are training."""
    await world.register(slots=2)
    driver = await world.started(PBT)
    trials = [Trial(world, spec) for spec in (await world.both())["launch"]]
    for trial in trials:
        ok(await trial.started())
    await driver.step()  # they were created
    return driver, trials


async def test_a_copy_starts_from_the_latest_checkpoint_of_its_source(world: World) -> None:
    driver, (winner, loser) = await population(world)
    await save_checkpoint(winner)
    latest = await save_checkpoint(winner)
    await save_checkpoint(loser)
    ok(await winner.complete(4, 0.1))
    ok(await loser.complete(4, 0.9))
    (made,) = await driver.step()
    copy = await world.trial(made.trial_id)
    assert str(copy["warm_start_checkpoint"]) == latest
    assert copy["latest_checkpoint"] is None
    assert (await world.trial(winner.id))["op_length"] == 8
    assert (await world.trial(loser.id))["closed"]
    await loser.acknowledge()
    ok(await loser.exited())
    leg = await world.launched()
    assert (leg.id, leg.spec["latest_checkpoint"]) == (copy["id"], latest)
    assert leg.spec["hparams"] == made.hparams


async def test_later_changes_of_the_source_do_not_matter(world: World) -> None:
    driver, (winner, loser) = await population(world)
    latest = await save_checkpoint(winner)
    await save_checkpoint(loser)
    ok(await winner.complete(4, 0.1))
    ok(await loser.complete(4, 0.9))
    (made,) = await driver.step()
    await save_checkpoint(winner)
    copy = await world.trial(made.trial_id)
    assert str(copy["warm_start_checkpoint"]) == latest


async def refused(driver: Driver, operations: list[Any], last_event_id: int = 99) -> str:
    """The service's answer to a commit that it refuses."""
    answer = await driver.world.agent.post(
        f"{driver.path}/commit",
        json={
            "driver": str(driver.driver),
            **driver.search.commit(driver.driver, operations).to_json(),
            "last_event_id": last_event_id,
        },
    )
    assert answer.status_code == 400, answer.text
    return str(answer.json()["error"]["error"])


async def test_a_source_without_a_checkpoint_is_an_error_in_words(world: World) -> None:
    driver, (winner, loser) = await population(world)
    ok(await winner.complete(4, 0.1))
    ok(await loser.complete(4, 0.9))
    events = (await driver.events()).events
    operations = driver.search.handle(events)
    assert {type(operation) for operation in operations} == {Close, Create, ValidateAfter}
    message = await refused(driver, operations, events[-1].id)
    assert message == (
        f"trial {winner.id} has no checkpoint, and the searcher makes another trial start from it: "
        f"the training code must save a checkpoint before it reports to the searcher"
    )
    # No operation of the batch was carried out.
    assert not (await world.trial(loser.id))["closed"]
    assert len(await world.rows("SELECT 1 FROM trials")) == 2


async def test_a_source_must_be_a_trial_of_the_experiment(world: World) -> None:
    driver, _ = await population(world)
    name = str(uuid.uuid4())
    stranger = str(uuid.uuid4())
    message = await refused(driver, [Create(name, {}, 1, source=stranger)])
    assert message == f"no such trial to start from: {stranger}"
    both = Create(name, {}, 1, checkpoint=stranger, source=stranger)
    assert "either checkpoint or source" in await refused(driver, [both])
