"""Log lines that match a policy, and what becomes of their trial."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

import orjson
import pytest

from determined_service.ingest import pattern_search
from tests.integration.control.test_exits import begin
from tests.integration.control.test_search_path import SINGLE
from tests.integration.control.world import Trial, World, ok

OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB\n"


def config(*policies: str, restarts: int = 3) -> str:
    text = SINGLE.replace("max_restarts: 1", f"max_restarts: {restarts}")
    assert f"max_restarts: {restarts}" in text
    return text + "log_policies:\n" + "".join(f"  - {policy}\n" for policy in policies)


async def prints(world: World, trial: Trial, *lines: str) -> None:
    body: dict[str, Any] = {
        "stream": str(uuid.uuid4()),
        "seq": 0,
        "task_id": trial.spec["task_id"],
        "allocation_id": trial.allocation_id,
        "agent_id": "a1",
        "lines": [{"t": 1795266000.5, "stdtype": "stderr", "log": line} for line in lines],
    }
    ok(await world.agent.post("/internal/v1/logs", json=body))
    ok(await world.agent.post("/internal/v1/logs", json=body))  # sent twice


async def shown(world: World, trial: Trial) -> dict[str, Any]:
    return dict(ok(await world.user.get(f"/api/v1/trials/{trial.id}"))["trial"])


async def test_a_match_cancels_the_retries(world: World) -> None:
    policy = "{name: CUDA OOM, pattern: '.*CUDA out of memory.*', action: cancel_retries}"
    _, trial = await begin(world, config(policy))
    await prints(world, trial, "epoch 1\n", OOM, "bye\n")
    ok(await trial.exited(exit_code=1))
    found = await shown(world, trial)
    assert found["state"] == "STATE_ERROR"
    assert found["logPolicyMatched"] == "CUDA OOM"
    assert found["reason"] == (
        "process exited with code 1; no restart: log policy 'CUDA OOM' matched: " + OOM.strip()
    )
    assert found["restarts"] == 0
    last, why = await said(world, trial)
    assert last["allocationId"] == why["allocationId"] == trial.allocation_id
    assert last["log"] == ("resources failed with non-zero exit code: process exited with code 1\n")
    assert why["log"] == (
        "trial failed and matched logs to a don't retry policy: log policy 'CUDA OOM' matched: "
        f"{OOM.strip()}; the failure (process exited with code 1) therefore will not be retried\n"
    )


async def said(world: World, trial: Trial) -> list[dict[str, Any]]:
    """The service's own lines in the trial's log."""
    answer = await world.user.get(f"/api/v1/trials/{trial.id}/logs", params={"sources": "service"})
    return [orjson.loads(one)["result"] for one in answer.text.splitlines()]


async def test_built_in_policies_are_shown_and_change_nothing(world: World) -> None:
    _, trial = await begin(world, SINGLE)
    await prints(world, trial, "all is well\n")
    assert (await shown(world, trial))["logPolicyMatched"] is None
    await prints(world, trial, OOM)
    ok(await trial.exited(exit_code=1))
    found = await shown(world, trial)
    # The scheduler may have been at it already.
    assert found["state"] in ("STATE_QUEUED", "STATE_STARTING")
    assert found["logPolicyMatched"] == "CUDA OOM"
    assert (await world.launched()).spec["run_id"] == 2


async def test_a_built_in_policy_can_be_switched_off(world: World) -> None:
    _, trial = await begin(world, config("{name: CUDA OOM, pattern: null}"))
    await prints(world, trial, OOM)
    assert (await shown(world, trial))["logPolicyMatched"] is None


async def test_a_match_of_an_earlier_leg_does_not_count(world: World) -> None:
    policy = "{name: fatal, pattern: fatal, action: cancel_retries}"
    _, trial = await begin(world, config(policy))
    await prints(world, trial, "fatal\n")
    # The platform lost the leg, so the code has not failed.
    ok(await trial.exited(exit_code=None, kind="infrastructure", reason="agent lost"))
    second = await world.launched()
    ok(await second.started())
    ok(await second.exited(exit_code=1))
    assert (await world.launched()).spec["run_id"] == 3


async def test_a_match_and_a_clean_exit(world: World) -> None:
    policy = "{name: fatal, pattern: fatal, action: cancel_retries}"
    _, trial = await begin(world, config(policy))
    await prints(world, trial, "fatal, or so it seemed\n")
    ok(await trial.complete(8, 0.5))
    ok(await trial.exited())
    assert (await world.trial(trial.id))["state"] == "COMPLETED"


ECC = "{name: ECC Error, pattern: uncorrectable ECC error, action: exclude_node}"


async def test_the_next_leg_runs_elsewhere(world: World) -> None:
    _, trial = await begin(world, config(ECC))
    await prints(world, trial, "GPU 3: uncorrectable ECC error encountered\n")
    # a1 is free, and would be the first choice.
    await world.register(slots=1, agent_id="a2")
    ok(await trial.exited(exit_code=1))
    assert (await world.work(1))["launch"] == []
    second = await world.launched(agent_id="a2")
    assert (second.id, second.spec["run_id"]) == (trial.id, 2)
    # The other one may still have it when it was excluded for one trial only.
    other = await world.started(config(ECC))
    assert (await world.launched()).spec["experiment_id"] == other.experiment_id


async def test_without_agents_the_trial_ends(world: World) -> None:
    _, trial = await begin(world, config(ECC))
    await prints(world, trial, "GPU 3: uncorrectable ECC error encountered\n")
    ok(await trial.exited(exit_code=1))
    found = await world.trial(trial.id)
    assert (found["state"], found["restarts"]) == ("ERROR", 1)
    _, line = await said(world, trial)
    assert line["log"] == (
        "log policy 'ECC Error' matched: GPU 3: uncorrectable ECC error encountered; "
        f"trial {trial.id} therefore will not schedule on a1\n"
    )
    assert found["reason"] == (
        "process exited with code 1; no agent of resource pool 'default' is left for this trial: "
        "excluded a1 (log policy 'ECC Error')"
    )


async def test_without_agents_it_waits_if_the_cluster_says_so(world: World) -> None:
    await world.rows(
        """UPDATE cluster SET config = config || '{"launch_error": false}' RETURNING config"""
    )
    driver, trial = await begin(world, config(ECC))
    await prints(world, trial, "GPU 3: uncorrectable ECC error encountered\n")
    ok(await trial.exited(exit_code=1))
    assert (await world.work(1))["launch"] == []
    found = ok(await world.user.get(f"/api/v1/experiments/{driver.experiment_id}"))["experiment"]
    assert found["state"] == "STATE_QUEUED"
    assert (await world.trial(trial.id))["restarts"] == 1
    assert "therefore will not schedule on a1" in (await said(world, trial))[-1]["log"]
    # It waits for another agent.
    await world.register(slots=1, agent_id="a2")
    assert (await world.launched(agent_id="a2")).id == trial.id


async def test_a_pattern_that_cannot_be_used_is_refused(world: World) -> None:
    text = config("{name: p, pattern: 'a(?!b)', action: cancel_retries}")
    answer = await world.user.post("/api/v1/experiments", json={"config": text})
    assert answer.status_code == 400
    assert "log_policies[0].pattern" in answer.text
    assert "look-ahead" in answer.text


async def test_a_costly_pattern_is_given_up_and_that_is_said(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pattern_search, "PATTERN_S", 0.01)
    costly = "{name: costly, pattern: '(?:[ab]*a[ab]{1000}){5}c', action: cancel_retries}"
    _, trial = await begin(world, config(costly, "{name: fatal, pattern: '^fatal$'}"))
    begun, ended = asyncio.Event(), asyncio.Event()
    find = pattern_search.PatternSearch.find

    async def watched(*args: Any) -> dict[str, int]:
        begun.set()
        found = await find(*args)
        ended.set()
        return found

    monkeypatch.setattr(pattern_search.PatternSearch, "find", watched)
    text = ("ab" * 20_000 + "\n", "fatal\n")
    printing = asyncio.create_task(prints(world, trial, *text))
    await begun.wait()
    # The service answers other requests before it gives the pattern up.
    assert (await world.user.get("/health")).status_code == 200
    assert not ended.is_set()
    await printing
    await prints(world, trial, *text)
    found = await shown(world, trial)
    assert found["logPolicyMatched"] == "fatal"
    answer = await world.user.get(f"/api/v1/trials/{trial.id}/logs", params={"sources": "service"})
    (line,) = [orjson.loads(one)["result"] for one in answer.text.splitlines()]
    assert line["level"] == "LOG_LEVEL_WARNING"
    assert line["log"] == (
        "log policy 'costly' is not applied: its pattern takes too long on this log; use a simpler pattern, "
        "without repetitions such as {1000} and without repetitions of repetitions\n"
    )
