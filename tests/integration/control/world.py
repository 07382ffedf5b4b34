"""A scripted flow, agent and training process around a real service."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

import httpx
import sqlalchemy as sa
from fastapi import FastAPI

from determined.common.api import Session
from determined.common.wire.version import VERSION
from determined_service.state.prefect_states import SHOW_PAGE
from tests.integration.control.driver import Driver
from tests.waiting import until_async

CONFIG = """
name: scripted
entrypoint: python3 train.py
hyperparameters:
  x: {type: int, minval: 1, maxval: 1000}
searcher: {name: random, metric: loss, max_length: 8, max_trials: 4, max_concurrent_trials: 2}
max_restarts: 1
reproducibility: {experiment_seed: 7}
"""


class Trial:
    """The training process of one leg."""

    def __init__(self, world: World, spec: dict[str, Any]) -> None:
        self.world = world
        self.spec = spec
        self.id: int = spec["trial_id"]
        self.allocation_id: str = spec["allocation_id"]
        self.entity = f"task:{spec['task_id']}"
        self.client = world.client(spec["session_token"])

    async def operation(self, **params: Any) -> dict[str, Any]:
        answer = await self.client.get(
            f"/api/v1/trials/{self.id}/searcher/operation", params=params
        )
        return ok(answer)

    async def complete(self, length: int, metric: Any) -> httpx.Response:
        return await self.client.post(
            f"/api/v1/trials/{self.id}/searcher/completed_operation",
            json={"op": {"length": length}, "searcherMetric": metric},
        )

    async def preempted(self, timeout_s: float = 0) -> bool:
        answer = await self.client.get(
            f"/api/v1/allocations/{self.allocation_id}/signals/preemption",
            params={"timeout_s": timeout_s},
        )
        return bool(ok(answer)["preempt"])

    async def acknowledge(self) -> None:
        ok(
            await self.client.post(
                f"/api/v1/allocations/{self.allocation_id}/signals/ack_preemption"
            )
        )

    async def early_exit(self, reason: str) -> httpx.Response:
        return await self.client.post(
            f"/api/v1/trials/{self.id}/early_exit", json={"reason": reason}
        )

    async def started(self, **more: Any) -> httpx.Response:
        return await self.world.agent.post(
            f"/internal/v1/allocations/{self.allocation_id}/running",
            json={"pid": 1, "host": "h", **more},
        )

    async def exited(self, **how: Any) -> httpx.Response:
        how = {"exit_code": 0, "kind": "exited"} | how
        self.world.running.discard(self.allocation_id)
        return await self.world.agent.post(
            f"/internal/v1/allocations/{self.allocation_id}/exit", json=how
        )

    async def run_to_end(self, metric: float = 0.5) -> None:
        """All requests of a well-behaved process."""
        ok(await self.started())
        while not (found := await self.operation())["completed"]:
            ok(await self.complete(int(found["op"]["validateAfter"]["length"]), metric))
        await self.acknowledge()
        ok(await self.exited())


class World:
    """One service, one agent with ``slots`` slots."""

    def __init__(self, app: FastAPI, user: httpx.AsyncClient, agent: httpx.AsyncClient) -> None:
        self.app = app
        self.user = user
        self.agent = agent
        self.session = str(uuid.uuid4())
        self.running: set[str] = set()
        self.poll_seq = 0
        self.sessions: list[Session] = []
        self._clients: list[httpx.AsyncClient] = []

    def client(self, token: str) -> httpx.AsyncClient:
        client = httpx.AsyncClient(
            transport=httpx.ASGITransport(self.app),
            base_url="http://service",
            headers={"Authorization": f"Bearer {token}"},
        )
        self._clients.append(client)
        return client

    async def close(self) -> None:
        for client in self._clients:
            await client.aclose()
        for session in self.sessions:
            session.close()

    async def register(
        self,
        slots: int = 2,
        agent_id: str = "a1",
        allocations: tuple[str, ...] = (),
        pool: str = "default",
        labels: dict[str, str] | None = None,
        lacks: dict[str, str] | None = None,
        containers: dict[str, Any] | None = None,
        address: str = "127.0.0.1",
        wire: int = VERSION,
        machines: dict[str, int] | None = None,
        worker_type: str = "determined-process",
    ) -> dict[str, Any]:
        """``machines``: the slots of each, in the place of ``slots`` that name none."""
        device = {"type": "cpu", "uuid": "", "brand": "test"}
        of: list[str | None] = [None] * slots
        if machines is not None:
            of = [name for name, count in machines.items() for _ in range(count)]
        return ok(
            await self.agent.post(
                f"/internal/v1/agents/{agent_id}/register",
                json={
                    "session": self.session,
                    "resource_pool": pool,
                    "host": "h",
                    "version": "1",
                    "wire": wire,
                    "slot_type": "cpu",
                    "slots": [
                        {"id": number, "device": device, "machine": machine}
                        for number, machine in enumerate(of)
                    ],
                    "worker_type": worker_type,
                    "allocations": list(allocations),
                    "labels": labels or {},
                    "lacks": lacks or {},
                    "containers": containers,
                    "address": address,
                },
            )
        )

    async def work(self, timeout_s: float = 0, agent_id: str = "a1") -> dict[str, Any]:
        """One call of an agent; ordered launches count as running from then on."""
        body = {"session": self.session, "running": sorted(self.running), "timeout_s": timeout_s}
        body["prefect_poll_seq"] = self.poll_seq
        answer = ok(await self.agent.post(f"/internal/v1/agents/{agent_id}/work", json=body))
        self.poll_seq = answer["prefect_poll_seq"]
        self.running |= {spec["allocation_id"] for spec in answer["launch"]}
        return answer

    async def measured(self, agent_id: str, sizes: dict[str, int]) -> None:
        """The agent tells what experiments have installed there."""
        body = {"session": self.session, "timeout_s": 0, "package_bytes": sizes}
        body["running"] = sorted(self.running)
        ok(await self.agent.post(f"/internal/v1/agents/{agent_id}/work", json=body))

    async def launched(self, agent_id: str = "a1") -> Trial:
        """The next single leg that the agent is told to start."""

        async def launch() -> list[dict[str, Any]]:
            return list((await self.work(5, agent_id))["launch"])

        (spec,) = await until_async("a leg to start", launch)
        return Trial(self, spec)

    async def both(self) -> dict[str, Any]:
        """Like :meth:`work`, until two legs exist."""
        launch: list[dict[str, Any]] = []
        while len(launch) < 2:
            launch += (await self.work(5))["launch"]
        return {"launch": launch}

    async def submit(self, config: str = CONFIG, **fields: Any) -> int:
        answer = await self.user.post("/api/v1/experiments", json={"config": config} | fields)
        return int(ok(answer)["experiment"]["id"])

    async def started(self, config: str = CONFIG) -> Driver:
        """An experiment with its driver attached."""
        driver = Driver(self, await self.submit(config))
        await driver.attach()
        return driver

    async def act(self, experiment_id: int, verb: str) -> httpx.Response:
        return await self.user.post(f"/api/v1/experiments/{experiment_id}/{verb}")

    async def rows(self, query: str, **values: Any) -> list[dict[str, Any]]:
        async with self.app.state.db.tx() as conn:
            return [dict(row._mapping) for row in await conn.execute(sa.text(query), values)]

    async def row(self, query: str, **values: Any) -> dict[str, Any]:
        (found,) = await self.rows(query, **values)
        return found

    async def trial(self, trial_id: int) -> dict[str, Any]:
        return await self.row("SELECT * FROM trials WHERE id = :id", id=trial_id)

    async def experiment(self, experiment_id: int) -> dict[str, Any]:
        return await self.row(
            "SELECT e.*, r.flow_run_id FROM experiments e "
            "LEFT JOIN kept_runs r ON r.experiment_id = e.id WHERE e.id = :id",
            id=experiment_id,
        )

    async def events(self, experiment_id: int) -> list[dict[str, Any]]:
        rows = await self.rows(
            "SELECT event FROM search_events WHERE experiment_id = :id ORDER BY id",
            id=experiment_id,
        )
        return [row["event"] for row in rows]

    async def told_prefect(self, entity: str) -> list[str]:
        """Names of states and kinds of what waits to be told, without pages."""
        rows = await self.rows(
            "SELECT kind, payload FROM prefect_outbox WHERE entity = :e AND kind <> :page ORDER BY id",
            e=entity,
            page=SHOW_PAGE,
        )
        return [row["payload"].get("name", row["kind"]) for row in rows]

    async def train_all(self, finished: asyncio.Event, metric: float = 0.5) -> int:
        """Run an agent with well-behaved processes; returns the number of legs."""
        legs = 0
        async with asyncio.TaskGroup() as group:
            while not finished.is_set():
                for spec in (await self.work(0.2))["launch"]:
                    legs += 1
                    group.create_task(self._run(Trial(self, spec), metric))
        return legs

    async def _run(self, trial: Trial, metric: float) -> None:
        await trial.run_to_end(metric)


def ok(answer: httpx.Response) -> Any:
    assert answer.status_code == 200, answer.text
    return answer.json()
