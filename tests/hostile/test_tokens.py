"""Code beside a supervisor takes its token; a user's flow takes the tokens in its environment."""

from __future__ import annotations

import json
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import sqlalchemy as sa
from fastapi import FastAPI

from determined.common.wire import serving
from determined.common.wire.serving import Served
from determined_registry.database.tables import (
    allocations,
    checkpoints,
    experiments,
    model_definitions,
    task_logs,
    trials,
    users,
)
from determined_service.base.errors import Conflict, NotFound
from determined_service.ingest.log_policies import LogWatch
from tests.integration.conftest import AGENT_TOKEN, client_of
from tests.integration.prefect_server import Prefect
from tests.integration.service_api.test_checkpoints import store
from tests.integration.service_api.world import Leg, World
from tests.local_cluster import LocalCluster

KEY = "the-victims-storage-key"


@pytest.fixture
async def mallory(world: World) -> Leg:
    """A leg of the attacker's."""
    return await world.leg()


@pytest.fixture
async def supervisor(service_app: FastAPI, mallory: Leg) -> AsyncIterator[httpx.AsyncClient]:
    """With the token of the supervisor of the attacker's leg, as the service gives it with the order."""
    token = serving.sign(AGENT_TOKEN, Served(serving.ALLOCATION, mallory.allocation_id))
    async with client_of(service_app, token) as client:
        yield client


@pytest.fixture
async def victim(world: World) -> Leg:
    """Another user's leg, whose configuration holds a secret."""
    storage = {"type": "s3", "bucket": "b", "secret_key": KEY}
    config = {"searcher": {"metric": "x"}, "hyperparameters": {}, "checkpoint_storage": storage}
    return await world.leg(config=config)


async def test_a_supervisors_token_gives_no_administrators_rights(
    supervisor: httpx.AsyncClient,
) -> None:
    """Gains: everything, for ever. With the agents' token this was two requests."""
    user = {"user": {"username": "eve", "admin": True, "active": True}, "password": "x" * 12}
    for method, path, body in (
        ("POST", "/api/v1/users", user),
        ("GET", "/api/v1/users", None),
        ("GET", "/api/v1/me", None),
        ("GET", "/api/v1/master/config", None),
        ("GET", "/prefect/api/variables/", None),
    ):
        answer = await supervisor.request(method, path, json=body)
        assert answer.status_code == 403, f"{path}: {answer.text}"


async def test_a_supervisors_token_gets_no_work_of_an_agent(
    supervisor: httpx.AsyncClient, world: World
) -> None:
    """Gains: the orders of others' legs, with their tokens and the keys of their storages."""
    session = str(uuid.uuid4())
    registered = {"session": session, "slots": [{"id": 0, "device": {"type": "cpu"}}], "wire": 3}
    for path, body in (
        ("/internal/v1/agents/evil/register", registered),
        ("/internal/v1/agents/agent-1/register", registered),
        ("/internal/v1/agents/agent-1/work", {"session": session, "wire": 3, "timeout_s": 0}),
        ("/internal/v1/agents/agent-1/sign-off", {"session": session}),
        ("/internal/v1/agents/agent-1/state", {"session": session}),
    ):
        answer = await supervisor.post(path, json=body)
        assert answer.status_code == 403, f"{path}: {answer.text}"


async def test_a_supervisors_token_takes_no_search_and_no_storage_keys(
    supervisor: httpx.AsyncClient, world: World, victim: Leg, mallory: Leg
) -> None:
    """Gains: another user's configuration with its secrets, and control of its search. A supervisor must not
    drive its own experiment either."""
    for leg in (victim, mallory):
        run = {"driver": str(uuid.uuid4()), "flow_run_id": str(uuid.uuid4())}
        path = f"/internal/v1/experiments/{leg.experiment_id}/search/attach"
        answer = await supervisor.post(path, json=run)
        assert (answer.status_code, KEY in answer.text) == (403, False), answer.text
        trial = f"/internal/v1/trials/{leg.trial_id}"
        for path, body in (
            (f"{trial}/claim", {"flow_run_id": run["flow_run_id"]}),
            (f"{trial}/run", {"flow_run_id": run["flow_run_id"]}),
        ):
            assert (await supervisor.post(path, json=body)).status_code == 403, path
    assert (await supervisor.get("/internal/v1/deletions/1")).status_code == 403


