"""A checkpoint that a leg finds damaged is never chosen again."""

from __future__ import annotations

import uuid
from typing import Any

from tests.integration.control.test_warm_start import save_checkpoint
from tests.integration.control.world import Trial, World, ok

REASON = "checkpoint …: /data/x/weights is missing"


async def give_up(world: World, trial: Trial, name: str) -> dict[str, Any]:
    path = f"/internal/v1/trials/{trial.id}/damaged_checkpoint"
    found: dict[str, Any] = ok(await world.agent.post(path, json={"uuid": name, "reason": REASON}))
    return found


async def test_the_one_before_is_chosen_then_none(world: World) -> None:
    await world.register()
    await world.started()
    trial = Trial(world, (await world.both())["launch"][0])
    first = await save_checkpoint(trial)
    second = await save_checkpoint(trial)
    for _ in range(2):  # the same report twice
        answer = await give_up(world, trial, second)
        assert answer["latest_checkpoint"] == first
        assert answer["checkpoint"]["resources"]
    row = await world.row("SELECT state, reason FROM checkpoints WHERE uuid = :u", u=second)
    assert row == {"state": "ERROR", "reason": REASON}
    assert str((await world.trial(trial.id))["latest_checkpoint"]) == first
    answer = await give_up(world, trial, first)
    assert answer == {"latest_checkpoint": None, "steps_completed": 0, "checkpoint": None}
    shown = ok(await world.user.get(f"/api/v1/checkpoints/{second}"))["checkpoint"]
    assert (shown["state"], shown["reason"]) == ("STATE_ERROR", REASON)


async def test_a_late_repetition_of_its_report_does_not_bring_it_back(world: World) -> None:
    await world.register()
    await world.started()
    trial = Trial(world, (await world.both())["launch"][0])
    name = str(uuid.uuid4())
    body = {
        "uuid": name,
        "allocationId": trial.allocation_id,
        "resources": {"weights": "3"},
        "metadata": {"steps_completed": 1},
        "state": "STATE_COMPLETED",
    }
    ok(await trial.client.post("/api/v1/checkpoints", json=body))
    await give_up(world, trial, name)
    ok(await trial.client.post("/api/v1/checkpoints", json=body))
    assert (await world.trial(trial.id))["latest_checkpoint"] is None
    row = await world.row("SELECT state FROM checkpoints WHERE uuid = :u", u=name)
    assert row["state"] == "ERROR"


async def test_a_warm_start_does_not_change(world: World) -> None:
    await world.register()
    driver = await world.started()
    source, other = (Trial(world, spec) for spec in (await world.both())["launch"])
    warm = await save_checkpoint(source)
    await world.rows(
        "UPDATE trials SET warm_start_checkpoint = :u WHERE id = :id RETURNING id",
        u=warm,
        id=other.id,
    )
    own = await save_checkpoint(other)
    answer = await give_up(world, other, own)
    assert (answer["latest_checkpoint"], answer["steps_completed"]) == (warm, 0)
    assert answer["checkpoint"]["resources"]
    assert (await give_up(world, other, warm))["latest_checkpoint"] == warm
    assert (await world.trial(source.id))["latest_checkpoint"] is None
    assert driver.state == "ACTIVE"
