"""``det trial`` (``det t``)"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from determined.cli import _format as f
from determined.cli import _logs, _render
from determined.cli._checkpoints import SmallerIsBetter, SortBy, ranking, record, report
from determined.cli._errors import talk
from determined.cli._groups import group
from determined.cli._many import TrialIds, each, numbers
from determined.cli._options import (
    Csv,
    Json,
    Limit,
    Offset,
    OutputDir,
    Pages,
    PagesOption,
    Quiet,
    bound,
    chosen,
)
from determined.cli._render import Column, Record, Section
from determined.cli._runs import RUNS
from determined.cli._state import state
from determined.cli._workloads import WORKLOADS, read_workloads

app = group("One set of hyperparameters, trained.")

TrialId = Annotated[int, typer.Argument(help="trial ID", metavar="ID")]

DETAILS = (
    Column("ID", "id"),
    Column("Experiment ID", "experimentId"),
    Column("State", f.field("state", f.state)),
    Column("Started", f.field("startTime", f.time)),
    Column("Ended", f.field("endTime", f.time)),
    Column("H-Params", "hparams"),
    Column("Restarts", "restarts"),
    Column("Total Batches", "totalBatchesProcessed"),
    Column("Searcher Metric", "searcherMetricValue"),
    Column("Reason", "reason"),
)

SUMMARY = tuple(
    Column(title, title.lower())
    for title in ("Group", "Metric", "Type", "Count", "Min", "Max", "Mean", "Last")
)


def _summary(document: dict[str, Any]) -> list[Record]:
    """One record per metric."""
    records: list[Record] = []
    for group_name, metrics in sorted((document.get("summaryMetrics") or {}).items()):
        for name, values in sorted(metrics.items()):
            records.append({"group": group_name, "metric": name, **values})
    return records


@app.command("describe")
def describe(
    ctx: typer.Context,
    trial_id: TrialId,
    metrics_summary: Annotated[
        bool, typer.Option("--metrics-summary", help="a line per metric instead of every report")
    ] = False,
    metrics: Annotated[
        bool, typer.Option("--metrics", help="metrics of single batches too")
    ] = False,
    limit: Limit = 1000,
    offset: Offset = 0,
    pages: PagesOption = Pages.ALL,
    json: Json = False,
    csv: Csv = False,
) -> None:
    """A trial with what it reported."""
    fmt = chosen(json, csv)
    session = state(ctx).session
    document = session.get(f"/api/v1/trials/{trial_id}")["trial"]
    sections = [
        Section("Trial", DETAILS, [document]),
        Section("Runs", RUNS, document.get("legs") or []),
    ]
    if metrics_summary:
        sections.append(Section("Metrics", SUMMARY, _summary(document)))
    else:
        workloads = list(
            read_workloads(
                session,
                trial_id,
                full=metrics,
                offset=offset,
                limit=bound(pages, limit),
                page_size=limit,
            )
        )
        document = {**document, "workloads": workloads}
        sections.append(Section("Workloads", WORKLOADS, workloads))
    _render.show_sections(sections, fmt, document=document)


@app.command("logs")
def logs(
    ctx: typer.Context,
    trial_id: TrialId,
    follow: _logs.Follow = False,
    json: _logs.JsonLines = False,
    head: _logs.Head = None,
    tail: _logs.Tail = None,
    agent_id: _logs.AgentIds = None,
    container_id: _logs.ContainerIds = None,
    rank_id: _logs.RankIds = None,
    timestamp_before: _logs.Before = None,
    timestamp_after: _logs.After = None,
    level: _logs.Level = None,
    source: _logs.Sources = None,
    stdtype: _logs.Stdtypes = None,
) -> None:
    """What it printed."""
    from determined.experimental import _logs as sdk

    filters = _logs.filters(
        follow,
        head,
        tail,
        agent_id,
        container_id,
        rank_id,
        timestamp_before,
        timestamp_after,
        level,
        source,
        stdtype,
    )
    _logs.show(sdk.iter_entries(state(ctx).session, trial_id, **filters), json)


@app.command("kill")
def kill(ctx: typer.Context, trial_ids: TrialIds) -> None:
    """End it at once; its search goes on."""
    from determined.experimental import Trial

    def kill_one(trial_id: int) -> str:
        Trial(trial_id, state(ctx).session).kill()
        return f"killed trial {trial_id}"

    each(numbers(trial_ids), kill_one)


@app.command("download")
def download(
    ctx: typer.Context,
    trial_id: TrialId,
    best: Annotated[bool, typer.Option("--best", help="by its validation metric")] = False,
    latest: Annotated[bool, typer.Option("--latest", help="the one with most steps")] = False,
    uuid: Annotated[str | None, typer.Option("--uuid", help="this one")] = None,
    output_dir: OutputDir = None,
    sort_by: SortBy = None,
    smaller_is_better: SmallerIsBetter = None,
    quiet: Quiet = False,
) -> None:
    """Download one of its checkpoints."""
    if sum([best, latest, uuid is not None]) != 1:
        raise typer.BadParameter("one of --best, --latest and --uuid must be given")
    metric, smaller = ranking(sort_by, smaller_is_better)
    if metric is not None and not best:
        raise typer.BadParameter("--sort-by goes with --best only")
    trial = state(ctx).client.get_trial(trial_id)
    checkpoint = trial.select_checkpoint(latest, best, uuid, metric, smaller)
    target = output_dir if output_dir is not None else Path("checkpoints") / checkpoint.uuid
    report([record(checkpoint, checkpoint.download(str(target)))], quiet)


@app.command("support-bundle")
def support_bundle(ctx: typer.Context, trial_id: TrialId, output_dir: OutputDir = None) -> None:
    """Write all that is known about it into one file for who helps: logs, metrics, reasons, health.

    Secrets of the configuration are masked; what the trial printed is not.
    """
    from determined.cli import _bundle

    file, missing = _bundle.write(state(ctx), trial_id, output_dir or Path())
    for part, why in missing.items():
        talk(f"warning: {part} is missing: {why}")
    typer.echo(str(file))
