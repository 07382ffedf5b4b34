"""The service's side of a custom search: a queue of events, and answers that count once."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

import httpx
import pytest

from tests.integration.control.world import CONFIG, Trial, World, ok
from tests.waiting import TIMEOUT_S

CUSTOM = CONFIG.replace(
    "{name: random, metric: loss, max_length: 8, max_trials: 4, max_concurrent_trials: 2}",
    "{name: custom, metric: loss, unit: batches, of_my_own: 1}",
)
A, B, C = (str(uuid.UUID(int=n, version=4)) for n in (1, 2, 3))


def create(trial: str, **fields: Any) -> dict[str, Any]:
    return {"createTrial": {"requestId": trial, "hyperparams": '{"x": 5}', **fields}}


def train(trial: str, length: int) -> dict[str, Any]:
    return {"trialOperation": {"validateAfter": {"requestId": trial, "length": str(length)}}}


def close(trial: str) -> dict[str, Any]:
    return {"closeTrial": {"requestId": trial}}


class Search:
    """A search method's side, by hand."""

    def __init__(self, world: World, experiment_id: int) -> None:
        self.world = world
        self.id = experiment_id
        self.path = f"/api/v1/experiments/{experiment_id}"
        self.driver = str(uuid.uuid4())

    @classmethod
    async def begin(cls, world: World, *operations: Any, slots: int = 2) -> Search:
        """A new experiment whose first event is answered with ``operations``."""
        await world.register(slots=slots)
        search = cls(world, await world.submit(CUSTOM))
        await search.attach()
        ok(await search.answer(1, *operations))
        return search

    async def attach(self) -> dict[str, Any]:
        path = f"/internal/v1/experiments/{self.id}/search/attach"
        return ok(await self.world.agent.post(path, json={"driver": self.driver}))

    async def follow(self, timeout_s: float = 0, **params: Any) -> httpx.Response:
        path = f"/internal/v1/experiments/{self.id}/search/follow"
        given = {"driver": self.driver, "timeout_s": timeout_s} | params
        return await self.world.agent.get(path, params=given)

    async def events(self, timeout_s: float = 0) -> list[dict[str, Any]]:
        answer = await self.world.user.get(
            f"{self.path}/searcher_events", params={"timeout_s": timeout_s}
        )
        return list(ok(answer)["searcherEvents"])

    async def kinds(self) -> list[str]:
        return [next(key for key in event if key != "id") for event in await self.events()]

    async def answer(self, event_id: int, *operations: Any) -> httpx.Response:
        body = {
            "experimentId": self.id,
            "triggeredByEvent": {"id": event_id},
            "searcherOperations": list(operations),
        }
        return await self.world.user.post(f"{self.path}/searcher_operations", json=body)

    async def answer_all(self, *operations: Any) -> None:
        """An answer to the last event also answers all earlier events."""
        ok(await self.answer((await self.events())[-1]["id"], *operations))

    async def state(self) -> str:
        return str((await self.world.experiment(self.id))["state"])


