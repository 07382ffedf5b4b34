"""``det slot`` (``det s``)"""

from __future__ import annotations

from typing import Any

import typer

from determined.cli.arguments.options import Csv, Json, chosen
from determined.cli.groups import group
from determined.cli.output import render
from determined.cli.output.render import Column
from determined.cli.state import state

app = group("The GPUs or CPU cores of the agents.", default="list")

SLOTS = (
    Column("Agent ID", "agent_id"),
    Column("Resource Pool", "resource_pool"),
    Column("Slot ID", "slot_id"),
    Column("Enabled", "enabled"),
    Column("Draining", "draining"),
    Column("Allocation ID", "allocation_id"),
    Column("Type", "type"),
    Column("Device", "device"),
)


def _record(agent: dict[str, Any], slot: dict[str, Any]) -> dict[str, Any]:
    container, device = slot.get("container") or {}, slot.get("device") or {}
    return {
        "agent_id": agent["id"],
        "resource_pool": ", ".join(agent.get("resourcePools") or ()),
        "slot_id": slot["id"],
        "enabled": slot.get("enabled"),
        "draining": slot.get("draining"),
        "allocation_id": (container.get("parent") or container.get("id")) or "FREE",
        "type": (device.get("type") or "").removeprefix("TYPE_").lower(),
        "device": device.get("brand"),
    }


@app.command("list|ls")
def list_slots(ctx: typer.Context, json: Json = False, csv: Csv = False) -> None:
    """List every slot of every agent, and the allocation that uses it."""
    from determined.common.api import pages

    found = pages.read(state(ctx).session, "/api/v1/agents", "agents")
    records = [
        _record(agent, slot)
        for agent in found
        for slot in sorted((agent.get("slots") or {}).values(), key=lambda slot: int(slot["id"]))
    ]
    render.show(SLOTS, records, chosen(json, csv), what="slots")
