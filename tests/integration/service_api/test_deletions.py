"""Deleting checkpoints and experiments: choice, marking, repetition and refusals.

The flow that removes the files is played by the tests; the runs in Prefect by :class:`FakeRuns`.
"""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

import httpx
import pytest
import sqlalchemy as sa

from determined_registry.database.tables import (
    checkpoints,
    deletions,
    experiments,
    kept_runs,
    legs,
    metadata,
    tasks,
    trials,
)
from determined_service.base.errors import Conflict
from determined_service.deleting import deletions as deleting
from determined_service.lifecycle import tasks as tasking
from determined_service.prefect.keeper import MAX_INTERRUPTIONS
from determined_service.state.change import changing
from tests.integration.service_api.flow_runs import FakeRuns, keep
from tests.integration.service_api.test_checkpoints import store
from tests.integration.service_api.test_task_logs import line, read, send
from tests.integration.service_api.world import Leg, World, report
from tests.waiting import until_async

STORAGE = {"type": "shared_fs", "host_path": "/data", "save_trial_best": 1, "save_trial_latest": 1}
SEARCHER = {"name": "random", "metric": "loss", "smaller_is_better": True, "max_trials": 4}
CONFIG = {"searcher": SEARCHER, "hyperparameters": {}, "checkpoint_storage": STORAGE}


@pytest.fixture
def runs() -> FakeRuns:
    return FakeRuns()


_DELETIONS = (
    sa.select(
        deletions,
        kept_runs.c.flow_run_id,
        kept_runs.c.interruptions,
        sa.case(dict(deleting.SHOWN_STATE), value=tasks.c.state).label("state"),
    )
    .join(tasks, tasks.c.id == deletions.c.task_id)
    .join(kept_runs, kept_runs.c.deletion_id == deletions.c.id)
    .order_by(deletions.c.id)
)


class Collector:
    """What happens around the flow, and the flow's own words."""

    def __init__(self, world: World, runs: FakeRuns, agent: httpx.AsyncClient) -> None:
        self.world = world
        self.agent = agent
        self.runs = runs

    async def keep(self) -> None:
        await keep(self.world.app, self.runs)

    async def open(self) -> list[Any]:
        return await self.world.rows(_DELETIONS)

    async def work(self, deletion_id: int) -> dict[str, Any]:
        answer = await self.agent.get(f"/internal/v1/deletions/{deletion_id}")
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    async def chosen(self, deletion_id: int) -> set[str]:
        places = (await self.work(deletion_id))["places"]
        return {name for place in places for name in place["checkpoints"]}

    async def tell(self, deletion_id: int, **left: dict[str, int]) -> None:
        path = f"/internal/v1/deletions/{deletion_id}/deleted"
        names = {name.replace("_", "-"): rest for name, rest in left.items()}
        assert (await self.agent.post(path, json={"left": names})).status_code == 200

    async def end(self, deletion_id: int, error: str | None = None) -> int:
        path = f"/internal/v1/deletions/{deletion_id}/end"
        return (await self.agent.post(path, json={"error": error})).status_code

    async def carry_out(self, deletion_id: int) -> None:
        for name in await self.chosen(deletion_id):
            await self.tell(deletion_id, **{name: {}})
        assert await self.end(deletion_id) == 200


@pytest.fixture
def collector(world: World, runs: FakeRuns, agent: httpx.AsyncClient) -> Collector:
    return Collector(world, runs, agent)


async def states(world: World) -> dict[str, str]:
    rows = await world.rows(sa.select(checkpoints.c.uuid, checkpoints.c.state))
    return {str(row.uuid): row.state for row in rows}


async def validated(leg: Leg, *losses: float | str | None) -> list[str]:
    """A checkpoint per loss, after 10, 20, … steps; None: without a validation."""
    names = []
    for place, loss in enumerate(losses, 1):
        if loss is not None:
            await leg.store(report(place * 10, "validation", loss=loss))
        time = f"2026-11-21T13:00:{place:02}Z"
        names.append(await store(leg, place * 10, reportTime=time))
    return names


