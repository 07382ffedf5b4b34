"""``det trial`` (``det t``)"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from determined.cli import completion
from determined.cli.arguments.abbreviated import checkpoint_uuid
from determined.cli.arguments.confirmation import Yes, confirm
from determined.cli.arguments.ids import TrialIds, each, has_range, numbers
from determined.cli.arguments.options import (
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
from determined.cli.errors import talk
from determined.cli.experiment.lists import list_trials
from determined.cli.groups import group
from determined.cli.output import format as f
from determined.cli.output import log_lines, render
from determined.cli.output.downloads import SmallerIsBetter, SortBy, ranking, record, report
from determined.cli.output.render import Column, Record, Section
from determined.cli.output.runs import RUNS
from determined.cli.output.workloads import WORKLOADS
from determined.cli.printing import echo
from determined.cli.state import state
from determined.common.printable import counted

if TYPE_CHECKING:
    from determined.experimental import Trial

app = group("Trials: training runs with one set of hyperparameters each.")

TrialId = Annotated[
    int, typer.Argument(help="trial ID", metavar="ID", autocompletion=completion.trials)
]


def _reference(ctx: typer.Context, trial_id: int) -> Trial:
    """The SDK's object for a trial, without a request to the service."""
    from determined.experimental import Trial

    return Trial(trial_id, state(ctx).session)


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


app.command("list|ls")(list_trials)


@app.command("describe")
def describe(
    ctx: typer.Context,
    trial_id: TrialId,
    metrics_summary: Annotated[
        bool,
        typer.Option("--metrics-summary", help="show one line per metric instead of every report"),
    ] = False,
    metrics: Annotated[
        bool, typer.Option("--metrics", help="also show the metrics of single batches")
    ] = False,
    limit: Limit = 1000,
    offset: Offset = 0,
    pages: PagesOption = Pages.ALL,
    json: Json = False,
    csv: Csv = False,
) -> None:
    """Show a trial and its reports."""
    fmt = chosen(json, csv)
    trial = state(ctx).client.get_trial(trial_id)
    document = trial.document
    sections = [
        Section("Trial", DETAILS, [document]),
        Section("Runs", RUNS, document.get("legs") or []),
    ]
    if metrics_summary:
        sections.append(Section("Metrics", SUMMARY, _summary(document)))
    else:
        workloads = list(
            trial.iter_workloads(
                batch_metrics=metrics,
                offset=offset,
                max_results=bound(pages, limit),
                page_size=limit,
            )
        )
        document = {**document, "workloads": workloads}
        sections.append(Section("Workloads", WORKLOADS, workloads))
    render.show_sections(sections, fmt, document=document)


@app.command("logs")
@log_lines.options()
def logs(ctx: typer.Context, trial_id: TrialId, chosen: log_lines.ChosenLines) -> None:
    """Print a trial's logs."""
    log_lines.show(_reference(ctx, trial_id).iter_log_batches, chosen)


@app.command("kill")
def kill(ctx: typer.Context, trial_ids: TrialIds, yes: Yes = False) -> None:
    """Kill trials at once; their searches continue."""
    ids = numbers(trial_ids)
    if has_range(trial_ids):
        confirm(f"Kill {counted(len(ids), 'trial')} ({' '.join(trial_ids)})?", yes)

    def kill_one(trial_id: int) -> str:
        trial = state(ctx).client.get_trial(trial_id)
        if trial.state is not None and trial.state.terminal:
            return f"trial {trial_id} had ended already ({trial.state}); nothing was done"
        trial.kill()
        return f"killed trial {trial_id}"

    each(ids, kill_one)


@app.command("download")
def download(
    ctx: typer.Context,
    trial_id: TrialId,
    best: Annotated[
        bool, typer.Option("--best", help="the checkpoint with the best validation metric")
    ] = False,
    latest: Annotated[
        bool, typer.Option("--latest", help="the checkpoint with the most steps")
    ] = False,
    uuid: Annotated[
        str | None,
        typer.Option("--uuid", help="the checkpoint with this UUID, or this beginning of one"),
    ] = None,
    output_dir: OutputDir = None,
    sort_by: SortBy = None,
    smaller_is_better: SmallerIsBetter = None,
    quiet: Quiet = False,
) -> None:
    """Download one of a trial's checkpoints."""
    if sum([best, latest, uuid is not None]) != 1:
        raise typer.BadParameter("give exactly one of --best, --latest and --uuid")
    metric, smaller = ranking(sort_by, smaller_is_better)
    if metric is not None and not best:
        raise typer.BadParameter("--sort-by needs --best")
    trial = state(ctx).client.get_trial(trial_id)
    if uuid is not None:
        uuid = checkpoint_uuid(state(ctx), uuid)
    checkpoint = trial.select_checkpoint(latest, best, uuid, metric, smaller)
    target = output_dir if output_dir is not None else Path("checkpoints") / checkpoint.uuid
    report([record(checkpoint, checkpoint.download(str(target)))], quiet)


@app.command("dump")
def dump(
    ctx: typer.Context,
    trial_id: TrialId,
    node: Annotated[
        int | None, typer.Option("--node", help="only this machine of a gang", min=0)
    ] = None,
) -> None:
    """Print where each Python process of a trial is at this moment: its stacks, on all of its machines.

    By py-spy where that is installed; else processes that use the Core API tell it themselves.
    """
    from determined.cli.entering import stacks
    from determined.cli.launched import follow

    follow.exit_as(stacks.dump(state(ctx).session, str(trial_id), node))


@app.command("support-bundle")
def support_bundle(ctx: typer.Context, trial_id: TrialId, output_dir: OutputDir = None) -> None:
    """Write a file with all that is known about a trial, to attach to a bug report.

    It contains the trial's logs, metrics and reasons, and the cluster's health. The secrets of the
    configuration are masked in all of it, and what looks like a secret; others, which the training
    prints, are not. Only you may read the file.
    """
    from determined.cli.doctor import bundle

    file, missing = bundle.write(state(ctx), trial_id, output_dir or Path())
    for part, why in missing.items():
        talk(f"warning: {part} is missing: {why}")
    echo(str(file))
