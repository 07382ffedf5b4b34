"""``det agent`` (``det a``)"""

from __future__ import annotations

import typer

from determined.cli.arguments.options import Csv, Json, chosen
from determined.cli.groups import group
from determined.cli.output import format as f
from determined.cli.output import render
from determined.cli.output.render import Column, Record
from determined.cli.state import state

app = group("Agents: the machines that run trials.", default="list")


def _slots(record: Record) -> str:
    slots = list((record.get("slots") or {}).values())
    used = sum(1 for slot in slots if slot.get("container"))
    return f"{used}/{len(slots)}"


AGENTS = (
    Column("Agent ID", "id"),
    Column("Version", "version"),
    Column("Registered", f.field("registeredTime", f.time)),
    Column("Slots Used", _slots),
    Column("Resource Pool", lambda record: ", ".join(record.get("resourcePools") or ())),
    Column("Enabled", "enabled"),
    Column("Draining", "draining"),
    Column("Addresses", lambda record: ", ".join(record.get("addresses") or ())),
)


@app.command("list|ls")
def list_agents(ctx: typer.Context, json: Json = False, csv: Csv = False) -> None:
    """List the agents."""
    from determined.common.api import pages

    found = pages.read(state(ctx).session, "/api/v1/agents", "agents")
    render.show(AGENTS, found, chosen(json, csv), what="agents")
