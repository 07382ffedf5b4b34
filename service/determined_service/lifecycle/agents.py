"""Agents: their registration, their orders to start and to kill, and when they count as lost."""

from __future__ import annotations

import signal
import time
import uuid
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import orjson
import sqlalchemy as sa
from pydantic import ValidationError
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from determined import __version__
from determined.common.wire import limits, version
from determined.common.wire.agents import (
    MOUNTS,
    PROGRAMS,
    AgentState,
    Registration,
    Slot,
    Work,
    WorkRequest,
)
from determined.common.wire.legs import LegSpec
from determined.common.wire.times import HEARTBEAT_S
from determined.expconf.heeding import PROCESSES
from determined.expconf.resources import PlacementSection
from determined_registry.database.tables import agents, pools, slots
from determined_service.base import topics, units
from determined_service.base.db import Database
from determined_service.base.errors import BadRequest, Conflict
from determined_service.base.hub import CHANNEL
from determined_service.base.settings import Settings
from determined_service.lifecycle.exits import ExitKind, LegExit
from determined_service.lifecycle.leg_orders import leg_specs
from determined_service.lifecycle.legs import LONGEST_WAIT, end_leg, note_wait
from determined_service.lifecycle.pools import require_pool
from determined_service.state import presence, states
from determined_service.state.change import Change, changing, reader
from determined_service.state.nodes import NODES, known_as

ONE_HOST_S = 2 * HEARTBEAT_S
"""Without a sign of life for so long, an agent makes way for one of its name on another host."""


def require_understood(agent_id: str, wire: int, release: str = "") -> None:
    """Raises BadRequest, which says what to upgrade, for an agent that speaks another version."""
    refusal = version.refusal(agent_id, wire, release)
    if refusal is not None:
        raise BadRequest(refusal)


async def register(db: Database, agent_id: str, facts: Registration) -> list[str]:
    """The agent ``agent_id`` is here, with these slots and these processes still alive.

    Processes of its earlier life that are gone end as lost. Returns the allocations whose
    processes must die. Raises BadRequest for an agent that is not understood, for slots with one id, and for
    an agent that does not suit its pool, or whose pool the cluster configuration does not have; Conflict
    while an agent of this name is at work on another host.
    """
    require_understood(agent_id, facts.wire, facts.version)
    _require_slots(facts.slots)
    _require_labels(facts.labels)
    async with changing(db) as change:
        await _require_one_host(change.conn, agent_id, facts)
        await _require_one_type(change.conn, agent_id, facts)
        await _store(change, agent_id, facts)
        known = await _held(change.conn, agent_id, facts.allocations)
    gone = [
        row
        for key, row in known.items()
        if row.state == states.RUNNING and key not in facts.allocations
    ]
    for row in gone:
        async with changing(db) as change:
            end = LegExit(ExitKind.INFRASTRUCTURE, reason=f"agent {agent_id} restarted without it")
            await end_leg(change, row.id, end, node=row.node)
    return [key for key in facts.allocations if key not in known or known[key].kill]


def _require_slots(found: list[Slot]) -> None:
    for slot, count in Counter(slot.id for slot in found).items():
        if count > 1:
            raise BadRequest(
                f"slots: {count} slots have the id {slot}; each slot needs an id of its own"
            )
    units.require_machines("slots", (slot.machine for slot in found if slot.machine is not None))


def _require_labels(labels: Mapping[str, str]) -> None:
    try:
        PlacementSection.model_validate({"labels": dict(labels)})
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = next((str(step) for step in first["loc"][1:]), "")
        raise BadRequest(f"labels: {key!r}: {first['msg']}") from error


def _lacks(facts: Registration) -> dict[str, str]:
    if facts.wire < version.MOUNTS and facts.worker_type == PROCESSES:
        why = f"its release mounts nothing for processes; install determined-prefect {__version__} there"
        return {**facts.lacks, MOUNTS: why}
    return facts.lacks


