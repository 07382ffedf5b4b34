"""The limits of one user: ``quotas`` of the cluster configuration.

A change counts what its owner has when it has added its own, in its transaction and under a lock of the
owner's: of two that take the last place at once, the second sees the first. The lock is the last one that a
change takes, so nobody waits for another lock with it. A count is a look-up by an index of the rows that are
open or stored now, independent of earlier ones. Stored trials are counted only in a cluster that has ever had
more of them than one user may have.

A search that runs is never refused a trial, and those that it makes as others report do not count against
its owner, unless the trials that were asked for are too many anyway.

Other quotas are kept where what they bound is made: sessions by
:mod:`~determined_service.access.sessions`, logs by :mod:`~determined_service.ingest.log_room`.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from determined.common.cluster_config import Quotas
from determined_service.base.db import hold_name
from determined_service.base.refusals import OverQuota
from determined_service.state.task_kinds import NOTEBOOK_MARK


class _Kind(NamedTuple):
    """``counted``: SQL, of the user ``u``; exact where it is more than allowed (:most_NAME). ``remedy``: what
    the user can do."""

    counted: str
    words: str
    remedy: str


# The conditions are word for word those of the indices.
_OPEN = "NOT IN ('COMPLETED', 'CANCELED', 'ERROR')"
_OPEN_EXPERIMENTS = """
    experiments e WHERE e.owner_id = u.id
    AND e.state NOT IN ('COMPLETED', 'CANCELED', 'ERROR', 'DELETING', 'DELETE_FAILED')