async def ended(world: World, leg: Leg, flow_run_id: uuid.UUID | None = None) -> None:
    async with world.db.tx() as conn:
        await conn.execute(
            sa.update(legs).where(legs.c.task_id == leg.task_id).values(state="COMPLETED")
        )
        for table, row in ((trials, leg.trial_id), (experiments, leg.experiment_id)):
            await conn.execute(sa.update(table).where(table.c.id == row).values(state="COMPLETED"))
        await conn.execute(
            sa.update(tasks).where(tasks.c.id == leg.task_id).values(flow_run_id=flow_run_id)
        )
        if flow_run_id is not None:
            given = {"experiment_id": leg.experiment_id, "flow_run_id": flow_run_id}
            await conn.execute(sa.insert(kept_runs).values(settled=True, **given))
    await world.end(leg)


async def collect(world: World, leg: Leg) -> int:
    async with changing(world.db) as change:
        return await deleting.collect_garbage(change, leg.experiment_id)


@pytest.mark.parametrize("problem", [None, "disk on fire"])
async def test_tensorboard_files_are_gone_when_the_request_is_answered(
    world: World, collector: Collector, user: httpx.AsyncClient, problem: str | None
) -> None:
    leg = await world.leg(config=CONFIG)
    await ended(world, leg)
    path = f"/api/v1/experiments/{leg.experiment_id}/tensorboard-files"
    at_once = (await user.delete(path, params={"timeout_seconds": 0})).json()
    assert at_once["state"] == "STATE_REQUESTED"
    assert await collector.end(at_once["deletionId"]) == 200

    asking = asyncio.create_task(user.delete(path))
    second = await until_async("the second request", lambda: _second(collector))
    assert not asking.done()
    assert await collector.end(second, problem) == 200
    answer = await asking
    if problem is None:
        assert answer.json() == {"deletionId": second, "state": "STATE_DONE"}
    else:
        assert answer.status_code == 409
        assert answer.json()["message"].endswith("could not be deleted: disk on fire")


async def _second(collector: Collector) -> int | None:
    rows = await collector.open()
    return int(rows[1].id) if len(rows) > 1 else None


async def test_work_under_way_is_among_the_running_tasks(
    world: World, collector: Collector, user: httpx.AsyncClient
) -> None:
    leg = await world.leg(config=CONFIG)
    await validated(leg, 0.9, 0.1, 0.5)
    await ended(world, leg)

    async def names() -> list[list[str]]:
        new, old = [(await user.get(path)).json() for path in ("/api/v1/tasks", "/tasks")]
        return [[one["name"] for one in found.values()] for found in (new[SUMMARIES], old)]

    deletion_id = await collect(world, leg)
    await collector.keep()
    assert await names() == [[f"Checkpoint GC (Experiment {leg.experiment_id})"]] * 2
    await collector.carry_out(deletion_id)
    assert await names() == [[], []]


SUMMARIES = "allocationIdToSummary"


async def test_checkpoints_outside_the_policy(world: World, collector: Collector) -> None:
    leg = await world.leg(config=CONFIG)
    bad, best, nan, worse, latest = await validated(leg, 0.9, 0.1, "NaN", 0.5, None)
    await ended(world, leg)
    deletion_id = await collect(world, leg)
    await collector.keep()
    assert await collector.chosen(deletion_id) == {bad, nan, worse}
    (place,) = (await collector.work(deletion_id))["places"]
    assert place["storage"] == STORAGE
    assert place["unfinished_of"].endswith(f".{leg.experiment_id}.")
    assert place["discard"] == []
    # Files first: no row says DELETED yet.
    assert set((await states(world)).values()) == {"COMPLETED"}
    assert await collector.end(deletion_id) == 409
    await collector.carry_out(deletion_id)
    gone = dict.fromkeys((bad, nan, worse), "DELETED")
    assert await states(world) == gone | {best: "COMPLETED", latest: "COMPLETED"}
    (row,) = await collector.open()
    assert row.state == "DONE"
    # Once more: nothing to do, so no run is made.
    again = await collect(world, leg)
    await collector.keep()
    (_, row) = await collector.open()
    assert (row.id, row.state, row.flow_run_id) == (again, "DONE", None)


async def test_checkpoints_that_trials_start_from_are_kept(
    world: World, collector: Collector
) -> None:
    leg = await world.leg(config=CONFIG)
    used, named, free, _, _ = await validated(leg, 0.9, 0.8, 0.7, 0.1, None)
    await ended(world, leg)
    other = await world.experiment(
        config={"searcher": SEARCHER | {"source_checkpoint_uuid": named}, "hyperparameters": {}}
    )
    await world.trial(other, state="COMPLETED", warm_start_checkpoint=used)
    deletion_id = await collect(world, leg)
    await collector.keep()
    assert await collector.chosen(deletion_id) == {free}