_OTHER_TYPE = sa.text(
    f"""
    SELECT p.worker_type, g.id
    FROM pools p JOIN agents g ON g.resource_pool = p.name
    WHERE p.name = :pool AND p.worker_type <> :worker_type AND g.id <> :agent_id
      AND {presence.is_alive(":alive_s")}
    ORDER BY g.id LIMIT 1
    """
)


async def _require_one_type(conn: AsyncConnection, agent_id: str, facts: Registration) -> None:
    """Prefect's work pool has one type of worker, so a pool has one type of agents at a time."""
    asked = {
        "pool": facts.resource_pool,
        "worker_type": facts.worker_type,
        "agent_id": agent_id,
        "alive_s": 2 * HEARTBEAT_S,
    }
    other = (await conn.execute(_OTHER_TYPE, asked)).first()
    if other is not None:
        raise BadRequest(
            f"agent {agent_id} is of the type {facts.worker_type}, and resource pool"
            f" {facts.resource_pool} has agents of the type {other.worker_type} ({other.id}): start it"
            " for another pool"
        )


_OTHER_HOST = sa.text(
    f"""
    SELECT g.host FROM agents g
    WHERE g.id = :agent_id AND g.session <> :session AND '' NOT IN (g.host, :host) AND g.host <> :host
      AND {presence.takes_work(":alive_s")}
    """
)


async def _require_one_host(conn: AsyncConnection, agent_id: str, facts: Registration) -> None:
    """Two agents of one name would register in turns, and each would end what the other has begun.

    One on the same host has ended: it is this one's predecessor.
    """
    asked = {
        "agent_id": agent_id,
        "session": facts.session,
        "host": facts.host,
        "alive_s": ONE_HOST_S,
    }
    other = (await conn.execute(_OTHER_HOST, asked)).first()
    if other is not None:
        raise Conflict(
            f"agent {agent_id} is at work on host {other.host} already; end it there, or give this one"
            f" another name (agent_id). If that host is gone, start this one again {ONE_HOST_S:.0f} s later"
        )


async def _store(change: Change, agent_id: str, facts: Registration) -> None:
    conn = change.conn
    # First: two agents that share a lock on the row could not both change it.
    await conn.execute(
        sa.update(pools)
        .where(pools.c.name == facts.resource_pool, pools.c.worker_type != facts.worker_type)
        .values(worker_type=facts.worker_type)
    )
    await require_pool(conn, facts.resource_pool, f"resource_pool of agent {agent_id}", None)
    values = {
        "resource_pool": facts.resource_pool,
        "host": facts.host,
        "address": facts.address,
        "version": facts.version,
        "slot_type": facts.slot_type,
        "labels": facts.labels,
        "lacks": _lacks(facts),
        "container_rights": sa.null() if facts.containers is None else facts.containers.to_json(),
        "session": facts.session,
        "registered_at": sa.func.now(),
        "last_heartbeat": sa.func.now(),
        "away": None,
    }
    await conn.execute(
        insert(agents)
        .values(id=agent_id, **values)
        .on_conflict_do_update(index_elements=[agents.c.id], set_=values)
    )
    await _store_slots(conn, agent_id, facts.slots)
    change.notify(topics.SCHEDULER, topics.agent(agent_id))


# A slot that an administrator disabled stays so.
_SLOTS = sa.text(
    """
    INSERT INTO slots (agent_id, slot_id, device, draining, machine)
    SELECT :agent_id, (item ->> 'id')::int, coalesce(item -> 'device', '{}'),
           coalesce((item ->> 'draining')::bool, false), item ->> 'machine'
    FROM jsonb_array_elements(cast(:slots AS jsonb)) AS item
    ON CONFLICT (agent_id, slot_id)
    DO UPDATE SET device = excluded.device, draining = excluded.draining, machine = excluded.machine
    """
)