async def test_a_search_from_its_first_event_to_its_end(world: World) -> None:
    await world.register(slots=1)
    search = Search(world, await world.submit(CUSTOM))
    assert await search.events() == [{"id": 1, "initialOperations": {"placeholder": 0}}]
    assert (await search.attach())["snapshot"] is None
    ok(await search.answer(1, create(A), {"setSearcherProgress": {"progress": 0.25}}))
    assert await search.events() == [{"id": 2, "trialCreated": {"requestId": A}}]
    assert not (await world.work())["launch"], "a trial without a target holds no slot"
    ok(await search.answer(2, train(A, 4)))
    trial = await world.launched()
    ok(await trial.started())
    assert (await trial.operation())["op"]["validateAfter"]["length"] == "4"
    ok(await trial.complete(4, {"loss": 0.5}))
    waiting = asyncio.create_task(trial.operation(timeout_s=20))
    (event,) = await search.events(5)
    assert event["validationCompleted"] == {
        "requestId": A,
        "metric": {"loss": 0.5},
        "validateAfterLength": "4",
    }
    await asyncio.sleep(0.2)
    assert not waiting.done(), "the trial waits for the search method"
    ok(await search.answer(event["id"], train(A, 9)))
    found = await asyncio.wait_for(waiting, TIMEOUT_S)
    assert (found["completed"], found["op"]["validateAfter"]["length"]) == (False, "9")
    ok(await trial.complete(9, 0.25))
    await search.answer_all(close(A))
    assert (await trial.operation())["completed"]
    await trial.acknowledge()
    ok(await trial.exited())
    (event,) = await search.events(5)
    assert event["trialClosed"] == {"requestId": A}
    assert (await world.experiment(search.id))["progress"] == 0.25
    assert await search.state() == "ACTIVE", "only a shutdown ends a custom search"
    ok(await search.answer(event["id"], {"shutDown": {"cancel": False, "failure": False}}))
    experiment = await world.experiment(search.id)
    assert (experiment["state"], experiment["progress"]) == ("COMPLETED", 1.0)
    assert experiment["reason"] == "the search is complete"
    ended = [{"id": -1, "experimentInactive": {"experimentState": "STATE_COMPLETED"}}]
    assert await search.events(5) == ended
    row = await world.trial(trial.id)
    assert (row["state"], row["seed"], row["hparams"]) == ("COMPLETED", 42, {"x": 5})


async def test_a_trial_that_waits_for_a_slow_method_gives_its_slot_back(world: World) -> None:
    search = await Search.begin(world, create(A), train(A, 4), slots=1)
    trial = await world.launched()
    ok(await trial.started())
    ok(await trial.complete(4, 0.5))
    assert (await trial.operation(timeout_s=0.2))["completed"]
    await trial.acknowledge()
    ok(await trial.exited())
    assert not (await world.work())["launch"]
    assert await search.kinds() == ["trialCreated", "validationCompleted"]
    await search.answer_all(train(A, 8))
    again = await world.launched()
    assert again.id == trial.id
    assert (await again.operation())["op"]["validateAfter"]["length"] == "8"


RUNNER = CONFIG.replace(
    "{name: random, metric: loss, max_length: 8, max_trials: 4, max_concurrent_trials: 2}",
    "{name: single, metric: loss, max_length: 1}",
)


async def test_a_runner_is_not_queued_behind_its_own_trials(world: World) -> None:
    """Its search's idle trials make room for it, and those in line let it pass; others do not."""
    await world.register(slots=2)
    outer = await world.started(RUNNER)
    await outer.step()
    runner = await world.launched()
    ok(await runner.started())
    submitted = ok(await runner.client.post("/api/v1/experiments", json={"config": CUSTOM}))
    search = Search(world, int(submitted["experiment"]["id"]))
    await search.attach()
    ok(
        await search.answer(
            1, *(step for one in (A, B, C) for step in (create(one), train(one, 4)))
        )
    )
    first = await world.launched()
    ok(await first.started())
    ok(await first.complete(4, 0.5))
    idle = asyncio.create_task(first.operation(timeout_s=60))
    other = await world.started(RUNNER)  # somebody else's, in line behind the search's trials
    await other.step()
    # The runner leaves; its slot goes to the next trial in line.
    ok(await world.act(outer.experiment_id, "pause"))
    await runner.acknowledge()
    ok(await runner.exited())
    second = await world.launched()
    assert second.spec["experiment_id"] == search.id
    assert not idle.done(), "a runner that does not ask for slots is not waited for"
    # It comes back: the idle trial gives its slot up at once, and the third one lets the runner pass.
    ok(await world.act(outer.experiment_id, "activate"))
    found = await asyncio.wait_for(idle, 5)
    assert (found["completed"], found["reason"]) == (True, "RUNNER_WAITS")
    await first.acknowledge()
    ok(await first.exited())
    again = await world.launched()
    assert again.id == runner.id
    # Now that the runner has slots, a trial waits for its answer as usual.
    ok(await again.started())
    ok(await second.started())
    ok(await second.complete(4, 0.25))
    assert (await second.operation(timeout_s=0.1))["reason"] == "UNDECIDED"
    # The rest of the line is unchanged: the search's third trial, then the other experiment.
    await second.acknowledge()
    ok(await second.exited())
    third = await world.launched()
    assert third.spec["experiment_id"] == search.id
    ok(await third.exited())
    assert (await world.launched()).spec["experiment_id"] == other.experiment_id