async def test_searches_for_the_script_alone_are_left_to_it(
    world: World, collector: Collector, user: httpx.AsyncClient
) -> None:
    leg = await world.leg(config=CONFIG)
    own = await store(leg, 1, storage={"type": "own"})
    elsewhere = await store(leg, 2, storage={"type": "directory", "container_path": "/scratch"})
    body = {"checkpointUuids": [own, elsewhere]}
    answer = await user.request("DELETE", "/api/v1/checkpoints", json=body)
    assert answer.status_code == 409
    assert own in answer.json()["error"]["error"]
    await ended(world, leg)
    await user.delete(f"/api/v1/experiments/{leg.experiment_id}")
    await collector.keep()
    (row,) = await collector.open()
    places = (await collector.work(row.id))["places"]
    assert [(place["storage"]["type"], place["checkpoints"]) for place in places] == [
        ("shared_fs", []),
        ("directory", [elsewhere]),
    ]


async def test_a_run_that_dies_is_started_again(
    world: World, collector: Collector, runs: FakeRuns
) -> None:
    leg = await world.leg(config=CONFIG)
    first, second, _ = await validated(leg, 0.9, 0.8, 0.1)
    await ended(world, leg)
    deletion_id = await collect(world, leg)
    await collector.keep()
    await collector.keep()
    await collector.tell(deletion_id, **{first: {}})
    runs.all_become("CRASHED")
    await collector.keep()
    assert set(runs.states.values()) == {"SCHEDULED"}
    assert await collector.chosen(deletion_id) == {second}
    await collector.carry_out(deletion_id)
    await collector.keep()
    # The run has died once more, and its work is done.
    assert len(runs.keys) == 1
    assert set(runs.states.values()) == {"COMPLETED"}


async def test_it_gives_up_in_the_end_and_says_why(
    world: World, collector: Collector, runs: FakeRuns
) -> None:
    leg = await world.leg(config=CONFIG)
    await validated(leg, 0.9, 0.8, 0.1)
    await ended(world, leg)
    await collect(world, leg)
    for _ in range(MAX_INTERRUPTIONS + 3):
        await collector.keep()
        runs.all_become("CRASHED")
    (row,) = await collector.open()
    assert (row.state, row.interruptions) == ("FAILED", MAX_INTERRUPTIONS)
    # The experiment is unchanged, and the next collection takes the same checkpoints.
    assert (await world.rows(sa.select(experiments.c.state)))[0].state == "COMPLETED"
    deletion_id = await collect(world, leg)
    await collector.keep()
    assert len(await collector.chosen(deletion_id)) == 2


async def test_deleting_by_name_and_by_glob(
    world: World, collector: Collector, user: httpx.AsyncClient
) -> None:
    leg = await world.leg(config=CONFIG)
    first, second, third = await validated(leg, 0.3, 0.2, 0.1)
    body = {"checkpointUuids": [third], "checkpointGlobs": ["*.pt"]}
    answer = await user.post("/api/v1/checkpoints/rm", json=body)
    deletion_id = answer.json()["deletionId"]
    assert (await collector.work(deletion_id))["globs"] == ["*.pt"]
    (row,) = await world.rows(sa.select(trials))
    assert str(row.latest_checkpoint) == second
    await collector.tell(deletion_id, **{third: {"sub/": 0, "sub/optimizer.pt": 24}})
    assert await collector.end(deletion_id) == 200
    shown = (await user.get(f"/api/v1/checkpoints/{third}")).json()["checkpoint"]
    assert shown["state"] == "STATE_PARTIALLY_DELETED"
    assert shown["resources"] == {"sub/": "0", "sub/optimizer.pt": "24"}
    body = {"checkpointUuids": [first, third]}
    answer = await user.request("DELETE", "/api/v1/checkpoints", json=body)
    deletion_id = answer.json()["deletionId"]
    assert await collector.chosen(deletion_id) == {first, third}
    await collector.carry_out(deletion_id)
    assert await states(world) == {first: "DELETED", second: "COMPLETED", third: "DELETED"}
    answer = await user.request("DELETE", "/api/v1/checkpoints", json=body)
    assert answer.json() == {"deletionId": None}
    found = (await user.get(f"/api/v1/deletions/{deletion_id}")).json()
    assert (found["state"], found["reason"]) == ("STATE_DONE", None)


