"""Every route, asked with each kind of token: what ``tests/who_may_table.py`` says is what happens.

Each kind of token first asks for another user's things (or for anything, if it has no such right), and is
refused without a change of a row. Then the tokens with the right ask for their own things, and are admitted.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
import sqlalchemy as sa
from fastapi import FastAPI

from determined.common.wire import paths, serving
from determined.common.wire.serving import Served
from determined_registry.database.tables import (
    deletions,
    experiments,
    model_definitions,
)
from determined_service.access.rules import Action
from determined_service.deleting.deletions import collect_garbage
from determined_service.reference import Address, declared_rules
from determined_service.state.change import changing
from tests import who_may_table as table
from tests.integration.conftest import AGENT_TOKEN, client_of
from tests.integration.service_api.test_who_may import (
    OF_ONE_KIND,
    REQUESTS,
    Mine,
    People,
    _Anything,
    everything,
    mine_in,
    people,
)
from tests.integration.service_api.world import World
from tests.programs.legs.fake_service import archive
from tests.unit.service.test_routes_ask import PUBLIC

__all__ = ["people"]

PASSED_ON = ("/mlflow", "/mlflow/{path}", "/prefect", "/prefect/{path}")
"""Other programs answer these, and a browser without a login is led to one."""
NARROWED = (404, 409)
"""Answers of routes whose statement finds nothing of another's, instead of refusing it."""

RUNS = {
    "run of a trial": serving.TRIAL,
    "run of an experiment": serving.EXPERIMENT,
    "run of a pipeline": serving.PIPELINE,
    "run of a deletion": serving.DELETION,
    "run that submits an experiment": serving.NEW_EXPERIMENT,
    "run that begins a retraining": serving.NEW_RETRAINING,
    "run that begins a pipeline": serving.NEW_PIPELINE,
}


@dataclass(frozen=True)
class Own:
    """Related objects: an experiment with a leg, and the supervisor and runs that serve it."""

    mine: Mine
    hash: str
    deletion: int
    deletion_task: str
    flow_run: str

    @property
    def path(self) -> dict[str, Any]:
        leg = self.mine.leg
        return self.mine.path | {
            "hash": self.hash,
            "deletion_id": self.deletion,
            "node": 0,
            "number": 0,
            "agent_id": "agent-1",
            "external_id": f"external-{leg.trial_id}",
        }

    def served(self, kind: str) -> Served:
        leg = self.mine.leg
        ids = {
            serving.ALLOCATION: leg.allocation_id,
            serving.TRIAL: leg.trial_id,
            serving.EXPERIMENT: leg.experiment_id,
            serving.PIPELINE: leg.experiment_id,
            serving.DELETION: self.deletion,
            serving.NEW_EXPERIMENT: self.flow_run,
            serving.NEW_RETRAINING: self.flow_run,
            serving.NEW_PIPELINE: self.flow_run,
        }
        return Served(kind, str(ids[kind]))


async def own_in(world: World) -> Own:
    mine = await mine_in(world)
    leg = mine.leg
    hash_ = uuid.uuid4().hex
    async with world.db.tx() as conn:
        packed = archive({"train.py": "print(1)"})
        definition = {"hash": hash_, "archive": packed, "owner_id": mine.user_id}
        await conn.execute(sa.insert(model_definitions).values(definition))
        of = experiments.c.id == leg.experiment_id
        await conn.execute(sa.update(experiments).where(of).values(model_def_hash=hash_))
    async with changing(world.db) as change:
        deletion = await collect_garbage(change, leg.experiment_id)
    (row,) = await world.rows(sa.select(deletions.c.task_id).where(deletions.c.id == deletion))
    return Own(mine, hash_, deletion, row.task_id, str(uuid.uuid4()))


