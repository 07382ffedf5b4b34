"""Agents that register, vanish and come back."""

from __future__ import annotations

import asyncio
import json
import uuid
from typing import Any

import pytest
import sqlalchemy as sa

from determined.__version__ import __version__
from determined.common.wire import version
from determined_service.base import topics
from determined_service.loops.reconciler import Reconciler
from determined_service.prefect.keeper import _BUMP
from determined_service.state.change import Change
from tests.integration.control.test_exits import begin
from tests.integration.control.test_search_path import SINGLE
from tests.integration.control.world import Driver, Trial, World, ok
from tests.waiting import TIMEOUT_S, until_async


async def test_work_needs_the_registered_session(world: World) -> None:
    await world.register()
    world.session = str(uuid.uuid4())
    body = {"session": world.session, "running": [], "prefect_poll_seq": 0, "timeout_s": 0}
    refused = await world.agent.post("/internal/v1/agents/a1/work", json=body)
    assert refused.status_code == 409
    unknown = await world.agent.post("/internal/v1/agents/nobody/work", json=body)
    assert unknown.status_code == 409


async def test_two_slots_with_one_id_are_refused(world: World) -> None:
    body = {"session": world.session, "slots": [{"id": 0}, {"id": 1}, {"id": 0}]}
    refused = await world.agent.post("/internal/v1/agents/a1/register", json=body)
    assert refused.status_code == 400
    assert "2 slots have the id 0" in refused.text


async def test_a_second_agent_of_one_name_is_refused_while_the_first_is_at_work(
    world: World,
) -> None:
    await world.register()  # on the host h

    async def second(host: str, session: uuid.UUID) -> tuple[int, str]:
        body = {
            "session": str(session),
            "host": host,
            "slots": [{"id": 0}],
            "wire": version.VERSION,
        }
        answer = await world.agent.post("/internal/v1/agents/a1/register", json=body)
        return answer.status_code, answer.text

    status, said = await second("elsewhere", uuid.uuid4())
    assert status == 409
    assert "agent a1 is at work on host h already; end it there, or give this one" in said
    await world.work()  # The first goes on.
    # A process whose host has another name now is the same one.
    assert (await second("renamed", uuid.UUID(world.session)))[0] == 200
    # The predecessor of one on the same host has ended.
    assert (await second("renamed", uuid.uuid4()))[0] == 200

    # A host that is gone is waited for, but not for long; one whose connection broke, not at all.
    for gone in ("last_heartbeat = now() - interval '11 s'", "away = 'hung_up'", "away = 'ended'"):
        assert (await second("third", uuid.uuid4()))[0] == 409
        await world.rows(f"UPDATE agents SET {gone}, host = 'before' RETURNING id")
        assert (await second("third", uuid.uuid4()))[0] == 200
        await world.rows("UPDATE agents SET host = 'before' RETURNING id")


@pytest.mark.parametrize("wire", [None, version.VERSION - 1, version.VERSION])
async def test_an_agent_one_release_behind_is_understood(world: World, wire: int | None) -> None:
    body = {"session": world.session, "slots": [{"id": 0}], "fragment": "of another release"}
    if wire is not None:
        body["wire"] = wire
    answer = ok(await world.agent.post("/internal/v1/agents/a1/register", json=body))
    assert answer["wire"] == version.VERSION
    nothing = {"launch": [], "kill": [], "prefect_poll_seq": 0, "ended": [], "doors": []}
    assert await world.work() == nothing


async def test_an_agent_learns_which_of_its_experiments_have_ended(world: World) -> None:
    driver, trial = await begin(world)
    going = driver.experiment_id

    async def ended(*ids: int) -> list[int]:
        body = {"session": world.session, "running": [trial.allocation_id], "timeout_s": 0}
        body |= {"prefect_poll_seq": world.poll_seq, "experiments": ids}
        answer = ok(await world.agent.post("/internal/v1/agents/a1/work", json=body))
        return list(answer["ended"])

    unknown = going + 1000
    assert await ended(going, unknown, -1, 1 << 40) == [unknown]
    ok(await world.act(going, "pause"))
    assert await ended(going) == []
    ok(await world.act(going, "kill"))
    ok(await trial.exited(signal=9, exit_code=None))
    assert (await world.experiment(going))["state"] == "CANCELED"
    assert await ended(going) == [going]
    assert await ended() == []