async def _store_slots(conn: AsyncConnection, agent_id: str, found: Sequence[Slot]) -> None:
    ids = [slot.id for slot in found]
    await conn.execute(
        sa.delete(slots).where(slots.c.agent_id == agent_id, slots.c.slot_id.not_in(ids))
    )
    await conn.execute(_SLOTS, {"agent_id": agent_id, "slots": orjson.dumps(found).decode()})


async def note_state(db: Database, agent_id: str, state: AgentState) -> None:
    """Stores the slots that the agent has now, and what its legs wait for.

    What holds a slot that is gone goes on until its agent reports the end. Raises Conflict: register first;
    BadRequest for slots with one id.
    """
    _require_slots(state.slots)
    async with changing(db) as change:
        own = sa.select(agents.c.id).where(
            agents.c.id == agent_id, agents.c.session == state.session
        )
        if (await change.conn.execute(own.with_for_update())).first() is None:
            raise unknown_session(agent_id)
        await _store_slots(change.conn, agent_id, state.slots)
        change.notify(topics.SCHEDULER)
    given = {"agent_id": agent_id, "waiting": orjson.dumps(state.waiting).decode()}
    async with reader(db).connect() as conn:
        changed = list(await conn.execute(_OTHER_WAITS, given))
    for row in changed:
        async with changing(db) as change:
            why = state.waiting.get(row.leg_id)
            await note_wait(change, row.id, row.node, agent_id, why)


_OTHER_WAITS = sa.text(
    f"""
    SELECT n.id, n.leg_id, n.node FROM {NODES} AS n
    WHERE n.agent_id = :agent_id AND n.state = 'ASSIGNED'
      AND n.waits_for IS DISTINCT FROM left(cast(:waiting AS jsonb) ->> n.leg_id, {LONGEST_WAIT})
    ORDER BY n.id, n.node
    """
)


_HELD = sa.text(
    f"""
    SELECT n.id, n.leg_id, n.node, n.state, n.nodes, n.kill FROM {NODES} AS n
    WHERE n.agent_id = :agent_id AND n.state <> 'TERMINATED' ORDER BY n.id, n.node
    """
)


async def _held(
    conn: AsyncConnection, agent_id: str, told: Collection[str]
) -> dict[str, sa.Row[Any]]:
    found = await conn.execute(_HELD, {"agent_id": agent_id})
    return {known_as(row.leg_id, row.id, told): row for row in found}


# The slots of an agent that was silent for long, or hung up, are there again. One that has ended registers
# before it speaks again.
_BEAT = sa.text(
    f"""
    WITH before AS (SELECT last_heartbeat, away FROM agents WHERE id = :id), beat AS (
        UPDATE agents SET last_heartbeat = now(), away = NULL
        WHERE id = :id AND session = :session AND away IS DISTINCT FROM '{presence.ENDED}'
        RETURNING resource_pool
    )
    SELECT beat.resource_pool,
           CASE WHEN before.last_heartbeat < now() - make_interval(secs => :silent_s)
                  OR before.away IS NOT NULL
                THEN pg_notify(:channel, :topic) END
    FROM beat, before
    """
)


class Heartbeats:
    """Writes an agent's sign of life, but not each time that it speaks."""

    def __init__(self) -> None:
        self._written: dict[str, tuple[uuid.UUID, float, str]] = {}

    async def beat(self, db: Database, agent_id: str, session: uuid.UUID) -> str:
        """Returns the agent's resource pool. Raises Conflict when another session is registered."""
        now = time.monotonic()
        known, at, pool = self._written.get(agent_id, (None, 0.0, ""))
        if known == session and now - at < HEARTBEAT_S * 0.8:
            return pool
        async with reader(db).connect() as conn:
            given = {
                "id": agent_id,
                "session": session,
                "silent_s": 4 * HEARTBEAT_S,
                "channel": CHANNEL,
                "topic": topics.SCHEDULER,
            }
            found = await conn.execute(_BEAT, given)
        row = found.first()
        if row is None:
            self._written.pop(agent_id, None)
            raise unknown_session(agent_id)
        self._written[agent_id] = (session, now, row.resource_pool)
        return str(row.resource_pool)

    async def suspect(self, db: Database, agent_id: str, session: uuid.UUID) -> None:
        """The agent hung up while it waited for work, so it may have been killed.

        It gets no work until it speaks again. What it runs is left alone.
        """
        self._written.pop(agent_id, None)
        async with reader(db).connect() as conn:
            await conn.execute(
                sa.update(agents)
                .where(agents.c.id == agent_id, agents.c.session == session)
                .where(agents.c.away.is_(None))
                .values(away=presence.HUNG_UP)
            )


