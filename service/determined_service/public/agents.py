"""Agents and their slots."""

# Parameters are named as in the API.
# ruff: noqa: N803
from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection
from dataclasses import dataclass
from typing import Annotated, Any

import sqlalchemy as sa
from fastapi import Path
from pydantic import BaseModel
from sqlalchemy.ext.asyncio import AsyncConnection

from determined_registry.database.tables import disabled_machines, slots
from determined_service.access.dependencies import ClusterAdmin, ClusterReader
from determined_service.access.principal import Principal
from determined_service.access.visible import seen_by
from determined_service.base.bounds import Name
from determined_service.base.db import Database, seeing
from determined_service.base.errors import NotFound
from determined_service.lifecycle.machines import remove_agent, use_agent, use_machine, use_slot
from determined_service.state import presence
from determined_service.state.nodes import NODES
from determined_service.views.paging import Limit, Offset, pagination, window
from determined_service.views.values import moment
from determined_service.web.router import Router
from determined_service.web.state import Db, SettingsOf

SlotId = Annotated[int, Path(ge=0, le=2**31 - 1)]

router = Router("Cluster", "/api/v1")

_TYPES = {"cpu": "TYPE_CPU", "cuda": "TYPE_CUDA", "rocm": "TYPE_ROCM"}


# A node of a gang that has ended holds its slots until all have.
_LIVE = sa.text(
    f"SELECT id, leg_id, agent_id, slot_ids, machine, state FROM {NODES} AS n WHERE agent_id IS NOT NULL"
)


@dataclass(frozen=True, slots=True)
class _Held:
    """What an allocation holds of an agent. ``id``, ``leg_id``: of another's that the reader may not see, a
    word in place of its name."""

    id: str
    leg_id: str
    slot_ids: list[int]
    machine: str | None
    state: str


async def _live_allocations(
    conn: AsyncConnection, seen: Collection[str] | None
) -> dict[str, list[_Held]]:
    """By agent. ``seen``: the allocations whose names are shown; None: of all."""
    rows = await conn.execute(_LIVE)
    found: dict[str, list[_Held]] = defaultdict(list)
    for row in rows:
        mine = found[row.agent_id]
        is_seen = seen is None or row.id in seen
        other = f"other-{len(mine) + 1}"
        name, leg_name = (row.id, row.leg_id) if is_seen else (other, other)
        mine.append(_Held(name, leg_name, row.slot_ids, row.machine, row.state))
    return found


def _container(allocation: _Held) -> dict[str, Any]:
    running = allocation.state == "RUNNING"
    return {
        "id": allocation.leg_id,
        "parent": allocation.id,
        "state": "STATE_RUNNING" if running else "STATE_ASSIGNED",
        "devices": [],
        # Where its agent's cluster has placed it.
        "machine": allocation.machine,
    }


def _slot_json(
    slot: sa.Row[Any], agent: sa.Row[Any], held: dict[int, _Held], disabled: dict[str, bool]
) -> dict[str, Any]:
    """``disabled``: the agent's machines that are out of use, and whether they drain."""
    allocation = held.get(slot.slot_id)
    return {
        "id": str(slot.slot_id),
        "machine": slot.machine,
        "enabled": slot.enabled and agent.enabled and slot.machine not in disabled,
        "draining": agent.draining or slot.draining or disabled.get(slot.machine, False),
        "device": {
            "id": slot.slot_id,
            "type": _TYPES.get(slot.device.get("type", ""), "TYPE_UNSPECIFIED"),
            "uuid": slot.device.get("uuid") or "",
            "brand": slot.device.get("brand") or "",
        },
        "container": _container(allocation) if allocation is not None else None,
    }


def _stats(found: list[dict[str, Any]], key: str) -> dict[str, Any]:
    by_kind: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for slot in found:
        by_kind[slot["device"][key]].append(slot)
    return {
        kind: {
            "total": len(members),
            "disabled": sum(not slot["enabled"] for slot in members),
            "draining": sum(slot["draining"] for slot in members),
            "states": dict(
                Counter(slot["container"]["state"] for slot in members if slot["container"])
            ),
        }
        for kind, members in by_kind.items()
    }