@pytest.mark.parametrize(
    ("sent", "oldest", "words"),
    [
        ({}, 1, "too old for this service"),
        ({"wire": 0}, 1, f"install determined-prefect {__version__} on the agent's machine"),
        ({"wire": version.VERSION + 1}, 0, "upgrade the service first"),
    ],
)
async def test_an_agent_of_another_version_is_told_to_upgrade(
    world: World, sent: dict[str, int], oldest: int, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(version, "OLDEST", oldest)
    body = {"session": world.session, "version": "9.9", "slots": [{"id": 0}], **sent}
    for what in ("register", "work"):
        refused = await world.agent.post(f"/internal/v1/agents/a1/{what}", json=body)
        assert refused.status_code == 400
        assert words in refused.json()["message"]
    assert await world.rows("SELECT id FROM agents") == []


LINK = {"agentUid": 1200, "agentGid": 1201, "agentUser": "trials", "agentGroup": "training"}


async def test_the_account_of_the_owner_is_in_the_order(world: World) -> None:
    await world.register(slots=2)
    await world.started(SINGLE)
    plain = await world.launched()
    assert plain.spec["agent_user"] is None
    async with world.app.state.db.tx() as conn:
        await conn.execute(
            sa.text("UPDATE users SET agent_user_group = cast(:link AS jsonb)"),
            {"link": json.dumps(LINK)},
        )
    await world.started(SINGLE)

    # The agent of the release before knows no accounts: it is not told to start the trial as itself.
    async def refused() -> list[dict[str, Any]]:
        assert (await world.work())["launch"] == []
        return await world.rows("SELECT reason FROM legs WHERE end_time IS NOT NULL")

    (leg,) = await until_async("the end of the leg", refused)
    assert "agent a1 is of a release that starts every task as itself" in leg["reason"]
    await world.started(SINGLE)
    body = {
        "session": world.session,
        "running": sorted(world.running),
        "wire": version.VERSION,
        "prefect_poll_seq": world.poll_seq,
        "timeout_s": 5,
    }

    async def launch() -> list[dict[str, Any]]:
        answer = ok(await world.agent.post("/internal/v1/agents/a1/work", json=body))
        return list(answer["launch"])

    (spec,) = await until_async("a leg to start", launch)
    assert spec["agent_user"] == {
        "uid": 1200,
        "gid": 1201,
        "user": "trials",
        "group": "training",
    }


async def test_the_rights_of_containers_are_in_the_order(world: World) -> None:
    await world.register(slots=2)
    await world.started(SINGLE)
    storage = world.app.state.settings.checkpoint_storage or {}
    plain = {"administrator": False, "capabilities": [], "devices": [], "pod_fields": []}
    plain["host_paths"] = [storage["host_path"]] if storage.get("host_path") else []
    assert (await world.launched()).spec["granted"] == plain
    async with world.app.state.db.tx() as conn:
        await conn.execute(sa.text("UPDATE users SET admin = true"))
    await world.started(SINGLE)
    assert (await world.launched()).spec["granted"] == {**plain, "administrator": True}


async def test_users_are_not_agents(world: World) -> None:
    answer = await world.user.post("/internal/v1/agents/a1/work", json={})
    assert answer.status_code == 401


async def test_a_restarted_agent_keeps_live_legs_and_loses_dead_ones(world: World) -> None:
    await world.register(slots=2)
    await world.started()
    first, second = (Trial(world, spec) for spec in (await world.both())["launch"])
    for trial in (first, second):
        ok(await trial.started())
    world.session = str(uuid.uuid4())
    answer = await world.register(slots=2, allocations=(first.allocation_id, "1.gone.1"))
    assert answer["kill"] == ["1.gone.1"]
    assert (await world.row("SELECT state FROM allocations WHERE id = :i", i=first.allocation_id))[
        "state"
    ] == "RUNNING"
    world.running = {first.allocation_id}
    again = await world.launched()
    assert again.id == second.id
    assert again.spec["run_id"] == 2
    (leg,) = await world.rows("SELECT reason FROM legs WHERE state = 'LOST'")
    assert "restarted" in leg["reason"]


async def test_a_silent_agent_is_lost_and_its_trials_go_elsewhere(world: World) -> None:
    _, trial = await begin(world)
    reconciler = Reconciler(world.app.state.db, None, 30.0)
    reconciler._began -= 100  # as if the service had been up for long
    await reconciler.run_pass()
    assert (await world.trial(trial.id))["run_count"] == 1
    await world.rows(
        "UPDATE agents SET last_heartbeat = now() - interval '40 s' WHERE id = 'a1' RETURNING id"
    )
    await reconciler.run_pass()
    await reconciler.run_pass()
    assert (await world.trial(trial.id))["run_count"] == 2
    (leg,) = await world.rows("SELECT reason FROM legs")
    assert leg["reason"] == "agent a1 lost for 40 s"
    # The late process of the lost leg is refused, and its exit changes nothing.
    assert (await trial.started()).status_code == 409
    ok(await trial.exited())
    assert (await world.trial(trial.id))["state"] == "ACTIVE"
    await world.register(slots=1, agent_id="a2")
    moved = (await world.work(5, agent_id="a2"))["launch"]
    assert [spec["run_id"] for spec in moved] == [2]


async def test_an_idle_poll_is_a_heartbeat_and_wakes_for_prefect(world: World) -> None:
    await world.register()
    await world.rows("UPDATE agents SET last_heartbeat = now() - interval '1 hour' RETURNING id")
    await world.work()
    beat = await world.row("SELECT now() - last_heartbeat < interval '1 min' AS fresh FROM agents")
    assert beat["fresh"]
    waiting = asyncio.create_task(world.work(5))
    await asyncio.sleep(0.1)
    async with world.app.state.db.tx() as conn:
        change = Change(conn)
        await conn.execute(_BUMP, {"pool": "default", "experiment_id": None})
        change.notify(topics.pool("default"))
        await change.flush()
    assert (await asyncio.wait_for(waiting, TIMEOUT_S))["prefect_poll_seq"] == 1


async def test_a_process_that_lingers_is_killed(world: World) -> None:
    _, trial = await begin(world)
    reconciler = Reconciler(world.app.state.db, None, 1000.0)
    await reconciler.run_pass()
    assert (await world.work())["kill"] == []
    ok(await trial.early_exit("INVALID_HP"))
    await reconciler.run_pass()
    reconciler._invalid_since = dict.fromkeys(reconciler._invalid_since, -100.0)
    await reconciler.run_pass()
    assert (await world.work())["kill"] == [trial.allocation_id]
    ok(await trial.exited(exit_code=None, signal=9))
    assert (await world.trial(trial.id))["state"] == "COMPLETED"


async def test_a_preemption_without_exit_ends_in_a_kill_that_does_not_count(
    world: World,
) -> None:
    driver, trial = await begin(world, SINGLE + "preemption_timeout: 600\n")
    ok(await world.act(driver.experiment_id, "pause"))
    reconciler = Reconciler(world.app.state.db, None, 1000.0)
    await reconciler.run_pass()
    assert (await world.work())["kill"] == []
    await world.rows(
        "UPDATE allocations SET preempt_requested_at = now() - interval '601 s' RETURNING id"
    )
    await reconciler.run_pass()
    assert (await world.work())["kill"] == [trial.allocation_id]
    ok(await trial.exited(exit_code=None, signal=9))
    found = await world.trial(trial.id)
    assert (found["state"], found["restarts"]) == ("PAUSED", 0)
    (leg,) = await world.rows("SELECT state, reason FROM legs")
    assert leg["state"] == "PREEMPTED"
    assert "did not exit in time" in leg["reason"]


async def test_a_stored_preemption_timeout_beyond_postgres_intervals_ends_no_pass(
    world: World,
) -> None:
    driver, _ = await begin(world)
    # Such a number is refused now; a release before took it.
    huge = f"1{'0' * 320}"
    await world.rows(
        "UPDATE experiments SET config = jsonb_set(config, '{preemption_timeout}',"
        f" to_jsonb({huge}::numeric)) RETURNING id"
    )
    ok(await world.act(driver.experiment_id, "pause"))
    await Reconciler(world.app.state.db, None, 1000.0).run_pass()
    assert (await world.work())["kill"] == []


async def test_a_prefect_worker_claims_the_leg_itself(world: World) -> None:
    await Driver(world, await world.submit(SINGLE)).attach()
    (trial,) = await world.rows("SELECT id FROM trials")
    run = str(uuid.uuid4())
    path = f"/internal/v1/trials/{trial['id']}"
    body = {"flow_run_id": run, "agent_id": "prefect-worker@h"}
    assert (await world.agent.post(f"{path}/claim", json=body)).status_code == 400
    ok(await world.agent.post(f"{path}/run", json={"flow_run_id": run}))
    spec = ok(await world.agent.post(f"{path}/claim", json=body))
    assert ok(await world.agent.post(f"{path}/claim", json=body)) == spec
    other = body | {"agent_id": "another"}
    assert (await world.agent.post(f"{path}/claim", json=other)).status_code == 409
    leg = Trial(world, spec)
    await leg.run_to_end()
    assert (await world.trial(trial["id"]))["state"] == "COMPLETED"
    # A worker that executes the run again finds no leg, and the service sends Prefect the present state.
    before = await world.told_prefect(leg.entity)
    assert (await world.agent.post(f"{path}/claim", json=other)).status_code == 409
    assert await world.told_prefect(leg.entity) == [*before, "Completed"]


async def test_a_leg_that_its_agent_does_not_start_goes_back(world: World) -> None:
    await world.register(slots=1)
    await world.started(SINGLE)
    trial = await world.launched()  # and the agent does nothing about it
    reconciler = Reconciler(world.app.state.db, None, 0.0, start_timeout_s=60.0)
    await world.rows("UPDATE agents SET last_heartbeat = now() + interval '99 s' RETURNING 1")
    await reconciler.run_pass()
    assert (await world.row("SELECT state FROM allocations"))["state"] == "ASSIGNED"
    await world.rows("UPDATE allocations SET assigned_at = now() - interval '61 s' RETURNING 1")
    await reconciler.run_pass()
    leg = await world.row("SELECT state, reason FROM legs")
    assert leg["state"] == "LOST"
    assert leg["reason"] == "agent a1 did not start it within 61 s"
    assert (await world.trial(trial.id))["restarts"] == 0
    # Should it start the process now: it must not.
    assert (await trial.started()).status_code == 409
    assert (await world.work(5))["kill"] == [trial.allocation_id]


async def test_a_leg_that_runs_is_not_given_back(world: World) -> None:
    await world.register(slots=1)
    await world.started(SINGLE)
    trial = await world.launched()
    ok(await trial.started())
    await world.rows("UPDATE agents SET last_heartbeat = now() + interval '99 s' RETURNING 1")
    await world.rows("UPDATE allocations SET assigned_at = now() - interval '99 s' RETURNING 1")
    await Reconciler(world.app.state.db, None, 0.0, start_timeout_s=60.0).run_pass()
    assert (await world.row("SELECT state FROM allocations"))["state"] == "RUNNING"


async def test_a_pool_is_of_the_type_that_its_agent_says(world: World) -> None:
    await world.register()
    assert [row["worker_type"] for row in await world.rows("SELECT * FROM pools")] == [
        "determined-process"
    ]
    body = {"session": world.session, "worker_type": "determined-containers"}
    for _ in range(2):
        ok(await world.agent.post("/internal/v1/agents/a1/register", json=body))
    assert [row["worker_type"] for row in await world.rows("SELECT * FROM pools")] == [
        "determined-containers"
    ]