async def test_a_trial_is_told_why_there_is_no_operation(world: World) -> None:
    search = await Search.begin(world, create(A), train(A, 4), slots=1)
    trial = await world.launched()
    ok(await trial.started())
    assert "reason" not in await trial.operation()
    ok(await trial.complete(4, 0.5))
    assert (await trial.operation(timeout_s=0))["reason"] == "UNDECIDED"
    await search.answer_all()
    assert (await trial.operation())["reason"] == "DECIDED"
    ok(await world.act(search.id, "cancel"))
    assert (await trial.operation())["reason"] == "OVER"


async def test_events_are_waited_for(world: World) -> None:
    search = await Search.begin(world, create(A), train(A, 4))
    await search.answer_all()
    assert await search.events(0.2) == []
    waiting = asyncio.create_task(search.events(20))
    trial = await world.launched()
    ok(await trial.started())
    ok(await trial.complete(4, "NaN"))
    (event,) = await asyncio.wait_for(waiting, TIMEOUT_S)
    assert event["validationCompleted"]["metric"] == "NaN"


async def test_an_event_is_answered_once(world: World) -> None:
    search = await Search.begin(world, create(A), create(B))
    assert [event["id"] for event in await search.events()] == [2, 3]
    for number in (1, 4, -1, 0):
        refused = await search.answer(number, close(A))
        assert refused.status_code == 404
        assert f"event {number} not found" in refused.text
    ok(await search.answer(3))
    assert await search.events() == []
    assert (await search.answer(2)).status_code == 404
    assert (await search.answer(3)).status_code == 404
    assert len(await world.rows("SELECT 1 FROM trials")) == 2


@pytest.mark.parametrize(
    ("operations", "words"),
    [
        ([close(B)], "no such trial"),
        ([train(B, 3)], "no such trial"),
        ([create(A)], f"the request id {A} is that of another trial"),
        ([create(B), create(B)], f"the request id {B} is that of another trial"),
        ([train(A, 3), train(A, 5)], "several operations at once"),
        ([create(B, checkpoint=A)], f"createTrial.checkpoint: no complete checkpoint {A}"),
    ],
)
async def test_contradictory_requests_are_refused_whole(
    world: World, operations: list[Any], words: str
) -> None:
    search = await Search.begin(world, create(A))
    before = await search.events()
    refused = await search.answer(2, create(C), *operations)
    assert refused.status_code == 400
    assert words in refused.text
    assert await search.events() == before
    assert (await world.row("SELECT op_length FROM trials"))["op_length"] is None
    ok(await search.answer(2, create(C)))


async def test_unreadable_files_are_left_out(world: World) -> None:
    search = await Search.begin(world)
    search = Search(world, await world.submit(CUSTOM))
    answer = ok(await search.answer(1, {"dance": {}}, create(A), {"closeTrial": {}}))
    assert [problem[:21] for problem in answer["skipped"]] == [
        "searcherOperations[0]",
        "searcherOperations[2]",
    ]
    assert await search.kinds() == ["trialCreated"]


