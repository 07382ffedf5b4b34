"""Pipelines as a user and the flow see them: requests, and experiments that end as a test wants."""

from __future__ import annotations

import asyncio
import datetime
import uuid
from typing import Any

import httpx
import sqlalchemy as sa

from determined_registry.database.tables import (
    checkpoints,
    experiments,
    metrics,
    trials,
)
from tests.integration.service_api.world import World

CODE = [{"path": "train.py", "type": 48, "content": "cHJpbnQoKQ==", "mode": 420}]


def config(**more: Any) -> dict[str, Any]:
    searcher = {"name": "single", "metric": "accuracy", "smaller_is_better": False}
    return {
        "entrypoint": "python3 train.py",
        "hyperparameters": {"lr": 0.5},
        "searcher": {**searcher, "max_length": {"batches": 1}},
        **more,
    }


def step(name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "experiment": config(name=name), "code": "0", **more}


class Pipelines:
    """The requests of a user and the flow, and experiments that end as the test wants."""

    def __init__(self, world: World, user: httpx.AsyncClient, agent: httpx.AsyncClient) -> None:
        self.world, self.user, self.agent = world, user, agent

    async def submit(
        self,
        *steps: dict[str, Any],
        code: Any = CODE,
        again: dict[str, Any] | None = None,
        **more: Any,
    ) -> int:
        plan = {"name": "p", "steps": steps, **(again or {})}
        body = {"pipeline": plan, "modelDefinitions": {"0": code}}
        return int(
            ok(await self.user.post("/api/v1/pipelines", json={**body, **more}))["pipelineId"]
        )

    async def advance(self, pipeline_id: int) -> dict[str, str]:
        """Asked for from four places at once; the steps' states."""
        path = f"/internal/v1/pipelines/{pipeline_id}/advance"
        asked = await asyncio.gather(*(self.agent.post(path, json={}) for _ in range(4)))
        answers = [ok(one) for one in asked]
        # Some answer while another one still submits; the last word is the same.
        last = ok(await self.agent.post(path, json={}))
        assert last in answers
        return {one["name"]: one["state"] for one in last["steps"]}

    async def get(self, pipeline_id: int) -> dict[str, Any]:
        found: dict[str, Any] = ok(await self.user.get(f"/api/v1/pipelines/{pipeline_id}"))
        return dict(found["pipeline"])

    async def experiments(self, pipeline_id: int, name: str) -> list[int]:
        found = await self.get(pipeline_id)
        (mine,) = (one for one in found["steps"] if one["name"] == name)
        return [one["id"] for one in mine["experiments"]]

    async def ask(self, pipeline_id: int, what: str, *codes: int) -> Any:
        return ok(await self.user.post(f"/api/v1/pipelines/{pipeline_id}/{what}", json={}), *codes)

    async def complete(self, experiment_id: int, accuracy: float) -> str:
        """The experiment has completed, with a checkpoint and a validation; the checkpoint's UUID."""
        checkpoint = uuid.uuid4()
        now = datetime.datetime.now(datetime.UTC)
        async with self.world.db.tx() as conn:
            of = trials.c.experiment_id == experiment_id
            trial_id = (await conn.execute(sa.select(trials.c.id).where(of))).scalar_one()
            made = await conn.execute(
                sa.insert(metrics)
                .values(
                    trial_id=trial_id,
                    run_id=1,
                    group_name="validation",
                    steps_completed=1,
                    end_time=now,
                    metrics={"accuracy": accuracy, "val.loss": 1 - accuracy},
                )
                .returning(metrics.c.id)
            )
            await conn.execute(
                sa.insert(checkpoints).values(
                    uuid=checkpoint,
                    state="COMPLETED",
                    experiment_id=experiment_id,
                    trial_id=trial_id,
                    steps_completed=1,
                )
            )
            best = {"searcher_metric_value": accuracy, "best_validation_id": made.scalar_one()}
            await conn.execute(sa.update(trials).where(of).values(state="COMPLETED", **best))
        await self.end(experiment_id, "COMPLETED")
        return str(checkpoint)

    async def end(self, experiment_id: int, state: str) -> None:
        async with self.world.db.tx() as conn:
            ended = sa.update(experiments).where(experiments.c.id == experiment_id)
            await conn.execute(ended.values(state=state, reason="out of memory"))

    async def row(self, experiment_id: int) -> Any:
        (found,) = await self.world.rows(
            sa.select(experiments).where(experiments.c.id == experiment_id)
        )
        return found


def ok(answer: httpx.Response, *codes: int) -> Any:
    assert answer.status_code in (codes or (200,)), answer.text
    return answer.json()