async def test_a_supervisors_token_ends_and_opens_no_leg_of_others(
    supervisor: httpx.AsyncClient, world: World, victim: Leg
) -> None:
    """Gains: others' trials ended; visitors of their ports led elsewhere; the way into their tasks."""
    of = f"/internal/v1/allocations/{victim.allocation_id}"
    port = {"name": "8888", "port": 1, "unauthenticated": True}
    for method, path, body in (
        ("POST", f"{of}/exit", {"exit_code": 0}),
        ("POST", f"{of}/running", {"pid": 1, "address": "10.0.0.1", "ports": [port]}),
        ("POST", f"{of}/port", {"name": "8888", "ready": True}),
        ("GET", f"{of}/doors/0", None),
        ("POST", f"{of}/files", {"pieces": 0, "bytes": 0, "remarks": []}),
    ):
        answer = await supervisor.request(method, path, json=body)
        assert answer.status_code == 403, f"{path}: {answer.text}"
    row = allocations.c.id == victim.allocation_id
    (found,) = await world.rows(sa.select(allocations.c.state).where(row))
    assert found.state == "RUNNING"


async def test_a_supervisors_token_writes_into_no_other_log(
    supervisor: httpx.AsyncClient, world: World, victim: Leg, mallory: Leg
) -> None:
    """Gains: lines in another's log, which set off its log policies and fill its owner's quota."""

    def lines(task_id: str, allocation_id: str | None) -> dict[str, Any]:
        line = {"t": 1795266000.5, "stdtype": "stdout", "source": "task", "log": "bad\n"}
        return {"task_id": task_id, "allocation_id": allocation_id, "lines": [line]}

    own = mallory.allocation_id
    for task_id, allocation_id in (
        (victim.task_id, victim.allocation_id),
        (victim.task_id, own),
        (mallory.task_id, victim.allocation_id),
        (mallory.task_id, None),
        (mallory.task_id, f"{mallory.task_id}.2"),
        ("no-such-task", own),
    ):
        answer = await supervisor.post("/internal/v1/logs", json=lines(task_id, allocation_id))
        assert answer.status_code == 403, f"{task_id} {allocation_id}: {answer.text}"
    assert await world.rows(sa.select(task_logs.c.id)) == []
    answer = await supervisor.post("/internal/v1/logs", json=lines(mallory.task_id, own))
    assert answer.json() == {"stored": 1}, answer.text


async def test_a_supervisors_token_is_worth_nothing_when_its_leg_has_ended(
    supervisor: httpx.AsyncClient, world: World, mallory: Leg
) -> None:
    """Gains: a log without end, files of later legs. The service accepts the remaining log of a cut-off
    supervisor for a week."""
    hash_ = await definition_of(world, mallory)
    await world.end(mallory)
    line = {"t": 1795266000.5, "stdtype": "stdout", "source": "task", "log": "late\n"}
    of = {"task_id": mallory.task_id, "allocation_id": mallory.allocation_id, "lines": [line]}
    assert (await supervisor.post("/internal/v1/logs", json=of)).json() == {"stored": 1}
    own = f"/internal/v1/allocations/{mallory.allocation_id}"
    assert (await supervisor.post(f"{own}/exit", json={"exit_code": 1})).status_code == 200
    for method, path, body in (
        ("POST", f"{own}/running", {"pid": 1}),
        ("POST", f"{own}/port", {"name": "8888", "ready": True}),
        ("GET", f"/internal/v1/model_defs/{hash_}", None),
    ):
        answer = await supervisor.request(method, path, json=body)
        assert answer.status_code in (404, 409), f"{path}: {answer.text}"
    # A week later.
    async with world.db.tx() as conn:
        of_leg = allocations.c.id == mallory.allocation_id
        ended = sa.func.now() - sa.text("interval '8 days'")
        await conn.execute(sa.update(allocations).where(of_leg).values(ended_at=ended))
    # As the service finds out ten minutes after it has looked the last time.
    with pytest.raises(Conflict, match="ended more than 7 days ago"):
        await LogWatch(world.db).require_open(mallory.allocation_id)
    with pytest.raises(NotFound):
        await LogWatch(world.db).require_open("no.such.allocation")


async def definition_of(world: World, leg: Leg) -> str:
    """The hash of the model definition of the leg's experiment."""
    hash_ = uuid.uuid4().hex
    async with world.db.tx() as conn:
        await conn.execute(sa.insert(model_definitions).values(hash=hash_, archive=b"secret"))
        of = experiments.c.id == leg.experiment_id
        await conn.execute(sa.update(experiments).where(of).values(model_def_hash=hash_))
    return hash_