def unknown_session(agent_id: str) -> Conflict:
    """The agent must register (again)."""
    return Conflict(f"agent {agent_id} is not registered with this session: register first")


_WORK = sa.text(
    f"""
    SELECT g.session, p.prefect_poll_seq,
           coalesce((SELECT jsonb_agg(jsonb_build_object(
                        'id', n.id, 'leg_id', n.leg_id, 'kind', k.kind, 'state', n.state, 'kill', n.kill)
                        ORDER BY n.assigned_at, n.id, n.node)
                     FROM {NODES} AS n JOIN tasks k ON k.id = n.task_id
                     WHERE n.agent_id = g.id AND n.state <> 'TERMINATED'), '[]') AS held,
           ARRAY(SELECT kept.id FROM unnest(cast(:experiments AS int[])) AS kept (id)
                 LEFT JOIN experiments e ON e.id = kept.id
                 WHERE e.id IS NULL OR e.state = ANY(:ended) ORDER BY kept.id) AS ended,
           coalesce((SELECT jsonb_agg(jsonb_build_object('id', n.id, 'leg_id', n.leg_id)
                                      ORDER BY n.id, n.node)
                     FROM allocation_doors d JOIN {NODES} AS n ON n.id = d.allocation_id AND n.node = d.node
                     WHERE d.agent_id = g.id AND NOT d.is_open AND d.problem = ''), '[]') AS doors
    FROM agents g JOIN pools p ON p.name = g.resource_pool
    WHERE g.id = :agent_id
    """
)


async def find_work(
    conn: AsyncConnection, agent_id: str, asked: WorkRequest, settings: Settings
) -> tuple[Work, bool, bool, list[tuple[LegSpec, str]]]:
    """What the agent is to do, whether anything of it but ``kill`` is new to it, whether
    something is to be killed that the agent was never told to start (see :func:`kill_unstarted`), and the
    legs that it must not start, and why (see :func:`refuse`).

    Raises Conflict: register first.
    """
    running = asked.running
    kept = [number for number in asked.experiments if 0 < number < 1 << 31]
    facts = {"agent_id": agent_id, "experiments": kept, "ended": sorted(states.ENDED)}
    row = (await conn.execute(_WORK, facts)).first()
    if row is None or row.session != asked.session:
        raise unknown_session(agent_id)
    held = {known_as(item["leg_id"], item["id"], running): item for item in row.held}
    begin = {
        key: item
        for key, item in held.items()
        if item["state"] == states.ASSIGNED and not item["kill"] and key not in running
    }
    kill = [key for key in running if key not in held or held[key]["kill"]]
    kinds = {item["id"]: item["kind"] for item in begin.values()}
    orders = await leg_specs(conn, kinds, settings, agent_id) if begin else []
    due = [spec for spec in orders if spec.name in begin]
    refused = [(spec, why) for spec in due if (why := _too_old(agent_id, asked.wire, spec))]
    launch = [spec for spec in due if not _too_old(agent_id, asked.wire, spec)]
    unstarted = any(
        item["state"] == states.ASSIGNED and item["kill"] and key not in running
        for key, item in held.items()
    )
    urgent = bool(launch or row.prefect_poll_seq != asked.prefect_poll_seq)
    named = (known_as(item["leg_id"], item["id"], running) for item in row.doors)
    doors = [key for key in named if key in running]
    return Work(launch, kill, row.prefect_poll_seq, row.ended, doors), urgent, unstarted, refused