def lines_of(own: Own, kind: str) -> dict[str, Any]:
    """A line of the leg's log; from the run of a deletion, of the deletion's."""
    leg = own.mine.leg
    of = {"task_id": leg.task_id, "allocation_id": leg.allocation_id, "agent_id": "agent-1"}
    if kind == serving.DELETION:
        of = {"task_id": own.deletion_task}
    line = {"t": 1795266000.5, "stdtype": "stdout", "level": None, "rank": 0, "source": "task"}
    return {**of, "lines": [line | {"log": "x\n"}]}


def body_of(address: Address, own: Own, kind: str) -> Any:
    """For routes whose rule depends on the target in the body; ``kind`` is the kind of thing that the sender
    serves, if any."""
    if address in REQUESTS:
        return REQUESTS[address].body(own.mine)
    path = address[1]
    if path == paths.LOGS:
        return lines_of(own, kind)
    if path == paths.TRIAL_RUN:
        return {"flow_run_id": own.flow_run}
    if path == paths.DAMAGED_CHECKPOINT:
        return {"uuid": own.mine.checkpoint, "reason": "a test"}
    if path == paths.KNOWN_CHECKPOINTS:
        return {"uuids": [own.mine.checkpoint]}
    if path == paths.RETRAINING_RUNS:
        return {"model": own.mine.model, "flow_run_id": own.flow_run}
    if path == paths.PIPELINES:
        return {"again": own.mine.leg.experiment_id, "flow_run_id": own.flow_run}
    if address[1].startswith("/api/v1/experiments/by-external-id/"):
        return {"config": "{name: walk}", "unmanaged": True, "flowRunId": own.flow_run}
    if address == ("POST", "/api/v1/experiments"):
        config = (
            "{name: walk, entrypoint: x, searcher: {name: single, metric: loss, max_length: 1}}"
        )
        return {"config": config, "flowRunId": own.flow_run}
    return {}


async def ask(
    client: httpx.AsyncClient, address: Address, own: Own, kind: str = ""
) -> httpx.Response:
    method, path = address
    params = {"timeout_s": 0, "timeout_seconds": 0, "limit": 1}
    if address in REQUESTS:
        params |= REQUESTS[address].params
    url = path.format_map(_Anything(own.path | {"task_id": own.mine.task_of(path)}))
    return await client.request(method, url, json=body_of(address, own, kind), params=params)


class Clients:
    """A client for each kind of token; supervisors and runs serve the object in ``own``."""

    def __init__(self, app: FastAPI, people: People, own: Own) -> None:
        self.plain = {
            table.OTHER: people.stranger,
            table.OWNER: people.owner,
            table.ADMINISTRATOR: people.admin,
            table.AGENT: client_of(app, AGENT_TOKEN),
            table.PROCESS: own.mine.leg.client,
        }
        kinds = {table.SUPERVISOR: serving.ALLOCATION, **RUNS}
        self.serving = {
            name: (kind, client_of(app, serving.sign(AGENT_TOKEN, own.served(kind))))
            for name, kind in kinds.items()
        }


def walked() -> Iterator[tuple[Address, Any]]:
    """All routes with their rules; who gives a password comes last, because it ends sessions."""
    rules = {address: found[0] for address, found in declared_rules().items() if found}

    def late(address: Address) -> bool:
        return address[1].endswith(("/password", "/logout"))

    yield from sorted(rules.items(), key=lambda item: late(item[0]))


def is_refused(answer: httpx.Response) -> bool:
    """True if it names the allowed subjects; of bulk actions each thing may be refused for another reason,
    too."""
    if answer.status_code != 200 or answer.headers.get("content-type") != "application/json":
        return answer.status_code in (401, 403)
    results = answer.json().get("results") or []
    return any(" may " in str(one.get("error")) for one in results)