def _machines(its_slots: list[dict[str, Any]], disabled: dict[str, bool]) -> dict[str, Any]:
    """Of an agent that stands for several machines: each, also one that is disabled and has no slots now."""
    names = {slot["machine"] for slot in its_slots if slot["machine"] is not None}
    return {
        name: {"enabled": name not in disabled, "draining": disabled.get(name, False)}
        for name in sorted({*names, *disabled})
    }


_AGENTS = sa.text(
    f"""
    SELECT g.*, {presence.state()} AS state FROM agents g
    WHERE cast(:id AS text) IS NULL OR g.id = :id ORDER BY g.id
    """
)


async def read_agents(
    conn: AsyncConnection,
    timeout_s: float,
    agent_id: str | None = None,
    seen: Collection[str] | None = None,
) -> list[dict[str, Any]]:
    """Every agent, or the one of that name, with its state, its slots and what those run.

    ``timeout_s``: how long an agent may be silent. ``seen``: the allocations whose names are shown; None: of
    all.
    """
    live = await _live_allocations(conn, seen)
    by_agent: dict[str, list[sa.Row[Any]]] = defaultdict(list)
    for slot in await conn.execute(sa.select(slots).order_by(slots.c.slot_id)):
        by_agent[slot.agent_id].append(slot)
    disabled: dict[str, dict[str, bool]] = defaultdict(dict)
    for one in await conn.execute(sa.select(disabled_machines)):
        disabled[one.agent_id][one.machine] = one.draining
    found = []
    for agent in await conn.execute(_AGENTS, {"id": agent_id, "timeout": timeout_s}):
        mine = live.get(agent.id, [])
        held = {slot_id: one for one in mine for slot_id in one.slot_ids}
        off = disabled[agent.id]
        its_slots = [_slot_json(slot, agent, held, off) for slot in by_agent[agent.id]]
        found.append(
            {
                "id": agent.id,
                "registeredTime": moment(agent.registered_at),
                "lastHeartbeat": moment(agent.last_heartbeat),
                "state": agent.state,
                "addresses": [agent.host] if agent.host else [],
                "resourcePools": [agent.resource_pool],
                "labels": dict(sorted(agent.labels.items())),
                "enabled": agent.enabled,
                "draining": agent.draining,
                "version": agent.version,
                "slots": {slot["id"]: slot for slot in its_slots},
                "machines": _machines(its_slots, off),
                "containers": {one.leg_id: _container(one) for one in mine},
                "slotStats": {
                    "typeStats": _stats(its_slots, "type"),
                    "brandStats": _stats(its_slots, "brand"),
                },
            }
        )
    return found


async def _seen_allocations(db: Database, user: Principal) -> Collection[str] | None:
    """The live allocations that the user sees; None: all."""
    what = seen_by(user)
    if what is None:
        return None
    with seeing(what):
        async with db.tx() as conn:
            return {row.id for row in await conn.execute(_LIVE)}


@router.get("/agents")
async def list_agents(
    user: ClusterReader,
    db: Db,
    settings: SettingsOf,
    offset: Offset = 0,
    limit: Limit = -1,
    excludeSlots: bool = False,
    excludeContainers: bool = False,
) -> dict[str, Any]:
    """Every agent, with its state, its slots and their work.

    `state`: `STATE_ALIVE`; `STATE_SILENT`: nothing is heard of it; `STATE_ENDED`: its process has said so.
    Those that are gone leave the list after a week, or when somebody removes them.
    """
    seen = await _seen_allocations(db, user)
    async with db.tx() as conn:
        found = await read_agents(conn, settings.agent_timeout_s, seen=seen)
    for agent in found:
        if excludeSlots:
            agent["slots"] = {}
        if excludeContainers:
            agent["containers"] = {}
    start, end = window(len(found), offset, limit)
    return {"agents": found[start:end], "pagination": pagination(len(found), offset, limit)}


@router.get("/agents/{agent_id}")
async def get_agent(
    agent_id: str, user: ClusterReader, db: Db, settings: SettingsOf
) -> dict[str, Any]:
    """One agent."""
    seen = await _seen_allocations(db, user)
    async with db.tx() as conn:
        found = await read_agents(conn, settings.agent_timeout_s, agent_id, seen)
    if not found:
        raise NotFound(f"agent {agent_id!r} does not exist")
    return {"agent": found[0]}


