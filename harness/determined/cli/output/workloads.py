"""A trial's workloads: its training reports, validations and checkpoints."""

from __future__ import annotations

from typing import Any

from determined.cli.output import format as f
from determined.cli.output.render import Column, Record


def _metrics(record: Record) -> Any:
    return (record.get("metrics") or {}).get("avgMetrics")


WORKLOADS = (
    Column("Total Batches", "totalBatches"),
    Column("Kind", "kind"),
    Column("Ended", f.field("endTime", f.time), spare=5),
    Column("Metrics", _metrics),
    Column("Checkpoint", "uuid"),
    Column("State", f.field("state", f.state), spare=4),
)