async def test_deletions_that_overlap(
    world: World, collector: Collector, user: httpx.AsyncClient
) -> None:
    """Each run reports the files seen in its storage, late, twice, in any order."""
    leg = await world.leg(config=CONFIG)
    first, second, third = await validated(leg, 0.3, 0.2, 0.1)
    before = (await user.get(f"/api/v1/checkpoints/{third}")).json()["checkpoint"]["resources"]
    every = {path: int(size) for path, size in before.items()}
    body = {"checkpointUuids": [third], "checkpointGlobs": ["nothing"]}
    some = (await user.post("/api/v1/checkpoints/rm", json=body)).json()["deletionId"]
    body = {"checkpointUuids": [third]}
    all_ = (await user.request("DELETE", "/api/v1/checkpoints", json=body)).json()["deletionId"]
    # The first one had begun before the second one was asked for: it takes nothing from its work.
    await collector.tell(some, **{third: every})
    assert await collector.chosen(all_) == {third}
    (trial,) = await world.rows(sa.select(trials))
    assert str(trial.latest_checkpoint) == second, "it is about to go"
    assert await collector.end(all_) == 409
    await collector.tell(all_, **{third: {}})
    for late in (some, all_, some):
        await collector.tell(late, **{third: every})
        (row,) = await world.rows(sa.select(checkpoints).where(checkpoints.c.state == "DELETED"))
        assert (str(row.uuid), row.resources, row.size, row.checksums) == (third, every, 0, {})
        assert row.deletion_id is None
    body = {"checkpointUuids": [second, third], "checkpointGlobs": []}
    looking = (await user.post("/api/v1/checkpoints/rm", json=body)).json()["deletionId"]
    assert await collector.chosen(looking) == {second}
    await collector.tell(looking, **{second: every, third: every})
    assert await states(world) == {first: "COMPLETED", second: "COMPLETED", third: "DELETED"}


async def test_without_globs_it_is_only_looked_at(
    world: World, collector: Collector, user: httpx.AsyncClient
) -> None:
    leg = await world.leg(config=CONFIG)
    first, second, third = await validated(leg, 0.3, 0.2, 0.1)
    before = (await user.get(f"/api/v1/checkpoints/{second}")).json()["checkpoint"]
    body = {"checkpointUuids": [first, second, third], "checkpointGlobs": []}
    deletion_id = (await user.post("/api/v1/checkpoints/rm", json=body)).json()["deletionId"]
    assert (await collector.work(deletion_id))["globs"] == []
    sizes = {path: int(size) for path, size in before["resources"].items()}
    some = dict(list(sizes.items())[:1])
    await collector.tell(deletion_id, **{first: {}, second: some, third: sizes})
    assert await collector.end(deletion_id) == 200
    wanted = {first: "DELETED", second: "PARTIALLY_DELETED", third: "COMPLETED"}
    assert await states(world) == wanted
    shown = (await user.get(f"/api/v1/checkpoints/{second}")).json()["checkpoint"]
    assert shown["resources"] == {path: str(size) for path, size in some.items()}
    # The trial goes on from the complete checkpoint again.
    (row,) = await world.rows(sa.select(trials))
    assert str(row.latest_checkpoint) == third


