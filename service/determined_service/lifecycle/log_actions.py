"""Applies the actions of log policies that matched (:mod:`determined_service.ingest.log_policies`)."""

from __future__ import annotations

from collections import Counter

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from determined_service.base.spread import Spread, could_hold
from determined_service.state import presence

_NO_RESTART = sa.text(
    """
    SELECT name, line FROM log_policy_matches
    WHERE trial_id = :trial_id AND run_id = :run_id AND action = 'cancel_retries'
    ORDER BY id LIMIT 1
    """
)
_EXCLUDED = sa.text(
    """
    SELECT DISTINCT ON (agent_id) agent_id, name FROM log_policy_matches
    WHERE trial_id = :trial_id AND action = 'exclude_node' AND agent_id IS NOT NULL
    ORDER BY agent_id, id
    """
)
_EXCLUDES_NOW = sa.text(
    """
    SELECT name, agent_id, line FROM log_policy_matches
    WHERE trial_id = :trial_id AND run_id = :run_id AND action = 'exclude_node' AND agent_id IS NOT NULL
    ORDER BY id
    """
)
# Agents that were here within the last minutes, as at submission: one that restarts counts.
_LEFT = sa.text(
    f"""
    SELECT e.resource_pool, (SELECT (config ->> 'launch_error')::bool FROM cluster) AS launch_error,
           coalesce((e.config #>> '{{resources,slots_per_trial}}')::int, 1) AS wanted,
           (e.config #>> '{{resources,is_single_node}}')::bool AS single_node, ARRAY(
        SELECT (SELECT count(*) FROM slots s
                WHERE s.agent_id = g.id AND {presence.is_usable()} AND NOT s.draining)
        FROM agents g
        WHERE g.resource_pool = e.resource_pool AND g.id <> ALL(:excluded)
          AND g.last_heartbeat > now() - interval '5 minutes'
    ) AS sizes
    FROM trials t JOIN experiments e ON e.id = t.experiment_id WHERE t.id = :trial_id
    """
)


async def no_restart(conn: AsyncConnection, trial_id: int, run_id: int) -> str | None:
    """The reason why this leg's failure is not to be retried, in words; None: it may be."""
    found = await conn.execute(_NO_RESTART, {"trial_id": trial_id, "run_id": run_id})
    row = found.first()
    return None if row is None else f"log policy {row.name!r} matched: {row.line}"


async def exclusions(conn: AsyncConnection, trial_id: int, run_id: int) -> list[str]:
    """On which agents the trial does not run any more since this leg, and why: lines for its log."""
    found = await conn.execute(_EXCLUDES_NOW, {"trial_id": trial_id, "run_id": run_id})
    return [
        f"log policy {row.name!r} matched: {row.line}; trial {trial_id} therefore will not schedule on "
        f"{row.agent_id}"
        for row in found
    ]


async def no_agent_left(conn: AsyncConnection, trial_id: int) -> str | None:
    """In words, that log policies have excluded every agent that could run the trial; else None.

    With ``launch_error: false`` in the cluster configuration the trial waits for another agent: None, too.
    """
    excluded = {
        row.agent_id: row.name for row in await conn.execute(_EXCLUDED, {"trial_id": trial_id})
    }
    if not excluded:
        return None
    found = await conn.execute(_LEFT, {"trial_id": trial_id, "excluded": list(excluded)})
    row = found.one()
    if row.launch_error is False:
        return None
    # Agents of any size, even if the pool's settings differ: a trial too wide for these can only wait.
    if row.sizes and could_hold(row.wanted, Counter(row.sizes), Spread.of(row.single_node, True)):
        return None
    listed = ", ".join(f"{agent} (log policy {name!r})" for agent, name in excluded.items())
    return (
        f"no agent of resource pool {row.resource_pool!r} is left for this trial: excluded {listed}"
    )
