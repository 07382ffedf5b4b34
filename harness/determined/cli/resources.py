"""``det resources`` (``det res``)"""

from __future__ import annotations

from typing import Annotated

import typer

from determined.cli import printing
from determined.cli.arguments.options import Json
from determined.cli.groups import group
from determined.cli.output import render
from determined.cli.state import state

app = group("Accounting: who used which slots, when. CSV, unless --json is given.")

After = Annotated[
    str,
    typer.Argument(help="begin: a time (2026-01-31T00:00:00Z) or a date, UTC", metavar="AFTER"),
]
Before = Annotated[
    str, typer.Argument(help="end, at most 366 days later: a time or a date, UTC", metavar="BEFORE")
]
First = Annotated[
    str,
    typer.Argument(help="first day (2026-01-31), or month (2026-01), UTC", metavar="START_DATE"),
]
Last = Annotated[
    str, typer.Argument(help="last day or month, which is included", metavar="END_DATE")
]
Monthly = Annotated[bool, typer.Option("--monthly", help="sum by month, not by day")]


def _print(
    ctx: typer.Context, json: bool, document: str, table: str, params: dict[str, str]
) -> None:
    cluster = state(ctx).cluster
    if json:
        render.print_json(cluster.accounting(document, params))
        return
    for text in cluster.accounting_csv(table, params):
        printing.write(printing.plain(text))


@app.command("raw")
def raw(ctx: typer.Context, after: After, before: Before, json: Json = False) -> None:
    """List the allocations that used slots between two times. Seconds are those between the two times."""
    times = {"timestamp_after": after, "timestamp_before": before}
    _print(ctx, json, "raw", "raw", times)


@app.command("aggregated|agg")
def aggregated(
    ctx: typer.Context, first: First, last: Last, monthly: Monthly = False, json: Json = False
) -> None:
    """Sum the seconds of slots by day: in total, by user, label, resource pool and agent."""
    period = f"RESOURCE_ALLOCATION_AGGREGATION_PERIOD_{'MONTHLY' if monthly else 'DAILY'}"
    days = {"start_date": first, "end_date": last, "period": period}
    _print(ctx, json, "aggregated", "aggregated", days)


@app.command("allocations|alloc")
def allocations(ctx: typer.Context, after: After, before: Before, json: Json = False) -> None:
    """List the same allocations as `raw`, with their ids and hours of slots."""
    times = {"timestamp_after": after, "timestamp_before": before}
    _print(ctx, json, "raw", "allocations-csv", times)
