"""Agents and slots that an administrator takes out of use."""

from __future__ import annotations

import uuid

import pytest

from determined.common.wire.agents import Registration
from determined.common.wire.version import VERSION
from determined_service.base.errors import BadRequest
from determined_service.lifecycle.agents import register
from tests.integration.control.world import World, ok

AGENT = "/api/v1/agents/a1"


@pytest.mark.parametrize("where", ["", "/slots/0"])
async def test_legs_there_are_killed_and_start_again_uncounted(world: World, where: str) -> None:
    await world.register(slots=1)
    await world.started()
    trial = await world.launched()
    ok(await trial.started())
    shown = ok(await world.agent.post(f"{AGENT}{where}/disable"))
    assert next(iter(shown.values()))["enabled"] is False
    leg = await world.row(
        "SELECT state, reason FROM legs WHERE allocation_id = :id", id=trial.allocation_id
    )
    assert leg["state"] == "LOST"
    assert leg["reason"].endswith("a1 was disabled")
    answer = await world.work()
    assert (answer["kill"], answer["launch"]) == ([trial.allocation_id], [])
    await world.register(slots=1)
    assert (await world.work())["launch"] == [], "a disabled agent has got work"
    shown = ok(await world.agent.post(f"{AGENT}{where}/enable"))
    assert next(iter(shown.values()))["enabled"] is True
    world.running.discard(trial.allocation_id)
    await world.launched()
    again = await world.row(
        "SELECT state, run_id FROM allocations WHERE trial_id = :id ORDER BY run_id DESC LIMIT 1",
        id=trial.id,
    )
    assert (again["state"], again["run_id"]) == ("REQUESTED", 2)
    assert (await world.trial(trial.id))["restarts"] == 0


@pytest.mark.parametrize("where", ["", "/slots/0"])
async def test_draining_tasks_may_finish(world: World, where: str) -> None:
    await world.register(slots=1)
    await world.started()
    trial = await world.launched()
    ok(await trial.started())
    shown = ok(await world.agent.post(f"{AGENT}{where}/disable", json={"drain": True}))
    found = next(iter(shown.values()))
    assert (found["enabled"], found["draining"]) == (False, not where)
    assert (await world.work())["kill"] == []


async def test_another_slots_work_goes_on(world: World) -> None:
    await world.register(slots=2)
    await world.started()
    launched = []
    while len(launched) < 2:
        launched += (await world.work(5))["launch"]
    one, other = launched
    (slot,) = one["slot_ids"]
    ok(await world.agent.post(f"{AGENT}/slots/{slot}/disable"))
    assert (await world.work())["kill"] == [one["allocation_id"]]
    assert other["allocation_id"] in world.running


async def test_rights_and_unknown_ids(world: World) -> None:
    await world.register()
    assert (await world.user.post(f"{AGENT}/disable")).status_code == 403
    for path in ("a9", "a1/slots/7"):
        assert (await world.agent.post(f"/api/v1/agents/{path}/disable")).status_code == 404


async def test_a_pool_has_agents_of_one_type(world: World) -> None:
    await world.register()
    facts = Registration(session=uuid.uuid4(), wire=VERSION, worker_type="determined-docker")
    said = r"has agents of the type determined-process \(a1\): start it for another pool"
    db = world.app.state.db
    with pytest.raises(BadRequest, match=said):
        await register(db, "a2", facts)
    assert await register(db, "a1", facts) == []  # the only one may change
