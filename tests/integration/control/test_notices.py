"""Machines that go away, and legs that are started twice: what the service makes of both."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from determined.common.wire import paths
from tests.integration.control.test_gang_nodes import gang
from tests.integration.control.test_launched import generic
from tests.integration.control.world import CONFIG, Trial, World, ok

WHY = "node n1 is drained"
SINGLE = CONFIG.replace("max_trials: 4, max_concurrent_trials: 2", "max_trials: 1")


async def post(leg: Trial, path: str, body: dict[str, Any]) -> httpx.Response:
    """As the leg's supervisor, with the token that it was given."""
    supervisor = leg.world.client(leg.spec["supervisor_token"])
    return await supervisor.post(path.format(allocation_id=leg.allocation_id), json=body)


async def notice(leg: Trial, **more: Any) -> httpx.Response:
    return await post(leg, paths.NOTICE, {"reason": WHY, "seconds": 30.0, **more})


async def starting(leg: Trial, start_id: str, node: int | None = None) -> httpx.Response:
    return await post(leg, paths.STARTING, {"start_id": start_id, "node": node})


async def running(world: World, config: str = SINGLE) -> Trial:
    await world.register()
    await world.started(config)
    leg = await world.launched()
    ok(await leg.started())
    return leg


async def leg_of(leg: Trial) -> tuple[str, str]:
    row = await leg.world.row(
        "SELECT state, reason FROM legs WHERE allocation_id = :id", id=leg.allocation_id
    )
    return row["state"], row["reason"]


async def restarts(leg: Trial) -> int:
    row = await leg.world.row("SELECT restarts FROM trials WHERE id = :id", id=leg.id)
    return int(row["restarts"])


async def lines(world: World, leg: Trial, word: str) -> list[str]:
    rows = await world.rows(
        "SELECT convert_from(log, 'UTF8') AS log FROM task_logs WHERE task_id = :id ORDER BY id",
        id=leg.spec["task_id"],
    )
    return [row["log"] for row in rows if word in row["log"]]


async def test_a_trial_stores_a_checkpoint_and_goes_on_by_itself(world: World) -> None:
    leg = await running(world)
    waiting = asyncio.create_task(leg.preempted(20))
    ok(await notice(leg))
    ok(await notice(leg, reason="again"))
    assert await waiting
    assert len(await lines(world, leg, f"is going away in 30 s: {WHY}")) == 1
    assert not await lines(world, leg, "again")
    await leg.acknowledge()
    ok(await leg.exited())
    assert await leg_of(leg) == ("PREEMPTED", f"its machine is going away: {WHY}")
    second = await world.launched()
    assert (second.id, second.spec["run_id"]) == (leg.id, 2)
    assert await restarts(leg) == 0
    first, again = await world.rows(
        "SELECT requested_at, in_line_since FROM allocations WHERE trial_id = :id ORDER BY run_id",
        id=leg.id,
    )
    assert again["in_line_since"] == first["requested_at"]
    assert (await notice(leg)).status_code == 409
    assert not await second.preempted()


async def test_an_agent_knows_why_and_speaks_for_its_own_legs(world: World) -> None:
    leg = await running(world)
    await world.register(agent_id="a2")
    why = {leg.allocation_id: "node n1 is reclaimed"}

    async def tell(agent_id: str) -> None:
        body = {"session": world.session, "slots": [{"id": 0}, {"id": 1}], "leaving": why}
        ok(await world.agent.post(f"/internal/v1/agents/{agent_id}/state", json=body))

    await tell("a2")
    assert not await leg.preempted()
    # What a supervisor tells has no better reason than a signal.
    ok(await notice(leg, reason="a1 was told to end"))
    await tell("a1")
    await tell("a1")
    assert await leg.preempted()
    assert len(await lines(world, leg, "is going away: node n1 is reclaimed")) == 1
    ok(await notice(leg, reason="a1 was told to end"))
    await leg.acknowledge()
    ok(await leg.exited())
    assert await leg_of(leg) == ("PREEMPTED", "its machine is going away: node n1 is reclaimed")


