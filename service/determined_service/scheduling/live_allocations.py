"""The live allocations, kept in memory and read as changes: :class:`LiveReader`.

To fetch thousands of rows costs several times what Postgres needs to find them. So a reader keeps what it has
read and asks for what has changed since, by the rows' own marks: ``xmin`` is the transaction that wrote a
row's version, and of each statement Postgres tells the oldest transaction that had not ended when it looked.
What that one or a later one wrote is read again by the next statement. Nobody has to tell the reader
of anything: a lost notification, another service and a transaction that commits late change nothing.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import orjson
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from determined_service.state import states

WHOLE_S = 300.0
"""Seconds after which all is read again, whatever is known."""

# `age` counts transactions up to now, so the younger of two has the lower age, over the wrap at 2^32, too. A
# sub-transaction is younger than its transaction, which is not older than the oldest that had not ended.
_FRESH = "coalesce(age({}.xmin) <= age(cast(cast(:since AS text) AS xid)), true)"
_CHANGES = sa.text(
    f"""
    WITH live AS MATERIALIZED (
        SELECT a.*, {_FRESH.format("a")} AS fresh FROM allocations a WHERE state <> 'TERMINATED'
    ), terms AS MATERIALIZED (
        -- Once for each experiment: to take a long configuration apart costs more than all else.
        SELECT e.id, coalesce(queue_position, extract(epoch FROM start_time)::float8) AS position,
               (config #>> '{{resources,max_slots}}')::int AS max_slots,
               coalesce((config #>> '{{resources,weight}}')::float8, 1) AS weight,
               config #>> '{{resources,placement}}' AS placement,
               coalesce((config #>> '{{resources,is_single_node}}')::bool, false) AS single_node,
               CASE WHEN config #>> '{{searcher,name}}' = 'custom' THEN submitted_by END AS runner
        FROM experiments e WHERE e.id IN (SELECT experiment_id FROM live)
          AND ({_FRESH.format("e")} OR e.id IN (SELECT experiment_id FROM live WHERE fresh))
    ), gang AS MATERIALIZED (
        SELECT allocation_id, jsonb_agg(jsonb_build_array(agent_id, slot_ids) ORDER BY node) AS parts
        FROM allocation_resources WHERE allocation_id IN (SELECT id FROM live WHERE nodes > 1)
        GROUP BY allocation_id
    ), banned AS MATERIALIZED (
        SELECT m.trial_id, array_agg(DISTINCT m.agent_id) AS agents
        FROM log_policy_matches m
        JOIN (SELECT trial_id, bool_or(fresh) AS fresh FROM live
              WHERE state = 'REQUESTED' GROUP BY trial_id) w ON w.trial_id = m.trial_id
        WHERE m.action = 'exclude_node' AND m.agent_id IS NOT NULL
        GROUP BY m.trial_id HAVING bool_or(w.fresh) OR bool_or({_FRESH.format("m")})
    )
    SELECT json_build_object(
        'since', pg_snapshot_xmin(pg_current_snapshot())::text,
        'server', pg_postmaster_start_time()::text || ' ' || current_database(),
        'own', pg_current_xact_id_if_assigned() IS NOT NULL
               OR current_setting('transaction_isolation') <> 'read committed',
        'ids', (SELECT coalesce(json_agg(id), '[]') FROM live),
        'rows', (SELECT coalesce(json_agg(json_build_array(
                    id, state, task_id, trial_id, experiment_id, resource_pool, slots, priority, preemptible,
                    extract(epoch FROM coalesce(in_line_since, requested_at))::float8,
                    extract(epoch FROM assigned_at)::float8, agent_id, slot_ids, stopping_for,
                    preempt_requested_at IS NOT NULL OR kill_requested_at IS NOT NULL,
                    CASE WHEN state = 'REQUESTED' THEN extract(epoch FROM rests_until)::float8 END,
                    CASE WHEN state = 'REQUESTED' THEN waits_for END)), '[]')
                 FROM live WHERE fresh),
        'terms', (SELECT coalesce(json_agg(json_build_array(
                      id, position, max_slots, weight, placement, single_node, runner)), '[]') FROM terms),
        'gangs', (SELECT coalesce(json_object_agg(allocation_id, parts), '{{}}') FROM gang),
        'banned', (SELECT coalesce(json_agg(json_build_array(trial_id, agents)), '[]') FROM banned)
    )::text
    """
)


class LiveAllocation(NamedTuple):
    """An allocation that has not ended. Times in seconds since 1970; ``rests_until``, ``unplaced``: as of
    :class:`~.snapshot.Resting`."""

    id: str
    state: str
    task_id: str
    trial_id: int | None
    experiment_id: int | None
    pool: str
    slots: int
    priority: int | None
    preemptible: bool
    since: float
    assigned: float | None
    agent_id: str | None
    slot_ids: list[int]
    stopping_for: str | None
    stopping: bool
    rests_until: float | None
    unplaced: str | None


class ExperimentTerms(NamedTuple):
    """What the allocations of one experiment have in common. ``runner``: the task that runs its search."""

    position: float
    max_slots: int | None
    weight: float
    placement: str | None
    single_node: bool
    runner: str | None


@dataclass(frozen=True, slots=True)
class Live:
    """What has not ended, at one moment. Nothing in it changes later.

    ``rows``: by id, what waits in the order in which it came, what runs in the order in which it was placed;
    ``terms`` by experiment; ``parts``: agents and their slots, of gangs; ``banned``: by trial that waits,
    the agents that log policies exclude. Entries of experiments and trials that have ended may be left over.
    ``number``: of the look, 0 for one that nobody counts. ``changed``: what is not as it was in the look
    before; None: all may be.
    """

    rows: Mapping[str, LiveAllocation] = field(default_factory=dict)
    terms: Mapping[int, ExperimentTerms] = field(default_factory=dict)
    parts: Mapping[str, list[Any]] = field(default_factory=dict)
    banned: Mapping[int, frozenset[str]] = field(default_factory=dict)
    number: int = 0
    changed: frozenset[str] | None = None

    @property
    def is_waited_for(self) -> bool:
        """Whether something wants slots, or is of an experiment that may hold too many."""
        limited = {key for key, one in self.terms.items() if one.max_slots is not None}
        return any(
            row.state == states.REQUESTED or row.experiment_id in limited
            for row in self.rows.values()
        )


class LiveReader:
    """Reads :class:`Live`, for one process and one database."""

    def __init__(self, whole_s: float = WHOLE_S) -> None:
        self._whole_s = whole_s
        self._lock = asyncio.Lock()
        self._live = Live()
        self._since: str | None = None
        self._server = ""
        self._whole_at = 0.0

    async def read(self, conn: AsyncConnection) -> Live:
        """This moment's, as ``conn`` sees it."""
        async with self._lock:
            since = self._since
            if time.monotonic() - self._whole_at > self._whole_s:
                since = None
            found = await _changes(conn, since)
            if found["own"]:
                # Of a transaction that has written something which it may yet take back.
                return _all_of(found if since is None else await _changes(conn, None), 0)
            live = None
            if since is not None and found["server"] == self._server:
                live = _changed(self._live, found)
            if live is None:
                if since is not None:
                    found = await _changes(conn, None)
                live, self._whole_at = _all_of(found, self._live.number + 1), time.monotonic()
            self._since = str(int(found["since"]) & 0xFFFFFFFF)  # as rows have it
            self._live, self._server = live, found["server"]
            return live


async def _changes(conn: AsyncConnection, since: str | None) -> dict[str, Any]:
    found = (await conn.execute(_CHANGES, {"since": since})).scalar_one()
    read: dict[str, Any] = orjson.loads(found)
    return read


def _all_of(found: dict[str, Any], number: int) -> Live:
    rows = sorted((LiveAllocation(*row) for row in found["rows"]), key=_place)
    return Live(
        {row.id: row for row in rows}, _terms(found), found["gangs"], _banned(found), number
    )


def _changed(before: Live, found: dict[str, Any]) -> Live | None:
    """``before`` with what was found; None when something is missing that should be known."""
    fresh = {row[0]: LiveAllocation(*row) for row in found["rows"]}
    there = set(found["ids"])
    rows = dict(before.rows)
    gone = rows.keys() - there
    if there - rows.keys() - fresh.keys():
        return None
    for key in gone:
        del rows[key]
    latest = _place(rows[next(reversed(rows))]) if rows else (-math.inf, -math.inf, "")
    is_sorted = True
    for row in sorted(fresh.values(), key=_place):
        known = rows.get(row.id)
        if known is None or _place(known) != _place(row):
            rows.pop(row.id, None)
            is_sorted = is_sorted and _place(row) > latest
        rows[row.id] = row
    if not is_sorted:
        rows = {row.id: row for row in sorted(rows.values(), key=_place)}
    gangs = found["gangs"]
    # Both come along with each row that is fresh: mostly as they are known.
    terms = {key: one for key, one in _terms(found).items() if before.terms.get(key) != one}
    banned = {key: one for key, one in _banned(found).items() if before.banned.get(key) != one}
    changed = {*gone, *fresh}
    changed |= {key for key in {*gangs, *before.parts} if gangs.get(key) != before.parts.get(key)}
    if terms or banned:
        changed |= {
            row.id for row in rows.values() if row.experiment_id in terms or row.trial_id in banned
        }
    return Live(
        rows,
        {**before.terms, **terms} if terms else before.terms,
        gangs,
        {**before.banned, **banned} if banned else before.banned,
        before.number + 1,
        frozenset(changed),
    )


def _terms(found: dict[str, Any]) -> dict[int, ExperimentTerms]:
    return {one[0]: ExperimentTerms(*one[1:]) for one in found["terms"]}


def _banned(found: dict[str, Any]) -> dict[int, frozenset[str]]:
    return {trial: frozenset(agents) for trial, agents in found["banned"]}


def _place(row: LiveAllocation) -> tuple[float, float, str]:
    began = row.since if row.assigned is None else row.assigned
    return began, math.inf if row.trial_id is None else row.trial_id, row.id