async def test_a_deletion_is_a_task(
    world: World, collector: Collector, runs: FakeRuns, user: httpx.AsyncClient
) -> None:
    leg = await world.leg(config=CONFIG)
    first, _ = await validated(leg, 0.3, 0.2)
    await world.rows(
        sa.text("INSERT INTO users (username, admin) VALUES ('ada', true) RETURNING 1")
    )
    async with changing(world.db) as change:
        ada = await change.conn.execute(sa.text("SELECT id FROM users WHERE username = 'ada'"))
        deletion_id = await deleting.delete_checkpoints(
            change, [uuid.UUID(first)], owner_id=ada.scalar_one()
        )
    assert deletion_id is not None
    await collector.keep()
    (run,) = runs.states
    task_id = (await collector.work(deletion_id))["task_id"]
    line = {"t": 1.0, "level": "INFO", "log": "1 checkpoint deleted\n"}
    body = {"task_id": task_id, "lines": [line]}
    assert (await collector.agent.post("/internal/v1/logs", json=body)).status_code == 200

    async def task() -> dict[str, Any]:
        found: dict[str, Any] = (await user.get(f"/api/v1/tasks/{task_id}")).json()["task"]
        return found

    found = await task()
    assert (found["taskType"], found["username"]) == ("TASK_TYPE_CHECKPOINT_GC", "ada")
    assert (found["state"], found["flowRunId"]) == ("STATE_ACTIVE", str(run))
    assert (found["allocations"], found["endTime"]) == ([], None)
    refused = await kill_task(world, task_id)
    assert "cannot be killed" in refused
    await collector.carry_out(deletion_id)
    found = await task()
    assert (found["state"], found["reason"]) == ("STATE_COMPLETED", None)
    assert found["startTime"] < found["endTime"]
    # A follower of its log reaches the end.
    log = await user.get(f"/api/v1/tasks/{task_id}/logs", params={"follow": "true"})
    assert "1 checkpoint deleted" in log.text
    only = {"taskTypes": "TASK_TYPE_CHECKPOINT_GC"}
    (listed,) = (await user.get("/api/v1/tasks", params=only)).json()["tasks"]
    assert listed | {"config": None} == found
    everything = (await user.get("/api/v1/tasks", params={"limit": 1})).json()["tasks"]
    assert [one["taskId"] for one in everything] == [task_id]


async def kill_task(world: World, task_id: str) -> str:
    with pytest.raises(Conflict) as refused:
        async with changing(world.db) as change:
            await tasking.kill(change, task_id)
    return str(refused.value)


async def test_the_owner_of_a_garbage_collection(world: World, user: httpx.AsyncClient) -> None:
    leg = await world.leg(config=CONFIG)
    await ended(world, leg)
    await collect(world, leg)
    experiment, task = await world.rows(
        sa.text(
            "SELECT owner_id FROM experiments UNION ALL SELECT owner_id FROM tasks "
            "WHERE kind = 'CHECKPOINT_GC'"
        )
    )
    assert experiment == task


async def test_a_glob_that_matches_nothing_changes_nothing(
    world: World, collector: Collector, user: httpx.AsyncClient
) -> None:
    leg = await world.leg(config=CONFIG)
    _, latest = await validated(leg, 0.3, 0.2)
    body = {"checkpointUuids": [latest], "checkpointGlobs": ["absent"]}
    answer = await user.post("/api/v1/checkpoints/rm", json=body)
    deletion_id = answer.json()["deletionId"]
    everything = {"model.pt": 1000, "sub/": 0, "sub/optimizer.pt": 24}
    await collector.tell(deletion_id, **{latest: everything})
    assert await collector.end(deletion_id) == 200
    assert (await states(world))[latest] == "COMPLETED"
    (row,) = await world.rows(sa.select(trials))
    assert str(row.latest_checkpoint) == latest


async def test_refusals(world: World, user: httpx.AsyncClient) -> None:
    leg = await world.leg(config=CONFIG)
    (name,) = await validated(leg, 0.3)
    unknown = str(uuid.uuid4())

    async def refused(verb: str, path: str, body: dict[str, Any] | None = None) -> str:
        answer = await user.request(verb, f"/api/v1/{path}", json=body)
        assert 400 <= answer.status_code < 500
        return str(answer.json()["error"]["error"])

    assert unknown in await refused("DELETE", "checkpoints", {"checkpointUuids": [name, unknown]})
    assert "empty" in await refused("DELETE", "checkpoints", {"checkpointUuids": []})
    for glob in ("/etc/*", "../*", ""):
        body = {"checkpointUuids": [name], "checkpointGlobs": [glob]}
        assert "relative" in await refused("POST", "checkpoints/rm", body)
    other = await world.experiment()
    await world.trial(other, warm_start_checkpoint=name)
    said = await refused("DELETE", "checkpoints", {"checkpointUuids": [name]})
    assert f"experiment {other}" in said
    said = await refused("DELETE", f"experiments/{leg.experiment_id}")
    assert "is ACTIVE: only an experiment that has ended" in said
    await ended(world, leg)
    assert f"experiment {other}" in await refused("DELETE", f"experiments/{leg.experiment_id}")
    assert set((await states(world)).values()) == {"COMPLETED"}


