"""What an experiment came from, and what came from it."""

from __future__ import annotations

import datetime

import httpx
import pytest
import sqlalchemy as sa

from determined_registry.database.tables import (
    allocations,
    pipeline_experiments,
    pipeline_steps,
    pipelines,
)
from tests.integration.service_api.test_checkpoints import store
from tests.integration.service_api.world import World


async def test_lineage(world: World, user: httpx.AsyncClient) -> None:
    parent = await world.experiment("parent")
    leg = await world.leg(parent_id=parent)
    child = await world.experiment("child", parent_id=leg.experiment_id)
    checkpoint = await store(leg, 3)
    await user.post("/api/v1/models", json={"name": "digits"})
    answer = await user.post("/api/v1/models/digits/versions", json={"checkpointUuid": checkpoint})
    assert answer.status_code == 200, answer.text
    began = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
    async with world.db.tx() as conn:
        pipeline = await conn.scalar(
            sa.insert(pipelines)
            .values(name="line", owner_id=1, plan="{}", state="RUNNING")
            .returning(pipelines.c.id)
        )
        of = {"pipeline_id": pipeline, "step": 0, "state": "RUNNING"}
        await conn.execute(sa.insert(pipeline_steps).values(**of))
        for attempt in (1, 2):
            await conn.execute(
                sa.insert(pipeline_experiments).values(
                    **of, item=0, attempt=attempt, experiment_id=leg.experiment_id
                )
            )
        await conn.execute(
            sa.update(allocations)
            .where(allocations.c.id == leg.allocation_id)
            .values(slots=2, assigned_at=began, ended_at=began + datetime.timedelta(hours=3))
        )
    found = (await user.get(f"/api/v1/experiments/{leg.experiment_id}/lineage")).json()
    assert found == {
        "parent": {"id": parent, "name": "parent", "state": "STATE_ACTIVE"},
        "forks": [{"id": child, "name": "child", "state": "STATE_ACTIVE"}],
        "modelVersions": [{"modelName": "digits", "version": 1, "checkpoint": checkpoint}],
        "pipelines": [{"id": pipeline, "name": "line"}],
        "retrainings": [],
        "slotSeconds": pytest.approx(6 * 3600),
    }
    assert (await user.get("/api/v1/experiments/999/lineage")).status_code == 404


async def test_forks_are_found_by_an_index(world: World) -> None:
    """Also by Postgres, which forgets the parent in each fork when an experiment is deleted."""
    async with world.db.tx() as conn:
        await conn.execute(sa.text("SET LOCAL enable_seqscan = off"))
        forks = "EXPLAIN SELECT id FROM experiments WHERE parent_id = 1 ORDER BY id DESC LIMIT 100"
        plan = "\n".join((await conn.execute(sa.text(forks))).scalars())
    assert "ix_experiments_parent_id" in plan and "Sort" not in plan