@router.get("/agents/{agent_id}/slots")
async def list_slots(
    agent_id: str, user: ClusterReader, db: Db, settings: SettingsOf
) -> dict[str, Any]:
    """One agent's slots."""
    found = await get_agent(agent_id, user, db, settings)
    return {"slots": list(found["agent"]["slots"].values())}


@router.get("/agents/{agent_id}/slots/{slot_id}")
async def get_slot(
    agent_id: str, slot_id: str, user: ClusterReader, db: Db, settings: SettingsOf
) -> dict[str, Any]:
    """One slot of an agent."""
    found = (await get_agent(agent_id, user, db, settings))["agent"]["slots"]
    if slot_id not in found:
        has = f"its slots are {', '.join(found)}" if found else "it has none"
        raise NotFound(f"agent {agent_id!r} has no slot {slot_id!r}: {has}")
    return {"slot": found[slot_id]}


class Disable(BaseModel):
    """``drain``: what runs there may finish."""

    drain: bool = False


@router.post("/agents/{agent_id}/enable")
async def enable_agent(
    agent_id: str, user: ClusterAdmin, db: Db, settings: SettingsOf
) -> dict[str, Any]:
    """Gives the agent work again."""
    await use_agent(db, agent_id, enabled=True)
    return await get_agent(agent_id, user, db, settings)


@router.post("/agents/{agent_id}/disable")
async def disable_agent(
    agent_id: str,
    user: ClusterAdmin,
    db: Db,
    settings: SettingsOf,
    given: Disable | None = None,
) -> dict[str, Any]:
    """Gives the agent no more work. What runs there starts again elsewhere, unless it may finish."""
    await use_agent(db, agent_id, enabled=False, drain=given is not None and given.drain)
    return await get_agent(agent_id, user, db, settings)


@router.post("/agents/{agent_id}/machines/{machine}/enable")
async def enable_machine(
    agent_id: str, machine: Name, user: ClusterAdmin, db: Db, settings: SettingsOf
) -> dict[str, Any]:
    """Gives one machine of an agent that stands for several work again."""
    await use_machine(db, agent_id, machine, enabled=True)
    return await get_agent(agent_id, user, db, settings)


@router.post("/agents/{agent_id}/machines/{machine}/disable")
async def disable_machine(
    agent_id: str,
    machine: Name,
    user: ClusterAdmin,
    db: Db,
    settings: SettingsOf,
    given: Disable | None = None,
) -> dict[str, Any]:
    """Gives one machine no more work. What runs there starts again elsewhere, unless it may finish."""
    drain = given is not None and given.drain
    await use_machine(db, agent_id, machine, enabled=False, drain=drain)
    return await get_agent(agent_id, user, db, settings)


@router.delete("/agents/{agent_id}")
async def delete_agent(
    agent_id: str, user: ClusterAdmin, db: Db, settings: SettingsOf
) -> dict[str, Any]:
    """Removes an agent that has ended or is silent. What it ran starts again elsewhere.

    409 for one that is alive. One that comes back registers anew, and is enabled.
    """
    await remove_agent(db, agent_id, settings.agent_timeout_s)
    return {}


@router.post("/agents/{agent_id}/slots/{slot_id}/enable")
async def enable_slot(
    agent_id: str, slot_id: SlotId, user: ClusterAdmin, db: Db, settings: SettingsOf
) -> dict[str, Any]:
    """Gives the slot work again."""
    await use_slot(db, agent_id, slot_id, enabled=True)
    return await _slot(agent_id, slot_id, user, db, settings)


@router.post("/agents/{agent_id}/slots/{slot_id}/disable")
async def disable_slot(
    agent_id: str,
    slot_id: SlotId,
    user: ClusterAdmin,
    db: Db,
    settings: SettingsOf,
    given: Disable | None = None,
) -> dict[str, Any]:
    """Gives the slot no more work. What it runs starts again elsewhere, unless it may finish."""
    drain = given is not None and given.drain
    await use_slot(db, agent_id, slot_id, enabled=False, drain=drain)
    return await _slot(agent_id, slot_id, user, db, settings)


async def _slot(
    agent_id: str, slot_id: int, user: ClusterAdmin, db: Db, settings: SettingsOf
) -> dict[str, Any]:
    found = await get_agent(agent_id, user, db, settings)
    return {"slot": found["agent"]["slots"][str(slot_id)]}
