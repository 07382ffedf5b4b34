"""What an agent needs to start a leg: :func:`leg_specs`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from determined_service.settings import Settings

_SPECS = sa.text(
    """
    SELECT a.id, a.task_id, a.experiment_id, a.trial_id, a.run_id, a.slot_ids, a.resource_pool,
           a.token, a.agent_id, t.flow_run_id, t.hparams, t.seed,
           coalesce(t.latest_checkpoint, t.warm_start_checkpoint) AS checkpoint,
           -- Steps of a checkpoint of this trial; one taken from elsewhere starts from zero.
           CASE WHEN t.latest_checkpoint IS NULL THEN 0 ELSE coalesce(c.steps_completed, 0) END
               AS steps_completed,
           c.resources, c.checksums, c.storage,
           e.config, e.model_def_hash, u.username, g.slot_type
    FROM allocations a
    JOIN trials t ON t.id = a.trial_id
    JOIN experiments e ON e.id = a.experiment_id
    JOIN users u ON u.id = e.owner_id
    LEFT JOIN agents g ON g.id = a.agent_id
    LEFT JOIN checkpoints c ON c.uuid = coalesce(t.latest_checkpoint, t.warm_start_checkpoint)
    WHERE a.id = ANY(:ids)
    ORDER BY a.assigned_at, a.id
    """
)


async def leg_specs(
    conn: AsyncConnection, allocation_ids: Sequence[str], settings: Settings
) -> list[dict[str, Any]]:
    """One LegSpec (docs/lifecycle.md) per allocation, in the order of their assignment."""
    found = await conn.execute(_SPECS, {"ids": list(allocation_ids)})
    return [_spec(row, settings) for row in found]


def _spec(row: sa.Row[Any], settings: Settings) -> dict[str, Any]:
    environment = row.config.get("environment") or {}
    return {
        "allocation_id": row.id,
        "task_id": row.task_id,
        "task_type": "TRIAL",
        "experiment_id": row.experiment_id,
        "trial_id": row.trial_id,
        "run_id": row.run_id,
        "flow_run_id": row.flow_run_id,
        "slot_ids": row.slot_ids,
        "resource_pool": row.resource_pool,
        "entrypoint": row.config.get("entrypoint"),
        "model_def_hash": row.model_def_hash,
        "config": row.config,
        "hparams": row.hparams,
        "trial_seed": row.seed,
        "latest_checkpoint": row.checkpoint,
        "steps_completed": row.steps_completed,
        "checkpoint": checkpoint_facts(row),
        "session_token": row.token,
        "cluster_id": settings.cluster_id,
        "cluster_name": settings.cluster_name,
        "owner": row.username,
        "env": {"DET_USER": row.username},
        "environment_variables": _variables(environment, row.slot_type or "cpu"),
    }


def checkpoint_facts(row: sa.Row[Any]) -> dict[str, Any] | None:
    """What a leg needs to verify the checkpoint it starts from; None: there is no row of it."""
    if row.resources is None:
        return None
    return {"resources": row.resources, "checksums": row.checksums, "storage": row.storage}


def _variables(environment: dict[str, Any], slot_type: str) -> list[str]:
    """``environment_variables`` for a kind of slot; the section is a list, or one per kind."""
    given = environment.get("environment_variables") or []
    if isinstance(given, dict):
        given = given.get(slot_type) or []
    return [str(item) for item in given]
