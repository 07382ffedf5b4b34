"""``det job`` (``det j``)"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from determined.cli import completion
from determined.cli.arguments.options import (
    Csv,
    Json,
    Limit,
    Offset,
    Pages,
    PagesOption,
    Yaml,
    bound,
    chosen,
)
from determined.cli.errors import talk
from determined.cli.groups import group
from determined.cli.output import format as f
from determined.cli.output import render
from determined.cli.output.render import Column, Record
from determined.cli.printing import echo
from determined.cli.state import state

app = group(
    "The job queue: experiments and tasks that wait for slots or hold some.", default="list"
)

JobId = Annotated[
    str,
    typer.Argument(
        help="job ID, or the ID of its experiment or task",
        metavar="JOB",
        autocompletion=completion.experiments,
    ),
]
Pool = Annotated[
    str | None,
    typer.Option("-p", "--resource-pool", help="only this resource pool", metavar="NAME"),
]


def _ahead(record: Record) -> Any:
    summary = record.get("summary") or {}
    return summary.get("jobsAhead") if summary.get("state") == "STATE_QUEUED" else None


JOBS = (
    Column("#", _ahead),
    Column("ID", "jobId"),
    Column("Type", lambda record: (record.get("type") or "").removeprefix("TYPE_").lower()),
    Column("Job Name", lambda record: f"{record.get('name')} ({record.get('entityId')})"),
    Column("Resource Pool", "resourcePool", spare=6),
    Column("Priority", "priority", spare=5),
    Column("Weight", "weight", spare=9),
    Column("Submitted", f.field("submissionTime", f.time), spare=8),
    Column(
        "Slots (acquired/needed)",
        lambda record: f"{record.get('allocatedSlots')}/{record.get('requestedSlots')}",
    ),
    Column("State", lambda record: f.state((record.get("summary") or {}).get("state"))),
    Column("User", "username", spare=7),
)
WAITING = (
    Column("Trial ID", "trialId"),
    Column("Since", f.field("since", f.time)),
    Column("Slots", "slotsWanted"),
    Column("Reason", "reason"),
    Column("Forecast", "forecast"),
)


@app.command("list|ls")
def list_jobs(
    ctx: typer.Context,
    resource_pool: Pool = None,
    limit: Limit = 100,
    offset: Offset = 0,
    pages: PagesOption = Pages.ALL,
    reverse: Annotated[bool, typer.Option("--reverse", help="the last in line first")] = False,
    json: Json = False,
    yaml: Yaml = False,
    csv: Csv = False,
    table: Annotated[bool, typer.Option("--table", help="print a table: the default")] = False,
) -> None:
    """List the jobs of each resource pool: those with slots, then those that wait, in order of service.

    `#` is the number of jobs ahead.
    """
    if sum([json, yaml, csv, table]) > 1:
        raise typer.BadParameter("give one of --json, --yaml, --csv and --table")
    found = state(ctx).cluster.iter_jobs(
        resource_pool,
        reverse=reverse,
        offset=offset,
        max_results=bound(pages, limit),
        page_size=limit,
    )
    jobs = [job for job in found if job]
    if yaml:
        render.print_yaml({"jobs": jobs})
    else:
        render.show(JOBS, jobs, chosen(json, csv), document={"jobs": jobs}, what="jobs")
        higher = sorted({job["resourcePool"] for job in jobs if job.get("higherPriorityFirst")})
        if higher and not (json or csv):
            talk(
                f"on Kubernetes a higher priority is more important: resource pool {', '.join(higher)}"
            )


@app.command("update|u")
def update(
    ctx: typer.Context,
    job_id: JobId,
    priority: Annotated[
        int | None,
        typer.Option(
            "-p",
            "--priority",
            min=1,
            max=99,
            help="a lower number is more important; on Kubernetes a higher one",
            metavar="N",
        ),
    ] = None,
    weight: Annotated[
        float | None,
        typer.Option("-w", "--weight", min=0, help="weight of its fair share", metavar="X"),
    ] = None,
    resource_pool: Annotated[
        str | None,
        typer.Option("--resource-pool", help="the pool to move it to", metavar="NAME"),
    ] = None,
    ahead_of: Annotated[
        str | None, typer.Option("--ahead-of", help="the job to come before", metavar="JOB")
    ] = None,
    behind_of: Annotated[
        str | None, typer.Option("--behind-of", help="the job to come after", metavar="JOB")
    ] = None,
) -> None:
    """Change a job's priority, weight, resource pool or place in the queue. It holds at once.

    Trials that lose their slots by it save a checkpoint first, and go on from there later.
    """
    given = {
        "priority": priority,
        "weight": weight,
        "resourcePool": resource_pool,
        "aheadOf": ahead_of,
        "behindOf": behind_of,
    }
    changes = {name: value for name, value in given.items() if value is not None}
    if len(changes) != 1:
        raise typer.BadParameter(
            "give one of --priority, --weight, --resource-pool, --ahead-of and --behind-of"
        )
    _send(ctx, [{"jobId": job_id, **changes}])


_OPERATIONS = {
    "priority": "priority",
    "weight": "weight",
    "resource-pool": "resourcePool",
    "ahead-of": "aheadOf",
    "behind-of": "behindOf",
}


def _parsed(operation: str) -> dict[str, Any]:
    """``"7.priority=3"`` as an update. Raises a usage error."""
    job, dot, change = operation.partition(".")
    name, equals, value = change.partition("=")
    field = _OPERATIONS.get(name.replace("_", "-"))
    if not (job and dot and equals and value) or field is None:
        raise typer.BadParameter(
            f"{operation!r} is no operation: write JOB.NAME=VALUE, where NAME is one of "
            f"{', '.join(_OPERATIONS)}"
        )
    try:
        number: Any = {"priority": int, "weight": float}.get(field, str)(value)
    except ValueError:
        raise typer.BadParameter(f"{operation!r}: {value!r} is not a number") from None
    return {"jobId": job, field: number}


@app.command("update-batch")
def update_batch(
    ctx: typer.Context,
    operations: Annotated[
        list[str],
        typer.Argument(
            help="JOB.NAME=VALUE; NAME: priority, weight, resource-pool, ahead-of, behind-of",
            metavar="OPERATION",
        ),
    ],
) -> None:
    """Change several jobs, one after the other; the first that is refused ends the command."""
    _send(ctx, [_parsed(one) for one in operations])


def _send(ctx: typer.Context, updates: list[dict[str, Any]]) -> None:
    for remark in state(ctx).cluster.update_jobs(updates):
        talk(f"warning: {remark}")
    for one in updates:
        ((name, value),) = ((name, value) for name, value in one.items() if name != "jobId")
        talk(f"job {one['jobId']}: {_words(name, value)}")


def _words(name: str, value: Any) -> str:
    words = {
        "resourcePool": "moved to resource pool",
        "aheadOf": "moved ahead of job",
        "behindOf": "moved behind job",
    }
    return f"{words[name]} {value}" if name in words else f"{name} set to {value:g}"


@app.command("explain")
def explain(ctx: typer.Context, job_id: JobId, json: Json = False) -> None:
    """Say why each trial of a job waits, and what has to end before the first one starts.

    The forecast holds if nothing is submitted or changed meanwhile, and if what ends wants no slots again.
    """
    found = state(ctx).cluster.explain_job(job_id)
    if json:
        render.print_json(found)
        return
    render.show(JOBS, [found["job"]], chosen(json=False, csv=False))
    for sentence in found.get("fallback") or ():
        talk(f"experiment {found['job']['entityId']} {sentence}")
    if found["waiting"]:
        echo()
        render.show(WAITING, found["waiting"], chosen(json=False, csv=False), what="waiting trials")
    else:
        talk(
            "none of its trials waits for slots"
            if found["job"].get("type") == "TYPE_EXPERIMENT"
            else "it does not wait for slots"
        )
