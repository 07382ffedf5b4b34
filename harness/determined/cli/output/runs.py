"""The columns of a table of trial runs (legs)."""

from __future__ import annotations

from determined.cli.output import format as f
from determined.cli.output.render import Column

RUNS = (
    Column("Run", "runId"),
    Column("State", f.field("state", f.state)),
    Column("Agent", "agentId"),
    Column("Slots", "slotIds"),
    Column("Started", f.field("startTime", f.time)),
    Column("Ended", f.field("endTime", f.time)),
    Column("Exit Code", "exitCode"),
    Column("Reason", "reason"),
)
