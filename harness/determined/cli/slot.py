"""``det slot`` (``det s``)"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from determined.cli.agent import AgentId, Drain, reference
from determined.cli.arguments.options import Csv, Json, chosen
from determined.cli.groups import group
from determined.cli.output import render
from determined.cli.output.render import Column
from determined.cli.printing import talk
from determined.cli.state import state

app = group("The GPUs or CPU cores of the agents.", default="list")

SLOTS = (
    Column("Agent ID", "agent_id"),
    Column("Agent State", "agent_state"),
    Column("Resource Pool", "resource_pool", spare=7),
    Column("Machine", "machine", spare=5),
    Column("Slot ID", "slot_id"),
    Column("Enabled", "enabled", spare=8),
    Column("Draining", "draining", spare=9),
    Column("Allocation ID", "allocation_id"),
    Column("Type", "type", spare=6),
    Column("Device", "device"),
)


def _record(agent: dict[str, Any], slot: dict[str, Any]) -> dict[str, Any]:
    container, device = slot.get("container") or {}, slot.get("device") or {}
    return {
        "agent_id": agent["id"],
        "agent_state": (agent.get("state") or "").removeprefix("STATE_"),
        "resource_pool": ", ".join(agent.get("resourcePools") or ()),
        "machine": slot.get("machine"),
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
    agents = [agent.document for agent in state(ctx).cluster.list_agents()]
    records = [
        _record(agent, slot)
        for agent in agents
        for slot in sorted((agent.get("slots") or {}).values(), key=lambda slot: int(slot["id"]))
    ]
    render.show(SLOTS, records, chosen(json, csv), what="slots")


SlotId = Annotated[int, typer.Argument(metavar="SLOT_ID", min=0)]


@app.command("enable")
def enable(ctx: typer.Context, agent_id: AgentId, slot_id: SlotId) -> None:
    """Give the slot work again."""
    reference(ctx, agent_id).enable_slot(slot_id)
    talk(f"slot {slot_id} of agent {agent_id} is enabled")


@app.command("disable")
def disable(ctx: typer.Context, agent_id: AgentId, slot_id: SlotId, drain: Drain = False) -> None:
    """Give the slot no more work; what it runs starts again elsewhere, unless --drain."""
    reference(ctx, agent_id).disable_slot(slot_id, drain)
    talk(f"slot {slot_id} of agent {agent_id} is disabled")