@pytest.mark.parametrize("body", [{}, {"triggeredByEvent": {}}, {"triggeredByEvent": {"id": "x"}}])
async def test_an_answer_without_its_event(world: World, body: Any) -> None:
    search = await Search.begin(world)
    refused = await world.user.post(f"{search.path}/searcher_operations", json=body)
    assert refused.status_code == 400
    assert "triggeredByEvent" in refused.text
    refused = await world.user.post(f"{search.path}/searcher_operations", json=[])
    assert refused.status_code == 400
    assert "must be an object, not a list" in refused.text


async def test_another_search_and_no_search(world: World) -> None:
    other = Search(world, await world.submit())
    for answer in (
        await world.user.get(f"{other.path}/searcher_events"),
        await other.answer(1, close(A)),
    ):
        assert answer.status_code == 400
        assert "has the searcher 'random', which the cluster runs itself" in answer.text
    missing = await world.user.get("/api/v1/experiments/999/searcher_events")
    assert missing.status_code == 404


async def test_a_pause_wakes_the_runner_and_keeps_the_queue(world: World) -> None:
    search = await Search.begin(world, create(A), train(A, 4))
    await search.answer_all()
    waiting = asyncio.create_task(search.events(20))
    await asyncio.sleep(0.1)
    ok(await world.act(search.id, "pause"))
    paused = [{"id": -1, "experimentInactive": {"experimentState": "STATE_PAUSED"}}]
    assert await asyncio.wait_for(waiting, TIMEOUT_S) == paused
    assert await search.events() == paused
    ok(await world.act(search.id, "activate"))
    trial = await world.launched()
    ok(await trial.started())
    ok(await trial.complete(4, 1.0))
    ok(await world.act(search.id, "pause"))
    assert await search.events() == paused
    # The service accepts an answer that was sent before the pause.
    ok(await search.answer(3, create(B), train(B, 2)))
    assert not (await world.work())["launch"]
    await trial.acknowledge()
    ok(await trial.exited())
    ok(await world.act(search.id, "activate"))
    assert await search.kinds() == ["trialCreated"]
    assert (await world.launched()).spec["trial_id"] != trial.id


@pytest.mark.parametrize(("verb", "state"), [("cancel", "CANCELED"), ("kill", "CANCELED")])
async def test_an_end_by_the_user(world: World, verb: str, state: str) -> None:
    search = await Search.begin(world, create(A), train(A, 4))
    await search.answer_all()
    trial = await world.launched()
    ok(await trial.started())
    waiting = asyncio.create_task(search.events(20))
    ok(await world.act(search.id, verb))
    await asyncio.sleep(0.2)
    assert not waiting.done(), "what it becomes is worth waiting for"
    ok(await trial.exited(exit_code=None, exit_signal=9))
    found = await asyncio.wait_for(waiting, TIMEOUT_S)
    assert found == [{"id": -1, "experimentInactive": {"experimentState": f"STATE_{state}"}}]
    last = (await world.row("SELECT last_event_id FROM searches"))["last_event_id"]
    # Too late, and no error.
    ok(await search.answer(last, create(B)))
    assert len(await world.rows("SELECT 1 FROM trials")) == 1


@pytest.mark.parametrize(
    ("shutdown", "state", "reason"),
    [
        ({"failure": True, "cancel": True}, "ERROR", "ended the search as failed"),
        ({"cancel": True}, "CANCELED", "the search method canceled the search"),
        ({}, "COMPLETED", "the search is complete"),
    ],
)
async def test_shutdowns(world: World, shutdown: dict[str, bool], state: str, reason: str) -> None:
    search = await Search.begin(world, create(A))
    ok(await search.answer(2, {"shutDown": shutdown}, {"setSearcherProgress": {"progress": 0.5}}))
    experiment = await world.experiment(search.id)
    assert experiment["state"] == state
    assert reason in experiment["reason"]