@pytest.mark.parametrize("told", [True, False], ids=["told", "unknown"])
async def test_a_script_that_did_not_end_in_time_reads_what_its_agent_knew(
    world: World, told: bool
) -> None:
    leg = await running(world)
    ok(await notice(leg, reason="a1 was told to end within 10 s"))
    if told:
        body = {"session": world.session, "slots": [{"id": 0}, {"id": 1}]}
        body["leaving"] = {leg.allocation_id: WHY}
        ok(await world.agent.post("/internal/v1/agents/a1/state", json=body))
    words = "its process had not ended after 8 s and was killed"
    end = {"kind": "infrastructure", "reason": words, "leaving": "a1 was told to end within 10 s"}
    ok(await leg.exited(exit_code=None, **end))
    why = WHY if told else "a1 was told to end within 10 s"
    assert await leg_of(leg) == ("LOST", f"its machine is going away: {why}; {words}")
    assert len(await lines(world, leg, f"going away: {why}; {words}")) == 1


async def test_an_agent_that_knows_why_is_heard_after_the_end(world: World) -> None:
    leg = await running(world)
    await world.register(agent_id="a2")

    async def tell(agent_id: str, why: str) -> None:
        body = {"session": world.session, "slots": [{"id": 0}, {"id": 1}]}
        body["leaving"] = {leg.allocation_id: why}
        ok(await world.agent.post(f"/internal/v1/agents/{agent_id}/state", json=body))

    ok(await notice(leg, reason="a1 was told to end"))
    await leg.acknowledge()
    ok(await leg.exited())
    await tell("a2", "not its leg")
    assert await leg_of(leg) == ("PREEMPTED", "its machine is going away: a1 was told to end")
    await tell("a1", "its pod was deleted")
    await tell("a1", "its pod was deleted")
    assert await leg_of(leg) == ("PREEMPTED", "its machine is going away: its pod was deleted")
    assert len(await lines(world, leg, "its pod was deleted")) == 1


async def test_an_agent_does_not_say_why_a_leg_ended_that_ended_by_itself(world: World) -> None:
    leg = await running(world)
    ok(await leg.exited())
    before = await leg_of(leg)
    body = {"session": world.session, "slots": [{"id": 0}, {"id": 1}]}
    body["leaving"] = {leg.allocation_id: WHY}
    ok(await world.agent.post("/internal/v1/agents/a1/state", json=body))
    assert await leg_of(leg) == before
    assert not await lines(world, leg, WHY)


async def test_an_agent_tells_of_one_node_of_a_gang(world: World) -> None:
    _, second, leg = await gang(world)
    assert await second.started(leg.allocation_id) == 200
    body = {
        "session": world.session,
        "slots": [{"id": 0}, {"id": 1}],
        "leaving": {f"{leg.allocation_id}.n1": WHY},
    }
    ok(await world.agent.post("/internal/v1/agents/a2/state", json=body))
    assert await leg.preempted()


async def test_a_failure_on_a_machine_that_goes_away_counts_as_lost(world: World) -> None:
    leg = await running(world, SINGLE.replace("max_restarts: 1", "max_restarts: 0"))
    ok(await notice(leg))
    ok(await leg.exited(exit_code=1))
    words = f"its machine is going away: {WHY}; process exited with code 1"
    assert await leg_of(leg) == ("LOST", words)
    await world.launched()
    assert await restarts(leg) == 0


async def test_a_trial_that_is_through_is_not_started_again(world: World) -> None:
    leg = await running(world)
    while not (found := await leg.operation())["completed"]:
        ok(await leg.complete(int(found["op"]["validateAfter"]["length"]), 0.5))
        ok(await notice(leg))
    await leg.acknowledge()
    ok(await leg.exited())
    assert (await leg_of(leg))[0] == "COMPLETED"
    assert (await world.work())["launch"] == []


async def test_a_paused_trial_stays_paused(world: World) -> None:
    leg = await running(world)
    row = await world.row("SELECT experiment_id FROM trials WHERE id = :id", id=leg.id)
    ok(await world.act(row["experiment_id"], "pause"))
    ok(await notice(leg))
    await leg.acknowledge()
    ok(await leg.exited())
    assert (await world.work())["launch"] == []


async def test_all_nodes_of_a_gang_are_told(world: World) -> None:
    first, second, leg = await gang(world)
    for node in (first, second):
        assert await node.started(leg.allocation_id) == 200
    ok(await notice(leg, node=1))
    assert await leg.preempted()
    await leg.acknowledge()
    # Without the other one it fails, before the other one has told its end.
    await first.exited(leg.allocation_id, exit_code=1)
    await second.exited(leg.allocation_id)
    state, reason = await leg_of(leg)
    assert state == "LOST" and reason.startswith(
        f"its machine is going away: {WHY}; process exited"
    )
    assert await restarts(leg) == 0