async def test_a_deleted_experiment_leaves_no_row(
    world: World, collector: Collector, runs: FakeRuns, user: httpx.AsyncClient
) -> None:
    before = await counts(world)
    run_of_trial = uuid.uuid4()
    runs.states[run_of_trial] = "COMPLETED"
    leg = await world.leg(config=CONFIG)
    names = await validated(leg, 0.3, 0.2)
    await send(collector.agent, leg, line("hello\n", 1.0))
    await ended(world, leg, flow_run_id=run_of_trial)
    path = f"/api/v1/experiments/{leg.experiment_id}"
    for _ in range(2):
        assert (await user.delete(path)).status_code == 200
    assert (await user.get(path)).json()["experiment"]["state"] == "STATE_DELETING"
    await collector.keep()
    (row,) = await collector.open()
    (place,) = (await collector.work(row.id))["places"]
    assert place["checkpoints"] == sorted(names)
    # Its TensorBoard files, and the files that MLflow's clients stored.
    ends = [f"{kind}/experiment/{leg.experiment_id}" for kind in ("tensorboard", "mlflow")]
    assert [key.partition("/")[2] for key in place["discard"]] == ends
    runs.all_become("CRASHED")
    await collector.keep()  # it is started again
    runs.all_become("RUNNING")
    await collector.carry_out(row.id)
    await collector.keep()  # its run has not quite ended
    assert (await user.get(path)).status_code == 200
    runs.all_become("COMPLETED")
    await collector.keep()
    assert (await user.get(path)).status_code == 404
    after = await counts(world)
    # Senders of batches stay for a while, by the stream's id alone; a storage keeps its number, with a digest
    # of its configuration.
    changed = {name for name in after if after[name] != before[name]}
    assert changed <= {"report_streams", "storages"}
    assert runs.states == {}


async def counts(world: World) -> dict[str, int]:
    found = {}
    for table in metadata.sorted_tables:
        (row,) = await world.rows(sa.select(sa.func.count()).select_from(table))
        found[table.name] = row[0]
    return found


async def test_a_deletion_that_fails_may_be_tried_again(
    world: World, collector: Collector, user: httpx.AsyncClient
) -> None:
    leg = await world.leg(config=CONFIG)
    await validated(leg, 0.3)
    await ended(world, leg)
    path = f"/api/v1/experiments/{leg.experiment_id}"
    for attempt in range(2):
        assert (await user.delete(path)).status_code == 200
        await collector.keep()
        deletion_id = (await collector.open())[attempt].id
        assert await collector.chosen(deletion_id)
        assert (
            await collector.end(deletion_id, "cannot delete /data/x: Read-only file system") == 200
        )
        shown = (await user.get(path)).json()["experiment"]
        assert shown["state"] == "STATE_DELETE_FAILED"
        assert "Read-only" in shown["reason"]
    assert (await user.post(f"{path}/activate")).status_code == 409
    assert (await user.post(f"{path}/kill")).status_code == 200


async def test_a_new_policy_lists_its_deletions(
    world: World, collector: Collector, user: httpx.AsyncClient
) -> None:
    leg = await world.leg(config=CONFIG)
    first, second, third = await validated(leg, 0.3, 0.2, 0.1)
    await ended(world, leg)
    policy = {"save_experiment_best": 0, "save_trial_best": 0, "save_trial_latest": 1}
    path = f"/experiments/{leg.experiment_id}/preview_gc"
    shown = (await user.get(path, params=policy)).json()
    assert {one["UUID"] for one in shown["checkpoints"]} == {first, second}
    assert shown["metric_name"] == "loss"
    body = {"saveExperimentBest": 0, "saveTrialBest": 0, "saveTrialLatest": 1}
    answer = await user.patch(f"/api/v1{path.removesuffix('/preview_gc')}",
                              json={"checkpointStorage": body})  # fmt: skip
    assert answer.json()["experiment"]["config"]["checkpoint_storage"] == STORAGE | policy
    await collector.keep()
    (row,) = await collector.open()
    assert await collector.chosen(row.id) == {first, second}
    assert third not in await collector.chosen(row.id)
    bad = {"checkpointStorage": {"saveTrialBest": -1}}
    answer = await user.patch(f"/api/v1/experiments/{leg.experiment_id}", json=bad)
    assert answer.status_code == 400


