"""The columns of a table of trial runs (legs)."""

from __future__ import annotations

from determined.cli.output import format as f
from determined.cli.output.render import Column, Record


def _agents(run: Record) -> str | None:
    """AGENT, or AGENT/MACHINE where the agent's cluster chose a machine."""
    return ", ".join(_place(one) for one in run.get("nodes") or ()) or _place(run) or None


def _place(one: Record) -> str:
    return "/".join(part for part in (one.get("agentId"), one.get("machine")) if part)


def _slots(run: Record) -> object:
    nodes = run.get("nodes") or ()
    return [one["slotIds"] for one in nodes] or run.get("slotIds")


RUNS = (
    Column("Run", "runId"),
    Column("State", f.field("state", f.state)),
    Column("Agent", _agents, spare=2),
    Column("Slots", _slots, spare=6),
    Column("Started", f.field("startTime", f.time), spare=3),
    Column("Ended", f.field("endTime", f.time), spare=4),
    Column("Exit Code", "exitCode", spare=5),
    Column("Reason", "reason"),
)
