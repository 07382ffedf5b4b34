"""A trial's workloads: its training reports, validations and checkpoints."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from determined.cli.output import format as f
from determined.cli.output.render import Column, Record
from determined.common.api import pages
from determined.common.api.session import Session


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


def read_workloads(
    session: Session,
    trial_id: int,
    *,
    full: bool = False,
    offset: int = 0,
    limit: int | None = None,
    page_size: int = 1000,
) -> Iterator[dict[str, Any]]:
    """One record per workload: ``kind`` (training, validation or checkpoint) and the REST API's
    fields. ``full`` includes the metrics of single batches."""
    found = pages.read(
        session,
        f"/api/v1/trials/{trial_id}/workloads",
        "workloads",
        {"includeBatchMetrics": True if full else None},
        offset=offset,
        limit=limit,
        page_size=page_size,
    )
    for item in found:
        for kind in ("training", "validation", "checkpoint"):
            if item.get(kind):
                yield {"kind": kind, **item[kind]}
