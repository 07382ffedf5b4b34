"""Rows to ask for: experiments, trials and running allocations, written straight to the tables."""

from __future__ import annotations

import datetime
import uuid
from dataclasses import dataclass
from typing import Any

import httpx
import sqlalchemy as sa
from fastapi import FastAPI

from determined_registry.database.tables import (
    allocations,
    experiments,
    legs,
    searches,
    tasks,
    trials,
    users,
)
from determined_service.access.tokens import token_hash
from determined_service.base.db import Database

SEARCHER = {"name": "random", "metric": "loss", "smaller_is_better": True, "max_trials": 4}


@dataclass(frozen=True)
class Leg:
    """A running leg of a trial and a client with its token."""

    experiment_id: int
    trial_id: int
    request_id: str
    run_id: int
    allocation_id: str
    client: httpx.AsyncClient

    @property
    def task_id(self) -> str:
        return f"{self.experiment_id}.{self.request_id}"

    async def store(self, *reports: dict[str, Any], **more: Any) -> None:
        """Sends one batch, which must be taken."""
        answer = await self.report(*reports, **more)
        assert answer.json() == {"stored": len(reports)}, answer.text

    async def report(self, *reports: dict[str, Any], **more: Any) -> httpx.Response:
        """Sends one batch."""
        body = {"run_id": self.run_id, "reports": list(reports), **more}
        return await self.client.post(f"/api/v1/trials/{self.trial_id}/metrics/batch", json=body)


def report(steps: int, group: str = "training", **values: Any) -> dict[str, Any]:
    """One report of a batch."""
    return {
        "group": group,
        "steps_completed": steps,
        "metrics": values,
        "end_time": datetime.datetime.now(datetime.UTC).isoformat(),
    }


class World:
    """Makes rows; ``app`` must be started. ``url``: its clients send there, instead of to ``app``."""

    def __init__(self, app: FastAPI, url: str | None = None) -> None:
        self.app = app
        self.url = url
        self.db: Database = app.state.db
        self.clients: list[httpx.AsyncClient] = []

    async def experiment(self, name: str = "try", **values: Any) -> int:
        searcher = SEARCHER | values.pop("searcher", {})
        async with self.db.tx() as conn:
            owner = await conn.execute(
                sa.select(users.c.id).where(users.c.username == "determined")
            )
            found = await conn.execute(
                sa.insert(experiments)
                .values(
                    {
                        "state": "ACTIVE",
                        "name": name,
                        "config": {"searcher": searcher, "hyperparameters": {}},
                        "owner_id": owner.scalar_one(),
                        **values,
                    }
                )
                .returning(experiments.c.id)
            )
            experiment_id: int = found.scalar_one()
            await conn.execute(sa.insert(searches).values(experiment_id=experiment_id))
        return experiment_id

    async def trial(self, experiment_id: int, **values: Any) -> tuple[int, str]:
        request_id = str(uuid.uuid4())
        async with self.db.tx() as conn:
            owner = sa.select(experiments.c.owner_id).where(experiments.c.id == experiment_id)
            await conn.execute(
                sa.insert(tasks).values(
                    id=f"{experiment_id}.{request_id}",
                    kind="TRIAL",
                    owner_id=owner.scalar_subquery(),
                )
            )
            found = await conn.execute(
                sa.insert(trials)
                .values(
                    {
                        "experiment_id": experiment_id,
                        "request_id": request_id,
                        "task_id": f"{experiment_id}.{request_id}",
                        "state": "ACTIVE",
                        "hparams": {"lr": 0.1},
                        "seed": 7,
                        **values,
                    }
                )
                .returning(trials.c.id)
            )
            return found.scalar_one(), request_id

    async def start(
        self, experiment_id: int, trial_id: int, request_id: str, run_id: int = 1
    ) -> Leg:
        task_id = f"{experiment_id}.{request_id}"
        allocation_id = f"{task_id}.{run_id}"
        token = f"token-of-{allocation_id}"
        async with self.db.tx() as conn:
            await conn.execute(
                sa.insert(allocations).values(
                    id=allocation_id,
                    task_id=task_id,
                    experiment_id=experiment_id,
                    trial_id=trial_id,
                    run_id=run_id,
                    state="RUNNING",
                    resource_pool="default",
                    slots=1,
                    agent_id="agent-1",
                    slot_ids=[0],
                    token_hash=token_hash(token),
                )
            )
            await conn.execute(
                sa.insert(legs).values(
                    task_id=task_id,
                    run_id=run_id,
                    allocation_id=allocation_id,
                    state="RUNNING",
                    start_time=sa.func.now(),
                )
            )
        client = self.client(token)
        return Leg(experiment_id, trial_id, request_id, run_id, allocation_id, client)

    def client(self, token: str) -> httpx.AsyncClient:
        """A client with this token, closed with the world."""
        client = httpx.AsyncClient(
            transport=None if self.url else httpx.ASGITransport(self.app),
            base_url=self.url or "http://service",
            headers={"Authorization": f"Bearer {token}"},
            timeout=30,
        )
        self.clients.append(client)
        return client

    async def close(self) -> None:
        """Closes its clients."""
        while self.clients:
            await self.clients.pop().aclose()

    async def leg(self, **values: Any) -> Leg:
        """A running leg of a new trial of a new experiment."""
        experiment_id = await self.experiment(**values)
        return await self.start(experiment_id, *await self.trial(experiment_id))

    async def end(self, leg: Leg) -> None:
        """The control half's work at an allocation's end, as far as these tests look."""
        async with self.db.tx() as conn:
            await conn.execute(
                sa.update(allocations)
                .where(allocations.c.id == leg.allocation_id)
                .values(state="TERMINATED", token=None, ended_at=sa.func.now())
            )
            await conn.execute(
                sa.text("SELECT pg_notify('determined', :topic)"),
                {"topic": f"allocation:{leg.allocation_id}"},
            )

    async def rows(self, statement: sa.Executable) -> list[Any]:
        async with self.db.tx() as conn:
            return list(await conn.execute(statement))
