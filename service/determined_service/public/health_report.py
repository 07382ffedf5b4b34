"""Facts about the cluster's health that only the service sees. `det cluster doctor` judges them."""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import Callable
from typing import Any

import httpx
import sqlalchemy as sa
from fastapi import Request
from sqlalchemy.ext.asyncio import AsyncConnection

from determined.__version__ import __version__
from determined_registry.database import migrate
from determined_service.access.dependencies import ClusterReader
from determined_service.access.visible import seen_by
from determined_service.base.db import seeing
from determined_service.base.settings import Settings
from determined_service.loops.runtime import LEADER_KEY
from determined_service.public.health import no_answer, prefect_get
from determined_service.public.storage_check import CloudChecks, disk_of, try_folder
from determined_service.state import presence
from determined_service.state.nodes import NODES
from determined_service.state.run_records import LOST_S
from determined_service.views.values import moment
from determined_service.web.router import Router
from determined_service.web.state import Db, SettingsOf

router = Router("Health", "/api/v1/cluster")

DISK_TIMEOUT_S = 5.0
"""Seconds to wait for a disk: a network disk that is away may never answer."""
ASSIGNED_S = 60.0
MOST = 20
"""The most things of one kind that are listed."""

_POSTGRES = sa.text(
    """
    SELECT current_setting('server_version') AS version, clock_timestamp() AS time,
           pg_database_size(current_database()) AS size,
           EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND granted AND objsubid = 1
                   AND classid::bigint = :high AND objid::bigint = :low
                   AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
           ) AS is_led
    """
)
_AGENTS = sa.text(
    f"""
    SELECT g.id, g.resource_pool, g.version, g.enabled, g.draining, g.lacks,
           {presence.state()} AS state,
           extract(epoch FROM clock_timestamp() - g.last_heartbeat)::float8 AS silent_s,
           (SELECT count(*) FROM slots s WHERE s.agent_id = g.id) AS slots,
           (SELECT count(*) FROM {NODES} AS n
            WHERE n.agent_id = g.id AND n.state <> 'TERMINATED') AS allocations
    FROM agents g ORDER BY g.id
    """
)
_POOLS = sa.text(
    f"""
    SELECT p.name,
           (SELECT count(*) FROM agents g WHERE g.resource_pool = p.name AND {presence.is_alive()}) AS agents,
           (SELECT count(*) FROM allocations a
            WHERE a.resource_pool = p.name AND a.state = 'REQUESTED') AS waiting
    FROM pools p WHERE NOT p.removed ORDER BY p.name
    """
)
_OUTBOX = sa.text(
    """
    SELECT count(*) AS waiting, max(attempts) AS attempts,
           extract(epoch FROM clock_timestamp() - min(created_at))::float8 AS oldest_s,
           (array_agg(last_error ORDER BY attempts DESC, id)
            FILTER (WHERE last_error IS NOT NULL))[1] AS last_error
    FROM (
        SELECT id, attempts, created_at, last_error FROM prefect_outbox
        UNION ALL
        SELECT id, (last_error IS NOT NULL)::int, seen_at, last_error
        FROM kept_runs WHERE flow_run_id IS NULL AND NOT settled
    ) AS untold
    """
)
_SILENT_SEARCHES = sa.text(
    """
    SELECT e.id AS "experimentId", extract(epoch FROM clock_timestamp()
                     - coalesce(r.seen_at, e.start_time))::float8 AS "forS"
    FROM experiments e LEFT JOIN kept_runs r ON r.experiment_id = e.id
    WHERE e.state = 'ACTIVE' AND NOT e.unmanaged
      AND coalesce(r.seen_at, e.start_time) < now() - make_interval(secs => :quiet)
    ORDER BY e.id LIMIT :most
    """
)
_NOT_STARTED = sa.text(
    """
    SELECT id AS "allocationId", trial_id AS "trialId", agent_id AS "agentId",
           extract(epoch FROM clock_timestamp() - assigned_at)::float8 AS "forS",
           coalesce(waits_for, (SELECT min(r.waits_for) FROM allocation_resources r
                                WHERE r.allocation_id = a.id)) AS "waitsFor"
    FROM allocations a
    WHERE state = 'ASSIGNED' AND assigned_at < now() - make_interval(secs => :quiet)
    ORDER BY assigned_at LIMIT :most
    """
)
_UNPLACED = sa.text(
    """
    SELECT id AS "allocationId", trial_id AS "trialId", resource_pool AS "resourcePool",
           unplaced_times AS "times", waits_for AS "reason"
    FROM allocations
    WHERE state = 'REQUESTED' AND unplaced_times > 0
    ORDER BY unplaced_times DESC, id LIMIT :most
    """
)
_NOT_ENDED = sa.text(
    """
    SELECT id AS "allocationId", trial_id AS "trialId", agent_id AS "agentId",
           extract(epoch FROM clock_timestamp() - kill_requested_at)::float8 AS "forS"
    FROM allocations
    WHERE state <> 'TERMINATED' AND kill_requested_at < now() - make_interval(secs => :quiet)
    ORDER BY kill_requested_at LIMIT :most
    """
)