async def warned(world: World, user: httpx.AsyncClient, leg: Leg) -> list[str]:
    """The warnings in the trial's log, once its checkpoints have been chosen."""
    return [one["log"] for one in await read(user, leg) if one["level"] == "LOG_LEVEL_WARNING"]


async def test_nothing_goes_of_a_trial_that_never_reported_the_metric(
    world: World, collector: Collector, user: httpx.AsyncClient
) -> None:
    only_best = STORAGE | {"save_experiment_best": 1, "save_trial_latest": 0}
    leg = await world.leg(config=CONFIG | {"checkpoint_storage": only_best})
    for steps in (10, 20, 30):
        await leg.store(report(steps, "validation", val_loss=1.0 / steps))
        await store(leg, steps)
    await ended(world, leg)
    deletion_id = await collect(world, leg)
    await collector.keep()
    assert await collector.chosen(deletion_id) == set()
    assert (await warned(world, user, leg))[-1] == (
        "which of the 3 checkpoints of this trial is the best is not known: no validation has 'loss' "
        "(searcher.metric), so all of them stay; to have some deleted, set a policy that keeps no best (det "
        "experiment set gc-policy --save-experiment-best 0 --save-trial-best 0)\n"
    )


async def test_a_trial_of_nan_keeps_its_last(
    world: World, collector: Collector, user: httpx.AsyncClient
) -> None:
    only_best = STORAGE | {"save_trial_latest": 0}
    leg = await world.leg(config=CONFIG | {"checkpoint_storage": only_best})
    first, second, _ = await validated(leg, "NaN", "Infinity", "NaN")
    await ended(world, leg)
    deletion_id = await collect(world, leg)
    await collector.keep()
    assert await collector.chosen(deletion_id) == {first, second}
    (words,) = await warned(world, user, leg)
    assert words.endswith(
        "'loss' (searcher.metric) was not finite in any of them; 2 of them will be deleted, and the "
        "latest stays\n"
    )


@pytest.mark.parametrize("latest", [0, 1])
async def test_checkpoints_at_other_steps_than_validations(
    world: World, collector: Collector, user: httpx.AsyncClient, latest: int
) -> None:
    policy = STORAGE | {"save_trial_latest": latest}
    leg = await world.leg(config=CONFIG | {"checkpoint_storage": policy})
    names = []
    for steps in (10, 20, 30):
        await leg.store(report(steps, "validation", loss=1.0 / steps))
        names.append(await store(leg, steps + 1))
    path = f"/api/v1/experiments/{leg.experiment_id}"
    (remark,) = (await user.get(path, params={"remarks": True})).json()["remarks"]
    assert remark.startswith(f"trial {leg.trial_id}: no checkpoint is at a step that was validated")
    await ended(world, leg)
    deletion_id = await collect(world, leg)
    await collector.keep()
    assert await collector.chosen(deletion_id) == set(names[:-1])
    assert await warned(world, user, leg) == [
        "which of the 3 checkpoints of this trial is the best is not known: no step of them was validated: "
        "store a checkpoint at the step of a validation; 2 of them will be deleted, and the latest stays\n"
    ]


async def test_a_trial_whose_best_is_known_is_told_nothing(
    world: World, collector: Collector, user: httpx.AsyncClient
) -> None:
    leg = await world.leg(config=CONFIG)
    bad, _, _ = await validated(leg, 0.9, 0.1, None)
    await ended(world, leg)
    deletion_id = await collect(world, leg)
    await collector.keep()
    assert await collector.chosen(deletion_id) == {bad}
    assert await warned(world, user, leg) == []


async def test_a_validation_in_pieces_has_its_metric(world: World, collector: Collector) -> None:
    only_best = STORAGE | {"save_trial_latest": 0}
    leg = await world.leg(config=CONFIG | {"checkpoint_storage": only_best})
    names = []
    for steps, loss in ((10, 0.9), (20, 0.1), (30, 0.5)):
        await leg.store(report(steps, "validation", loss=loss))
        await leg.store(report(steps, "validation", accuracy=0.5))
        names.append(await store(leg, steps))
    await ended(world, leg)
    deletion_id = await collect(world, leg)
    await collector.keep()
    assert await collector.chosen(deletion_id) == {names[0], names[2]}