"""
_KINDS = {
    "experiments": _Kind(
        f"SELECT count(*) FROM {_OPEN_EXPERIMENTS}",
        "experiments that have not ended",
        "wait until some have, or end some (det experiment kill ID)",
    ),
    "trials": _Kind(
        # The trials themselves may be ten thousand: they are counted only when that may matter.
        f"""
        SELECT CASE WHEN asked_for <= :most_trials THEN asked_for ELSE (
            SELECT coalesce(sum(n), 0) FROM (
                SELECT (SELECT count(*) FROM trials t WHERE t.experiment_id = e.id AND t.state {_OPEN}) AS n
                FROM {_OPEN_EXPERIMENTS}) AS of_each) END
        FROM (SELECT coalesce(sum(e.trials_asked_for), 0) AS asked_for FROM {_OPEN_EXPERIMENTS}) AS sums
        """,
        "trials that have not ended",
        "wait until some have, end experiments (det experiment kill ID), or have the search begin with fewer "
        "(searcher.max_concurrent_trials)",
    ),
    "tasks": _Kind(
        f"SELECT count(*) FROM tasks k WHERE k.owner_id = u.id AND k.state {_OPEN}",
        "commands, notebooks, shells and other tasks that have not ended",
        "wait until some have, or end some (det task kill ID)",
    ),
    "stored_experiments": _Kind(
        # The constraint on idempotency keys begins with the owner: only its index is read.
        "SELECT count(*) FROM experiments e WHERE e.owner_id = u.id",
        "experiments in the database, ended ones too",
        "delete some that nobody needs any more (det experiment delete ID)",
    ),
    "stored_trials": _Kind(
        # The last id is at least the number of all trials of all users.
        """
        SELECT CASE WHEN (SELECT coalesce(max(id), 0) FROM trials) <= :most_stored_trials THEN 0 ELSE (
            SELECT count(*) FROM experiments e JOIN trials t ON t.experiment_id = e.id
            WHERE e.owner_id = u.id) END
        """,
        "trials in the database, ended ones too",
        "delete experiments that nobody needs any more (det experiment delete ID)",
    ),
    "stored_tasks": _Kind(
        "SELECT count(*) FROM tasks k WHERE k.owner_id = u.id AND k.job_id IS NOT NULL",
        "commands, notebooks, shells and other tasks in the database, ended ones too",
        "the service deletes the earliest that ended more than 30 days ago, notebooks once their files are "
        "deleted (det notebook delete-files ID): wait for that",
    ),
    "metric_bytes": _Kind(
        "SELECT coalesce(sum(s.bytes), 0) FROM metric_sizes s WHERE s.owner_id = u.id",
        "bytes of metrics in the database",
        "delete experiments that nobody needs any more (det experiment delete ID)",
    ),
    "model_definition_bytes": _Kind(
        "SELECT coalesce(sum(m.size), 0) FROM model_definitions m WHERE m.owner_id = u.id",
        "bytes of model definitions and context directories in the database",
        "delete experiments that are not needed any more (det experiment delete ID), or leave files that the "
        "program does not need out of the directory (.detignore)",
    ),
    "returned_file_bytes": _Kind(
        # These are few: they are kept for some days, or until they are fetched.
        """
        SELECT coalesce(sum(f.size), 0) FROM task_files f JOIN tasks k ON k.id = f.task_id
        WHERE k.owner_id = u.id
        """,
        "bytes of files that came back from tasks and were not fetched yet",
        "fetch those of earlier tasks (det run --fetch ID)",
    ),
    "notebook_file_bytes": _Kind(
        # What is being deleted counts no more.
        f"""
        SELECT coalesce(sum(k.kept_bytes), 0) FROM tasks k
        WHERE k.owner_id = u.id AND k.kept_bytes IS NOT NULL
        AND coalesce(k.data, '{{}}') -> '{NOTEBOOK_MARK}' IS NULL
        """,
        "bytes of files that notebooks keep",
        "delete those of notebooks that nobody needs any more (det notebook delete-files ID)",
    ),
    "package_bytes": _Kind(
        # As agents have measured them lately.
        """
        SELECT coalesce(sum(cast(p.bytes AS bigint)), 0)
        FROM agents g CROSS JOIN jsonb_each_text(g.package_bytes) AS p (id, bytes)
        LEFT JOIN experiments e ON e.id = CASE WHEN p.id ~ '^[0-9]+$' THEN cast(p.id AS int) END
        LEFT JOIN (allocations a JOIN tasks k ON k.id = a.task_id)
            ON a.id = p.id AND a.state <> 'TERMINATED'
        WHERE k.owner_id = u.id OR e.owner_id = u.id
        AND e.state NOT IN ('COMPLETED', 'CANCELED', 'ERROR', 'DELETING', 'DELETE_FAILED')
        """,
        "bytes of packages on agents, installed by experiments and tasks that have not ended",
        "wait until some have, or end some (det experiment kill ID, det task kill ID)",
    ),
}
_BOUNDED = frozenset(
    f"most_{name}" for name, kind in _KINDS.items() if f":most_{name}" in kind.counted
)


@functools.cache
def _statement(names: tuple[str, ...]) -> sa.TextClause:
    counts = ", ".join(f"({_KINDS[name].counted}) AS {name}" for name in names)
    return sa.text(f"SELECT u.username, {counts} FROM users u WHERE u.id = :owner_id")


async def require_room(conn: AsyncConnection, quotas: Quotas, owner_id: int, *names: str) -> None:
    """Raise OverQuota when the user has more than the quotas ``names`` allow, counting the additions of this
    transaction. Call it last."""
    await hold_name(conn, f"quotas/{owner_id}")
    bounds = {f"most_{name}": getattr(quotas, name) for name in names}
    given = {name: most for name, most in bounds.items() if name in _BOUNDED}
    row = (await conn.execute(_statement(names), {"owner_id": owner_id, **given})).one()
    for name in names:
        found, most, kind = int(getattr(row, name)), getattr(quotas, name), _KINDS[name]
        if found > most:
            raise OverQuota(
                f"user {row.username} would have {found} {kind.words}, and at most {most} are allowed "
                f"(quotas.{name}): {kind.remedy}, or ask an administrator, who may raise it in the cluster "
                "configuration"
            )