_NOT_DELETED = sa.text(
    """
    SELECT id AS "experimentId", reason FROM experiments
    WHERE state = 'DELETE_FAILED' ORDER BY id LIMIT :most
    """
)


@router.get("/health-report")
async def health_report(
    request: Request, user: ClusterReader, db: Db, settings: SettingsOf
) -> dict[str, Any]:
    """Times, versions, disks, agents, and things that are stuck. Ages are in seconds, sizes in bytes."""
    seen = seen_by(user)
    async with db.tx() as conn:
        postgres = await _postgres(conn)
        agents = await _rows(conn, _AGENTS, timeout=settings.agent_timeout_s)
        pools = await _rows(conn, _POOLS, timeout=settings.agent_timeout_s)
        outbox = (await _rows(conn, _OUTBOX))[0]
        stuck = await _stuck(conn) if seen is None else None
    if stuck is None:
        with seeing(seen):
            async with db.tx() as conn:
                stuck = await _stuck(conn)
    # Last, so that it is close to when the answer leaves.
    prefect = await _prefect(settings)
    section = settings.checkpoint_storage
    checks: CloudChecks = request.app.state.cloud_checks
    storage = None
    if section is not None and section.get("type") in ("shared_fs", "directory"):
        storage = await _patiently(lambda: try_folder(section))
    elif section is not None:
        storage = await checks.look(section)
    disk = await _patiently(lambda: disk_of(settings.data_dir))
    return {
        "version": __version__,
        "agentTimeoutS": settings.agent_timeout_s,
        "postgres": postgres,
        "prefect": prefect,
        "checkpointStorage": storage,
        "disk": disk,
        "agents": [
            {
                "id": row["id"],
                "resourcePool": row["resource_pool"],
                "version": row["version"],
                "enabled": row["enabled"],
                "draining": row["draining"],
                "state": row["state"],
                "silentS": row["silent_s"],
                "slots": row["slots"],
                "allocations": row["allocations"],
                "lacks": row["lacks"],
            }
            for row in agents
        ],
        "pools": pools,
        "outbox": {
            "waiting": outbox["waiting"],
            "oldestS": outbox["oldest_s"],
            "attempts": outbox["attempts"],
            # It may name what the reader does not see.
            "lastError": outbox["last_error"] if seen is None else None,
        },
        "stuck": stuck,
        "time": moment(datetime.datetime.now(datetime.UTC)),
    }


async def _stuck(conn: AsyncConnection) -> dict[str, Any]:
    return {
        "searches": await _rows(conn, _SILENT_SEARCHES, quiet=LOST_S, most=MOST),
        "notStarted": await _rows(conn, _NOT_STARTED, quiet=ASSIGNED_S, most=MOST),
        "unplaced": await _rows(conn, _UNPLACED, most=MOST),
        "notEnded": await _rows(conn, _NOT_ENDED, quiet=ASSIGNED_S, most=MOST),
        "notDeleted": await _rows(conn, _NOT_DELETED, most=MOST),
    }


async def _rows(
    conn: AsyncConnection, statement: sa.TextClause, **parameters: Any
) -> list[dict[str, Any]]:
    return [dict(row) for row in (await conn.execute(statement, parameters)).mappings()]


async def _postgres(conn: AsyncConnection) -> dict[str, Any]:
    key = {"high": LEADER_KEY >> 32, "low": LEADER_KEY & 0xFFFFFFFF}
    (found,) = await _rows(conn, _POSTGRES, **key)
    asked = datetime.datetime.now(datetime.UTC)
    return {
        "version": found["version"],
        "aheadS": (found["time"] - asked).total_seconds(),
        "sizeBytes": found["size"],
        "revision": await conn.run_sync(migrate.current),
        "revisionWanted": migrate.head(),
        "isLed": found["is_led"],
    }


async def _prefect(settings: Settings) -> dict[str, Any] | None:
    url = settings.prefect_api_url
    if url is None:
        return None
    found: dict[str, Any] = {"url": url, "version": None, "problem": None}
    try:
        await prefect_get(settings, "/ready")
        found["version"] = (await prefect_get(settings, "/admin/version")).json()
    except (httpx.HTTPError, ValueError) as error:
        found["problem"] = f"it {no_answer(error)}"
    return found


async def _patiently(ask: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """The result of ``ask``, called in a thread. If it fails, the reason is put into ``problem``."""
    try:
        return await asyncio.wait_for(asyncio.to_thread(ask), DISK_TIMEOUT_S)
    except TimeoutError:
        return {"problem": f"the disk did not answer within {DISK_TIMEOUT_S:.0f} s"}
    except OSError as error:
        return {"problem": f"{error.filename}: {error.strerror}"}
