"""``det e list``, ``list-trials``, ``list-checkpoints``"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from determined.cli.arguments.options import (
    Csv,
    Json,
    Limit,
    Offset,
    Pages,
    PagesOption,
    bound,
    chosen,
)
from determined.cli.arguments.places import ProjectName, WithinWorkspace, project_id
from determined.cli.experiment.paths import ExperimentId, reference
from determined.cli.output import format as f
from determined.cli.output import render
from determined.cli.output.render import Column, Record
from determined.cli.state import state

EXPERIMENTS = (
    Column("ID", "id"),
    Column("Owner", "username", spare=6),
    Column("Name", "name"),
    Column("Parent ID", "forkedFrom", spare=9),
    Column("State", f.field("state", f.state)),
    Column("Progress", f.field("progress", f.percent), spare=1),
    Column("Started", f.field("startTime", f.time), spare=4),
    Column("Ended", f.field("endTime", f.time), spare=5),
    Column("Trials", "numTrials", spare=2),
    # An unmanaged experiment runs outside of the cluster.
    Column(
        "Resource Pool",
        lambda r: "unmanaged" if r.get("unmanaged") else r.get("resourcePool"),
        spare=7,
    ),
)
PROJECTS = (
    Column("Workspace", "workspaceName", spare=8),
    Column("Project", "projectName", spare=7),
)
ARCHIVED = (Column("Archived", "archived"),)

TRIALS = (
    Column("Trial ID", "id"),
    Column("State", f.field("state", f.state)),
    Column("H-Params", "hparams", spare=2),
    Column("Metric", "searcherMetricValue"),
    Column("Total Batches", "totalBatchesProcessed"),
    Column("Restarts", "restarts", spare=7),
    Column("Reason", "reason", spare=3),
    Column("Started", f.field("startTime", f.time), spare=4),
    Column("Ended", f.field("endTime", f.time), spare=5),
)


def _training(record: Record) -> Record:
    return record.get("training") or {}


def _validation(record: Record) -> Any:
    return (_training(record).get("validationMetrics") or {}).get("avgMetrics") or None


def _stored_bytes(record: Record) -> int:
    """Resources of a deleted checkpoint say which files it had."""
    if f.state(record.get("state")) == "DELETED":
        return 0
    return sum(int(size) for size in (record.get("resources") or {}).values())


CHECKPOINTS = (
    Column("Trial ID", lambda r: _training(r).get("trialId")),
    Column("Total Batches", lambda r: (r.get("metadata") or {}).get("steps_completed")),
    Column("State", f.field("state", f.state), spare=3),
    Column("Searcher Metric", lambda r: _training(r).get("searcherMetric")),
    Column("Validation Metrics", _validation, spare=6),
    Column("UUID", "uuid"),
    Column("Size", lambda r: f.size(_stored_bytes(r)), spare=4),
    Column("Reported", f.field("reportTime", f.time), spare=5),
)


def list_experiments(
    ctx: typer.Context,
    all_: Annotated[
        bool,
        typer.Option("--all", "-a", help="also list archived experiments and those of other users"),
    ] = False,
    labels: Annotated[
        list[str] | None,
        typer.Option(
            "--label", help="only with this label; given twice: with both", metavar="LABEL"
        ),
    ] = None,
    query: Annotated[
        str | None,
        typer.Option(
            "--query",
            help="only those for which all terms hold, e.g. 'resnet -state:error lr<0.01 metric<=0.1'",
            metavar="TERMS",
        ),
    ] = None,
    show_project: Annotated[
        bool, typer.Option("--show_project", help="also show workspace and project")
    ] = False,
    workspace_name: WithinWorkspace = None,
    project_name: ProjectName = None,
    limit: Limit = 200,
    offset: Offset = 0,
    pages: PagesOption = Pages.ALL,
    json: Json = False,
    csv: Csv = False,
) -> None:
    """List your experiments: of all projects, or of one."""
    shared = state(ctx)
    within = project_id(shared, workspace_name, project_name)
    found = shared.experiments.iter_experiments(
        labels=labels,
        users=None if all_ else [shared.username],
        archived=None if all_ else False,
        query=query,
        project_id=within,
        offset=offset,
        max_results=bound(pages, limit),
        page_size=limit,
    )
    columns = [*EXPERIMENTS, *(PROJECTS if show_project else ()), *(ARCHIVED if all_ else ())]
    render.show(columns, found, chosen(json, csv), what="experiments")


def list_trials(
    ctx: typer.Context,
    experiment_id: ExperimentId,
    limit: Limit = 200,
    offset: Offset = 0,
    pages: PagesOption = Pages.ALL,
    json: Json = False,
    csv: Csv = False,
) -> None:
    """List the trials of an experiment."""
    found = reference(ctx, experiment_id).iter_trials(
        limit=limit, offset=offset, max_results=bound(pages, limit)
    )
    render.show(TRIALS, found, chosen(json, csv), what="trials")


def list_checkpoints(
    ctx: typer.Context,
    experiment_id: ExperimentId,
    best: Annotated[
        int | None,
        typer.Option(
            "--best",
            min=1,
            metavar="N",
            help="only the N best checkpoints that have a validation metric",
        ),
    ] = None,
    json: Json = False,
    csv: Csv = False,
) -> None:
    """List the checkpoints of an experiment, best first."""
    from determined.experimental._enums import CheckpointState, OrderBy

    experiment = reference(ctx, experiment_id)
    searcher = experiment.get_config().get("searcher") or {}
    smaller = searcher.get("smaller_is_better", True)
    found = experiment.list_checkpoints(
        order_by=OrderBy.ASC if smaller else OrderBy.DESC,
        max_results=best,
        states=[CheckpointState.COMPLETED] if best else None,
    )
    if best:
        found = [one for one in found if _training(one.document).get("searcherMetric") is not None]
    render.show(CHECKPOINTS, found, chosen(json, csv), what="checkpoints")


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    app.command("list|ls")(list_experiments)
    app.command("list-trials|lt")(list_trials)
    app.command("list-checkpoints|lc")(list_checkpoints)