async def test_a_supervisors_token_reaches_only_its_legs_checkpoint(
    supervisor: httpx.AsyncClient, world: World, victim: Leg, mallory: Leg
) -> None:
    """Gains: others' programs; their checkpoints given up, so that their trials begin again."""
    own, other = await definition_of(world, mallory), await definition_of(world, victim)
    assert (await supervisor.get(f"/internal/v1/model_defs/{own}")).content == b"secret"
    assert (await supervisor.get(f"/internal/v1/model_defs/{other}")).status_code == 404
    theirs, mine = await store(victim, 1), await store(mallory, 1)
    for trial_id, name in (
        (victim.trial_id, theirs),
        (mallory.trial_id, theirs),
        (victim.trial_id, mine),
    ):
        path = f"/internal/v1/trials/{trial_id}/damaged_checkpoint"
        answer = await supervisor.post(path, json={"uuid": name, "reason": "x"})
        assert answer.status_code == 409, answer.text
    states = await world.rows(sa.select(checkpoints.c.state))
    assert {row.state for row in states} == {"COMPLETED"}
    path = f"/internal/v1/trials/{mallory.trial_id}/damaged_checkpoint"
    for _ in range(2):  # a report that is sent again
        answer = await supervisor.post(path, json={"uuid": mine, "reason": "x"})
        assert answer.status_code == 200, answer.text


async def test_a_supervisor_gives_up_no_checkpoint_of_another_user(
    supervisor: httpx.AsyncClient, world: World, mallory: Leg
) -> None:
    """Gains: a checkpoint of another's that nothing starts from any more, by a trial that starts from it; the
    other's trial goes back to the one before."""
    async with world.db.tx() as conn:
        admin = sa.select(users.c.id).where(users.c.username == "admin")
        owner = (await conn.execute(admin)).scalar_one()
    victim = await world.leg(owner_id=owner)
    theirs = await store(victim, 1)
    async with world.db.tx() as conn:
        of = trials.c.id == mallory.trial_id
        await conn.execute(sa.update(trials).where(of).values(warm_start_checkpoint=theirs))
    path = f"/internal/v1/trials/{mallory.trial_id}/damaged_checkpoint"
    for state in ("COMPLETED", "ERROR"):  # one that was given up keeps its reason
        async with world.db.tx() as conn:
            values = {"state": state, "reason": "before"}
            await conn.execute(sa.update(checkpoints).values(values))
        answer = await supervisor.post(path, json={"uuid": theirs, "reason": "a lie"})
        assert answer.json()["latest_checkpoint"] == theirs, answer.text
        (row,) = await world.rows(sa.select(checkpoints.c.state, checkpoints.c.reason))
        assert (row.state, row.reason) == (state, "before")
    of = trials.c.id == victim.trial_id
    (row,) = await world.rows(sa.select(trials.c.latest_checkpoint).where(of))
    assert str(row.latest_checkpoint) == theirs


FLOW = """
import json, os, pathlib, urllib.request
from prefect import flow

@flow
def mine(out: str):
    found = {}
    for name, value in os.environ.items():
        if not value or not name.startswith("DET_"):
            continue
        request = urllib.request.Request(
            os.environ["DET_MASTER"] + "/api/v1/me", headers={"Authorization": "Bearer " + value}
        )
        try:
            found[name] = json.load(urllib.request.urlopen(request))["user"]["username"]
        except Exception:
            found[name] = None
    pathlib.Path(out).write_text(json.dumps(found))
"""


def test_a_users_own_flow_finds_no_token_in_its_environment(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    """Gains: an administrator's rights, for every user who may deploy a flow in an agent's pool."""
    prefect = Prefect(cluster)
    (tmp_path / "mine.py").write_text(FLOW)
    flow = prefect.call("/flows/", {"name": "mine"})
    step = {"prefect.deployments.steps.set_working_directory": {"directory": str(tmp_path)}}
    deployment = prefect.call(
        "/deployments/",
        {
            "name": f"mine-{uuid.uuid4().hex[:6]}",
            "flow_id": flow["id"],
            "work_pool_name": "default",
            "entrypoint": "mine.py:mine",
            "pull_steps": [step],
        },
    )
    out = tmp_path / "found.json"
    run = prefect.call(
        f"/deployments/{deployment['id']}/create_flow_run", {"parameters": {"out": str(out)}}
    )
    ended = prefect.wait(run["id"])
    assert ended["state_type"] == "COMPLETED", ended["state"]["message"]
    found = json.loads(out.read_text())
    assert found, "it has at least the service's address"
    assert set(found.values()) == {None}
    assert not {serving.AGENT_TOKEN, serving.RUN_TOKEN} & found.keys()