def serves(name: str, address: Address, rule: Any) -> bool:
    """True if the token of that name may use this route for the object that it serves."""
    if address[1] == paths.LOGS:
        return name in (table.SUPERVISOR, "run of a deletion")
    if address[1] == paths.RETRAINING_RUNS:
        return name == "run that begins a retraining"
    if address[1] == paths.PIPELINES:
        return name == "run that begins a pipeline"
    if rule.action == Action.SUBMIT:
        return name == "run that submits an experiment" and address[0] == "POST"
    column = table.SUPERVISOR if name == table.SUPERVISOR else table.RUN
    if table.cells(rule.action, rule.kind)[column] == table.NO:
        return False
    return {table.SUPERVISOR: serving.ALLOCATION, **RUNS}[name] == rule.kind


@pytest.fixture
async def clients(
    service_app: FastAPI, world: World, people: People
) -> AsyncIterator[tuple[Clients, Own, Own]]:
    """Clients, their own objects, and other objects of the same owner."""
    own, other = await own_in(world), await own_in(world)
    found = Clients(service_app, people, own)
    yield found, own, other
    for _, client in found.serving.values():
        await client.aclose()
    await found.plain[table.AGENT].aclose()


async def test_every_route_refuses_each_token_that_may_not(
    world: World, service_app: FastAPI, clients: tuple[Clients, Own, Own], anonymous: Any
) -> None:
    found, _, other = clients
    count = 0
    before = await everything(world)
    for address, rule in walked():
        cells = table.cells(rule.action, rule.kind)
        asked: list[tuple[str, httpx.AsyncClient, str]] = [
            (name, client, kind) for name, (kind, client) in found.serving.items()
        ]
        if address[1] not in PASSED_ON:
            asked.append(("nobody", anonymous, ""))
            asked += [
                (name, client, "")
                for name, client in found.plain.items()
                # For a process the target is another experiment of the same owner.
                if cells[name] == table.NO or (name == table.PROCESS and cells[name] != table.YES)
            ]
        for name, client, kind in asked:
            if address[1] == paths.KNOWN_CHECKPOINTS and name == "run of a deletion":
                continue  # whichever deletion it is
            answer = await ask(client, address, other, kind)
            narrowed = answer.status_code in NARROWED and name in found.serving
            if narrowed:
                assert serves(name, address, rule), f"{address} {name}: {answer.text}"
            assert narrowed or is_refused(answer), (
                f"{address} {name}: {answer.status_code} {answer.text[:300]}"
            )
            count += 1
    assert count > 2000
    assert await everything(world) == before


async def test_every_route_lets_each_token_through_that_may(
    world: World, service_app: FastAPI, people: People
) -> None:
    """Where something is changed by users, test_who_may.py asks with the owner's and an administrator's."""
    logged_out = ("POST", "/api/v1/auth/logout")
    to_read = await own_in(world)
    for address, rule in walked():
        if address[1] in PASSED_ON or address == logged_out:
            continue
        own = to_read if rule.action == Action.READ else await own_in(world)
        clients = Clients(service_app, people, own)
        asked = [
            (name, client, kind)
            for name, (kind, client) in clients.serving.items()
            if serves(name, address, rule)
        ]
        cells = table.cells(rule.action, rule.kind)
        asked += [
            (name, client, "")
            for name, client in clients.plain.items()
            if cells[name] in (table.YES, table.OWN)
            and not (name == table.PROCESS and address in OF_ONE_KIND)
            and not (name in (table.OWNER, table.ADMINISTRATOR) and address in REQUESTS)
        ]
        for name, client, kind in asked:
            answer = await ask(client, address, own, kind)
            # Of a checkpoint that may be read the files lie where the service opens nothing.
            closed = "its storage is not known" in answer.text
            assert closed or not is_refused(answer), (
                f"{address} {name}: {answer.status_code} {answer.text[:300]}"
            )
            assert answer.status_code < 500, f"{address} {name}: {answer.text[:300]}"


async def test_every_route_of_the_description_is_walked(service_app: FastAPI) -> None:
    described = service_app.openapi()["paths"]
    found = {(method.upper(), path) for path, methods in described.items() for method in methods}
    assert found - {address for address, _ in walked()} == PUBLIC.keys()