async def test_a_notice_is_its_own_supervisors(world: World) -> None:
    leg = await running(world)
    path = paths.NOTICE.format(allocation_id=leg.allocation_id)
    body = {"reason": WHY, "seconds": 30}
    other = leg.world.client(leg.spec["supervisor_token"])
    for client, status in (
        (world.user, 401),
        (world.client(leg.spec["session_token"]), 401),
        (world.client("nobody"), 401),
    ):
        assert (await client.post(path, json=body)).status_code == status
    strange = paths.NOTICE.format(allocation_id="1.of-another.1")
    assert (await other.post(strange, json=body)).status_code == 403
    assert not await leg.preempted()


async def test_words_of_a_notice_reach_the_log_as_one_short_line(world: World) -> None:
    leg = await running(world)
    ok(await notice(leg, reason="\x1b[31mred\r\n" + "x" * 5000, seconds=1e300))
    (line,) = await lines(world, leg, "going away")
    assert "\x1b" not in line and line.count("\n") == 1 and len(line) < 1200


@pytest.mark.parametrize("more", [{}, {"noPause": True}])
async def test_a_generic_task_begins_anew_if_it_may(world: World, more: dict[str, Any]) -> None:
    await world.register()
    await generic(world, config="entrypoint: sleep 600\nresources: {slots: 1}", **more)
    leg = await world.launched()
    ok(await notice(leg))
    ok(await leg.exited(exit_code=None, kind="infrastructure", reason="gone"))
    if more:
        assert await leg_of(leg) == ("LOST", "gone")
        assert (await world.work())["launch"] == []
        return
    assert await leg_of(leg) == ("PREEMPTED", f"its machine is going away: {WHY}")
    assert (await world.launched()).allocation_id.endswith(".2")


async def test_a_second_start_is_refused_before_it_runs_anything(world: World) -> None:
    await world.register()
    await world.started(SINGLE)
    leg = await world.launched()
    ok(await starting(leg, "pod-1"))
    ok(await starting(leg, "pod-1"))
    refused = await starting(leg, "pod-2")
    assert refused.status_code == 409 and "was started before" in refused.text
    assert (await post(leg, paths.RUNNING, {"start_id": "pod-2"})).status_code == 409
    ok(await post(leg, paths.RUNNING, {"start_id": "pod-1"}))
    for path in (paths.RUNNING, paths.EXIT):
        assert (await post(leg, path, {"start_id": "pod-2"})).status_code == 409
    assert (await notice(leg, start_id="pod-2")).status_code == 409
    assert not await leg.preempted()
    state = "SELECT state FROM allocations WHERE id = :id"
    assert (await world.row(state, id=leg.allocation_id))["state"] == "RUNNING"
    ok(await post(leg, paths.EXIT, {"start_id": "pod-1", "exit_code": 1}))
    assert (await starting(leg, "pod-1")).status_code == 409


@pytest.mark.parametrize("first", ["", "one"])
async def test_without_a_question_the_first_report_counts(world: World, first: str) -> None:
    """A start of the release before names no id, and is believed."""
    await world.register()
    await world.started(SINGLE)
    leg = await world.launched()
    ok(await post(leg, paths.RUNNING, {"start_id": first}))
    second = await post(leg, paths.RUNNING, {"start_id": "two"})
    assert second.status_code == (409 if first else 200)
    # An agent reports the end of what it started.
    ok(await leg.exited())


async def test_each_node_of_a_gang_has_its_start(world: World) -> None:
    _, _, leg = await gang(world)
    for node in (0, 1):
        ok(await starting(leg, f"pod-{node}", node))
        assert (await starting(leg, "another", node)).status_code == 409
        body = {"node": node, "start_id": "another"}
        assert (await post(leg, paths.RUNNING, body)).status_code == 409
        ok(await post(leg, paths.RUNNING, {"node": node, "start_id": f"pod-{node}"}))
        assert (await post(leg, paths.EXIT, body)).status_code == 409
    for node in (0, 1):
        ok(await post(leg, paths.EXIT, {"node": node, "start_id": f"pod-{node}", "exit_code": 0}))
    state = "SELECT state FROM allocations WHERE id = :id"
    assert (await world.row(state, id=leg.allocation_id))["state"] == "TERMINATED"


async def test_an_id_is_short_and_printable(world: World) -> None:
    await world.register()
    await world.started(SINGLE)
    leg = await world.launched()
    for wrong in ("x" * 101, "\x1b[31m", "\x00"):
        assert (await starting(leg, wrong)).status_code == 400
        assert (await post(leg, paths.RUNNING, {"start_id": wrong})).status_code == 400
