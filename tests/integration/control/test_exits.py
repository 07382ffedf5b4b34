"""The state of a trial after its process has ended, over HTTP."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

import httpx
import pytest

from determined_service.lifecycle.exits import wait_after_losses
from determined_service.loops.reconciler import Reconciler
from tests.integration.control.test_search_path import SINGLE
from tests.integration.control.world import CONFIG, Driver, Trial, World, ok
from tests.waiting import TIMEOUT_S

ONE_AT_A_TIME = CONFIG.replace("max_concurrent_trials: 2", "max_concurrent_trials: 1")
REPORTS = CONFIG.replace(
    "{name: random, metric: loss, max_length: 8, max_trials: 4, max_concurrent_trials: 2}",
    "{name: single, metric: loss}",
)


async def begin(world: World, config: str = SINGLE) -> tuple[Driver, Trial]:
    """A driven experiment and the running process of its first trial."""
    await world.register(slots=1)
    driver = await world.started(config)
    trial = await world.launched()
    ok(await trial.started())
    return driver, trial


async def test_a_failure_is_retried_from_the_latest_checkpoint_then_ends_in_error(
    world: World,
) -> None:
    driver, trial = await begin(world)
    checkpoint = "6f3f2bd4-86d5-4f35-9cd5-8c3a9f2a4a11"
    await world.rows(
        "INSERT INTO checkpoints (uuid, state, trial_id, steps_completed)"
        " VALUES (:uuid, 'COMPLETED', :id, 5) RETURNING uuid",
        uuid=checkpoint,
        id=trial.id,
    )
    await world.rows(
        "UPDATE trials SET latest_checkpoint = :uuid WHERE id = :id RETURNING id",
        uuid=checkpoint,
        id=trial.id,
    )
    ok(await trial.exited(exit_code=3))
    ok(await trial.exited(exit_code=3))  # a repeated report
    second = await world.launched()
    assert second.spec["run_id"] == 2
    assert second.spec["latest_checkpoint"] == checkpoint
    assert second.spec["steps_completed"] == 5
    ok(await second.started())
    ok(await second.exited(exit_code=None, signal=9))
    found = await world.trial(trial.id)
    assert (found["state"], found["restarts"]) == ("ERROR", 1)
    assert found["reason"].startswith("process was killed by signal 9 (SIGKILL)")
    legs = await world.rows("SELECT run_id, state, reason FROM legs ORDER BY run_id")
    assert legs[0]["reason"] == "process exited with code 3"
    assert [event["type"] for event in await world.events(driver.experiment_id)][1:] == [
        "trial_exited_early",
        "trial_closed",
    ]
    assert await driver.drive() == "ERROR"
    experiment = await world.experiment(driver.experiment_id)
    assert f"trial {trial.id}: process was killed by signal 9" in experiment["reason"]
    names = await world.told_prefect(trial.entity)
    assert names == ["Pending", "Running", "AwaitingSlots", "Pending", "Running", "Failed"]


async def test_a_program_that_cannot_start_is_not_retried(world: World) -> None:
    await world.register(slots=1)
    driver = await world.started(SINGLE)
    trial = await world.launched()
    reason = "entrypoint not found: no command 'pyhton3' on the PATH"
    ok(await trial.exited(exit_code=127, kind="failed_to_start", reason=reason))
    found = await world.trial(trial.id)
    assert found["state"] == "ERROR"
    assert reason in found["reason"]
    (leg,) = await world.rows("SELECT * FROM legs")
    assert leg["start_time"] is None
    assert await driver.drive() == "ERROR"


async def test_a_leg_lost_by_the_platform_does_not_count(world: World) -> None:
    _, trial = await begin(world, SINGLE.replace("max_restarts: 1", "max_restarts: 0"))
    ok(await trial.exited(exit_code=None, kind="infrastructure", reason="supervisor died"))
    second = await world.launched()
    assert second.spec["run_id"] == 2
    assert (await world.trial(trial.id))["restarts"] == 0
    (leg,) = await world.rows("SELECT state, reason FROM legs")
    assert leg == {"state": "LOST", "reason": "supervisor died"}


async def test_legs_lost_one_after_the_other_wait_and_then_end_the_trial(world: World) -> None:
    _, trial = await begin(world)
    reconciler = Reconciler(world.app.state.db, None, 1000.0)
    for lost in range(1, 10):
        ok(await trial.exited(kind="infrastructure", exit_code=None, reason="no memory to fork"))
        if wait := wait_after_losses(lost):
            await reconciler.run_pass()
            assert (await world.work())["launch"] == []
            line = (
                f"the platform has lost {lost} legs in a row; the next one starts in {wait:.0f} s\n"
            ).encode()
            assert line in [row["log"] for row in await world.rows("SELECT log FROM task_logs")]
            await world.rows(
                f"UPDATE legs SET end_time = now() - interval '{wait} s' WHERE run_id = {lost} RETURNING 1"
            )
            await reconciler.run_pass()
        trial = await world.launched()
    ok(await trial.exited(kind="infrastructure", exit_code=None, reason="no memory to fork"))
    found = await world.trial(trial.id)
    assert found["state"] == "ERROR"
    assert "no memory to fork" in found["reason"]


async def test_invalid_hyperparameters_complete_the_trial_and_are_replaced(world: World) -> None:
    driver, trial = await begin(world, ONE_AT_A_TIME)
    ok(await trial.early_exit("EXITED_REASON_INVALID_HP"))
    ok(await trial.exited(exit_code=1))
    assert (await world.trial(trial.id))["state"] == "COMPLETED"
    exited = [
        event
        for event in await world.events(driver.experiment_id)
        if event["type"] == "trial_exited_early"
    ]
    assert [event["reason"] for event in exited] == ["INVALID_HP"]
    finished = asyncio.Event()
    agent = asyncio.create_task(world.train_all(finished))
    assert await asyncio.wait_for(driver.drive(), TIMEOUT_S) == "COMPLETED"
    finished.set()
    assert await agent == 4
    assert len(await world.rows("SELECT 1 FROM trials")) == 5


async def test_other_reasons_are_not_the_trials_to_give(world: World) -> None:
    _, trial = await begin(world)
    refused = await trial.early_exit("EXITED_REASON_ERRORED")
    assert refused.status_code == 400
    assert "INVALID_HP" in refused.text


async def test_exit_zero_before_the_target_is_the_users_stop(world: World) -> None:
    driver, trial = await begin(world)
    ok(await trial.exited())
    assert (await world.trial(trial.id))["state"] == "COMPLETED"
    assert (await world.events(driver.experiment_id))[-2]["reason"] == "USER_REQUESTED_STOP"
    assert await driver.drive() == "COMPLETED"


async def test_in_the_reports_form_a_clean_exit_is_the_end(world: World) -> None:
    driver, trial = await begin(world, REPORTS)
    refused = await trial.client.get(f"/api/v1/trials/{trial.id}/searcher/operation")
    assert refused.status_code == 400
    assert "max_length" in refused.text
    ok(await trial.exited())
    assert [event["type"] for event in await world.events(driver.experiment_id)] == [
        "trial_created",
        "trial_closed",
    ]
    assert await driver.drive() == "COMPLETED"


async def test_a_token_dies_with_its_allocation(world: World) -> None:
    _, trial = await begin(world)
    ok(await trial.exited(exit_code=1))
    await asyncio.sleep(0.1)
    late = await trial.complete(8, 0.1)
    assert late.status_code == 409
    assert "has ended" in late.text
    assert (await trial.started()).status_code == 409


async def late_requests(trial: Trial) -> dict[str, httpx.Response]:
    """All requests of a training process."""
    path = f"/api/v1/trials/{trial.id}"
    signals = f"/api/v1/allocations/{trial.allocation_id}/signals"
    batch = {"run_id": trial.spec["run_id"], "reports": []}
    batch |= {"stream": str(uuid.uuid4()), "seq": 0}
    batch["reports"] = [{"group": "training", "steps_completed": 1, "metrics": {"loss": 1}}]
    bodies: dict[str, Any] = {
        f"{path}/metrics/batch": batch,
        f"{path}/searcher/completed_operation": {"op": {"length": 8}, "searcherMetric": 0.5},
        f"{path}/progress": 4,
        f"{path}/early_exit": {"reason": "EXITED_REASON_INVALID_HP"},
        f"{path}/runner/metadata": {"state": "training"},
        f"{signals}/ack_preemption": {},
        "/api/v1/checkpoints": {
            "uuid": str(uuid.uuid4()),
            "allocationId": trial.allocation_id,
            "resources": {},
            "metadata": {"steps_completed": 1},
        },
    }
    answers = {name: await trial.client.post(name, json=sent) for name, sent in bodies.items()}
    asked = (f"{signals}/preemption", f"{path}/searcher/operation")
    return answers | {name: await trial.client.get(name) for name in asked}


async def nothing_of(world: World, before: dict[str, Any]) -> None:
    """The trial is unchanged, and so are its related rows."""
    assert await world.trial(before["id"]) == before
    assert await world.rows("SELECT 1 FROM metrics") == []
    assert await world.rows("SELECT 1 FROM checkpoints") == []
    acks = await world.rows("SELECT 1 FROM allocations WHERE preempt_acked_at IS NOT NULL")
    assert acks == []


async def test_nothing_of_a_leg_that_was_given_up_is_taken(world: World) -> None:
    driver, trial = await begin(world)
    ok(await trial.exited(exit_code=None, kind="infrastructure", reason="agent a1 lost for 31 s"))
    await world.launched()
    before = await world.trial(trial.id)
    answers = await late_requests(trial)
    assert {name: answer.status_code for name, answer in answers.items()} == dict.fromkeys(
        answers, 409
    )
    for answer in answers.values():
        assert f"allocation {trial.allocation_id} has ended" in answer.text
    await nothing_of(world, before)
    kinds = {event["type"] for event in await world.events(driver.experiment_id)}
    assert kinds == {"trial_created"}
    # Its output still helps to find the reason.
    line = {"t": 1795266000.5, "stdtype": "stdout", "log": "late\n"}
    stream = {"stream": str(uuid.uuid4()), "seq": 0, "lines": [line]}
    owner = {"task_id": trial.spec["task_id"], "allocation_id": trial.allocation_id}
    assert ok(await world.agent.post("/internal/v1/logs", json=stream | owner)) == {"stored": 1}


async def test_nothing_is_taken_while_the_end_of_a_leg_is_still_unheard(world: World) -> None:
    """Another service process ended the leg, and its announcement is late: the token is still remembered
    here."""
    _, trial = await begin(world)
    await trial.operation()  # the token was verified just now
    before = await world.trial(trial.id)
    await world.rows("UPDATE allocations SET state = 'TERMINATED', ended_at = now() RETURNING 1")
    answers = await late_requests(trial)
    taken = [name for name, answer in answers.items() if answer.status_code != 409]
    # It may ask for its operation.
    assert set(taken) <= {f"/api/v1/trials/{trial.id}/searcher/operation"}
    await nothing_of(world, before)


@pytest.mark.parametrize(
    ("length", "metric", "status", "text"),
    [
        (8, 0.5, 200, ""),
        (8, "NaN", 200, ""),
        (8, "good", 400, "must be a number"),
        (8, None, 400, "must be a number"),
        (8, True, 400, "must be a number"),
        (7, 0.5, 400, "expected the operation of length 8, but received length 7"),
    ],
)
async def test_reports_are_checked(
    world: World, length: int, metric: object, status: int, text: str
) -> None:
    _, trial = await begin(world)
    answer = await trial.complete(length, metric)
    assert answer.status_code == status
    assert text in answer.text


async def test_a_report_counts_once(world: World) -> None:
    driver, trial = await begin(world)
    ok(await trial.complete(8, "NaN"))
    ok(await trial.complete(8, "NaN"))  # the answer was lost, the client asks again
    twice = await trial.complete(8, 0.25)
    assert twice.status_code == 400
    assert "already completed" in twice.text
    kinds = [event["type"] for event in await world.events(driver.experiment_id)]
    assert kinds.count("validation_completed") == 1


async def test_progress_reaches_the_trial_and_the_searcher(world: World) -> None:
    driver, trial = await begin(world)
    path = f"/api/v1/trials/{trial.id}/progress"
    ok(await trial.client.post(path, json=2))
    ok(await trial.client.post(path, json=4))
    assert (await world.trial(trial.id))["progress"] == 0.5
    ok(await trial.client.post(path, json={"progress": 0.75, "isRaw": False}))
    assert (await world.trial(trial.id))["progress"] == 0.75
    told = [e for e in await world.events(driver.experiment_id) if e["type"] == "trial_progress"]
    assert [event["progress"] for event in told] == [2.0]
    assert (await trial.client.post(path, json="much")).status_code == 400


async def test_the_runner_state_is_kept(world: World) -> None:
    _, trial = await begin(world)
    path = f"/api/v1/trials/{trial.id}/runner/metadata"
    ok(await trial.client.post(path, json={"state": "training"}))
    assert (await world.trial(trial.id))["runner_state"] == "training"


async def test_a_trial_speaks_for_itself_only(world: World) -> None:
    _, trial = await begin(world)
    other = await trial.client.post(f"/api/v1/trials/{trial.id + 1}/progress", json=1)
    assert other.status_code == 403
