"""The columns of a table of trial runs (legs)."""

from __future__ import annotations

from determined.cli.output import format as f
from determined.cli.output.render import Column, Record


def _agents(run: Record) -> str | None:
    nodes = run.get("nodes") or ()
    return ", ".join(one["agentId"] for one in nodes) or run.get("agentId")


def _slots(run: Record) -> object:
    nodes = run.get("nodes") or ()
    return [one["slotIds"] for one in nodes] or run.get("slotIds")


RUNS = (
    Column("Run", "runId"),
    Column("State", f.field("state", f.state)),
    Column("Agent", _agents),
    Column("Slots", _slots),
    Column("Started", f.field("startTime", f.time)),
    Column("Ended", f.field("endTime", f.time)),
    Column("Exit Code", "exitCode"),
    Column("Reason", "reason"),
)
