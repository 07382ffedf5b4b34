"""``det agent`` (``det a``)"""

from __future__ import annotations

import typer

from determined.cli import _format as f
from determined.cli import _render
from determined.cli._groups import group
from determined.cli._options import Csv, Json, chosen
from determined.cli._render import Column, Record
from determined.cli._state import state

app = group("The machines that train.", default="list")


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
    """All agents."""
    from determined.common.api import pages

    found = pages.read(state(ctx).session, "/api/v1/agents", "agents")
    _render.show(AGENTS, found, chosen(json, csv))