async def test_failures_and_invalid_hyperparameters(world: World) -> None:
    search = await Search.begin(world, create(A), train(A, 4), create(B), train(B, 4))
    await search.answer_all()
    first, second = (Trial(world, spec) for spec in (await world.both())["launch"])
    for trial in (first, second):
        ok(await trial.started())
    ok(await first.early_exit("EXITED_REASON_INVALID_HP"))
    ok(await first.exited())
    assert [event.get("trialExitedEarly") for event in await search.events()] == [
        {"requestId": A, "exitedReason": "EXITED_REASON_INVALID_HP"},
        None,
    ]
    await search.answer_all()
    for _ in range(2):  # max_restarts: 1
        ok(await second.exited(exit_code=1))
        launched = (await world.work(0.5))["launch"]
        if launched:
            second = Trial(world, launched[0])
            ok(await second.started())
    assert [event.get("trialExitedEarly") for event in await search.events()] == [
        {"requestId": B, "exitedReason": "EXITED_REASON_UNSPECIFIED"},
        None,
    ]


async def test_a_trial_made_to_be_closed(world: World) -> None:
    search = await Search.begin(world, create(A), close(A))
    assert await search.kinds() == ["trialCreated", "trialClosed"]
    assert not (await world.work())["launch"]


async def test_progress_of_trials_is_in_the_queue(world: World) -> None:
    search = await Search.begin(world, create(A), train(A, 8))
    await search.answer_all()
    trial = await world.launched()
    ok(await trial.started())
    ok(await trial.client.post(f"/api/v1/trials/{trial.id}/progress", json=2.0))
    (event,) = await search.events()
    assert event["trialProgress"] == {"requestId": A, "partialUnits": 2.0}


async def test_a_warm_start(world: World) -> None:
    checkpoint = str(uuid.uuid4())
    await world.rows(
        "INSERT INTO checkpoints (uuid, state) VALUES (cast(:id AS uuid), 'COMPLETED') RETURNING uuid",
        id=checkpoint,
    )
    await Search.begin(world, create(A, checkpoint=checkpoint, seed=5), train(A, 4))
    trial = await world.launched()
    assert trial.spec["latest_checkpoint"] == checkpoint
    row = await world.trial(trial.id)
    assert (str(row["warm_start_checkpoint"]), row["seed"]) == (checkpoint, 5)


async def test_the_flow_is_told_of_trials_without_a_run(world: World) -> None:
    await world.register()
    search = Search(world, await world.submit(CUSTOM))
    await search.attach()
    first = ok(await search.follow())
    assert (first["state"], first["trials"], first["ended"]) == ("ACTIVE", [], False)
    waiting = asyncio.create_task(search.follow(10, state="ACTIVE"))
    await asyncio.sleep(0.1)
    assert not waiting.done()
    ok(await search.answer(1, create(A)))
    (trial,) = ok(await asyncio.wait_for(waiting, TIMEOUT_S))["trials"]
    assert (trial["request_id"], trial["hparams"]) == (A, {"x": 5})
    assert ok(await search.follow())["trials"] == [trial], "until it has one"
    run = {"flow_run_id": str(uuid.uuid4())}
    ok(await world.agent.post(f"/internal/v1/trials/{trial['trial_id']}/run", json=run))
    assert ok(await search.follow())["trials"] == []
    waiting = asyncio.create_task(search.follow(10, state="ACTIVE"))
    ok(await world.act(search.id, "kill"))
    ended = ok(await asyncio.wait_for(waiting, TIMEOUT_S))
    assert (ended["state"], ended["reason"], ended["ended"]) == (
        "CANCELED",
        "killed by the user",
        True,
    )


async def test_a_replaced_flow_is_sent_away(world: World) -> None:
    search = await Search.begin(world)
    old, search.driver = search.driver, str(uuid.uuid4())
    await search.attach()
    search.driver = old
    refused = await search.follow()
    assert refused.status_code == 409


async def test_a_custom_search_is_dry_run_and_kept_whole(world: World) -> None:
    answer = ok(
        await world.user.post("/api/v1/experiments", json={"config": CUSTOM, "validateOnly": True})
    )
    assert answer["config"]["searcher"]["of_my_own"] == 1