async def note_packages(db: Database, agent_id: str, found: Mapping[str, int]) -> None:
    """What experiments and allocations have installed on the agent, in bytes, in place of what it said
    before."""
    kept = {
        key: size for key, size in found.items() if not key.isdecimal() or int(key) <= limits.INT32
    }
    async with db.tx() as conn:
        await conn.execute(
            sa.update(agents).where(agents.c.id == agent_id).values(package_bytes=kept)
        )


_PROGRAMS = sa.text(
    "UPDATE agents SET lacks = (lacks - cast(:all AS text[])) || cast(:found AS jsonb) WHERE id = :id"
)


async def note_programs(db: Database, agent_id: str, found: Mapping[str, str]) -> None:
    """Which programs the agent's machine lacks, in place of what it said before."""
    kept = {name: how for name, how in found.items() if name in PROGRAMS}
    async with db.tx() as conn:
        await conn.execute(
            _PROGRAMS, {"id": agent_id, "all": list(PROGRAMS), "found": orjson.dumps(kept).decode()}
        )


class Reminders:
    """Who was told what, and when: while a process dies, or opens its door, its agent need not be told at
    once each time it asks."""

    def __init__(self) -> None:
        self._told: dict[tuple[uuid.UUID, str], float] = {}

    def is_due(self, session: uuid.UUID, keys: Sequence[str]) -> bool:
        """Whether one of ``keys`` was not told within the last heartbeat."""
        now = time.monotonic()
        return any(
            now - self._told.get((session, key), -HEARTBEAT_S) >= HEARTBEAT_S for key in keys
        )

    def note(self, session: uuid.UUID, keys: Sequence[str]) -> None:
        """The agent is being told."""
        if not keys:
            return
        now = time.monotonic()
        self._told = {key: at for key, at in self._told.items() if now - at < 2 * HEARTBEAT_S}
        self._told.update({(session, key): now for key in keys})


def _too_old(agent_id: str, wire: int, spec: LegSpec) -> str | None:
    """Why an agent that speaks version ``wire`` cannot start the leg as it must be."""
    install = f"install determined-prefect {__version__} there"
    if wire < version.ACCOUNTS and spec.agent_user is not None:
        return (
            f"the owner is linked to an account on agents, and agent {agent_id} is of a release that starts"
            f" every task as itself: {install}"
        )
    if wire < version.GANGS and spec.nodes > 1:
        return (
            f"the trial runs on {spec.nodes} agents, and agent {agent_id} is of a release that would start"
            f" its part as a trial of its own: {install}"
        )
    return None


async def refuse(db: Database, agent_id: str, refused: Sequence[tuple[LegSpec, str]]) -> None:
    """Ends allocations that the agent cannot start as they must be."""
    for spec, reason in refused:
        async with changing(db) as change:
            ended = LegExit(ExitKind.FAILED_TO_START, reason=reason)
            await end_leg(
                change, spec.allocation_id, ended, node=spec.node, only_in=states.ASSIGNED
            )


UNSTARTED = "killed before it started"


async def kill_unstarted(db: Database, agent_id: str, running: Sequence[str]) -> None:
    """Ends allocations that were to be killed before the agent had heard of them."""
    async with reader(db).connect() as conn:
        held = await _held(conn, agent_id, running)
    for key, row in held.items():
        if row.state == states.ASSIGNED and row.kill and key not in running:
            async with changing(db) as change:
                end = LegExit(ExitKind.INFRASTRUCTURE, reason=UNSTARTED)
                if row.nodes > 1:  # Not lost: it is another node's end that counts.
                    end = LegExit(ExitKind.EXITED, exit_signal=signal.SIGKILL, reason=UNSTARTED)
                await end_leg(change, row.id, end, node=row.node)
