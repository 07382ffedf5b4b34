"""``det retrain``: models that are trained again, and promoted only when they are better."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from determined.cli import completion
from determined.cli.arguments.options import Csv, Json, chosen
from determined.cli.errors import CliError, talk
from determined.cli.groups import group
from determined.cli.model import reference as model_reference
from determined.cli.output import format as f
from determined.cli.output import render
from determined.cli.output.render import Column, Format, Record
from determined.cli.state import state
from determined.common.printable import counted

if TYPE_CHECKING:
    from determined.experimental._retraining import Retraining

app = group(
    "Models that are trained again, and promoted only when they are better.", default="list"
)

Model = Annotated[
    str, typer.Argument(help="the model's name or id", autocompletion=completion.models)
]

RETRAININGS = (
    Column("Model", "model"),
    Column("Owner", "username", spare=9),
    Column("Schedule", lambda r: _schedule(r["plan"].get("schedule")), spare=4),
    Column("On", lambda r: _events(r["plan"].get("on")), spare=7),
    Column("Paused", "paused", spare=6),
    Column("Next", f.field("nextTime", f.time), spare=5),
    Column("Last Run", lambda r: (r.get("lastRun") or {}).get("id")),
    Column("State", lambda r: (r.get("lastRun") or {}).get("state")),
    Column("Reason", lambda r: (r.get("lastRun") or {}).get("reason")),
)
RUNS = (
    Column("Run", "id"),
    Column("Started", f.field("startTime", f.time), spare=2),
    Column("Ended", f.field("endTime", f.time), spare=9),
    Column("Cause", "cause", spare=5),
    Column("State", "state"),
    Column("Failed At", "failedStep", spare=6),
    Column("Version", "version"),
    Column("Champion", "championVersion", spare=4),
    Column("Experiment", "trainingExperimentId", spare=3),
    Column("Reason", "reason"),
)


def _schedule(given: Record | None) -> str | None:
    found = {name: value for name, value in (given or {}).items() if value is not None}
    return ", ".join(f"{name} {value}" for name, value in found.items()) or None


def _events(given: list[Record] | None) -> str | None:
    """Such as ``champion of base; best of experiment 12``."""
    found = [
        say(event)
        for trigger in given or ()
        for kind, say in _EVENTS.items()
        if (event := trigger.get(kind)) is not None
    ]
    return "; ".join(found) or None


def _live_metric(event: Record) -> str:
    bounds = [f"{name} {event[name]}" for name in ("below", "above") if event.get(name) is not None]
    mean = f" (mean of {event['last']})" if event["last"] > 1 else ""
    return f"{event['metric']} {' or '.join(bounds)}{mean}"


def _ended_experiment(event: Record) -> str:
    if event.get("id") is not None:
        return f"{'best' if event.get('best') else 'end'} of experiment {event['id']}"
    field = "label" if event.get("label") is not None else "name"
    return f"end of an experiment with the {field} {event[field]}"


_EVENTS: dict[str, Callable[[Record], str]] = {
    "new_data": lambda event: f"new data (every {event['every_s']:g} s)",
    "live_metric": _live_metric,
    "alias": lambda event: f"{event['alias']} of {event['model']}",
    "experiment": _ended_experiment,
}


def _reference(ctx: typer.Context, model: str) -> Retraining:
    """The SDK's object for a model's retraining, without a request to the service."""
    from determined.experimental._retraining import Retraining

    return Retraining(state(ctx).session, model)


@app.command("create")
def create(
    ctx: typer.Context,
    plan_file: Annotated[
        Path,
        typer.Argument(
            help="the plan: model, experiment, evaluate, rule, schedule", metavar="PLAN.yaml"
        ),
    ],
    model_dir: Annotated[
        Path | None, typer.Argument(help="the directory with the code of training and evaluation")
    ] = None,
    cron: Annotated[
        str | None, typer.Option("--cron", help="instead of the plan's schedule", metavar="CRON")
    ] = None,
    interval: Annotated[
        float | None,
        typer.Option("--interval", help="seconds, instead of the plan's schedule", metavar="S"),
    ] = None,
    approve: Annotated[
        bool, typer.Option("--approve", help="a person must approve each promotion")
    ] = False,
    json: Json = False,
) -> None:
    """Have a model trained again; a plan that there is already is replaced, its history stays."""
    from determined.common.api.errors import NotFoundException

    plan, model, config = _read(plan_file)
    if cron is not None or interval is not None:
        plan["schedule"] = {"cron": cron} if cron is not None else {"interval_s": interval}
    if approve:
        plan["approval"] = True
    submission = _planned(config, model_dir)
    client = state(ctx).client
    try:
        client.get_model(model)
    except NotFoundException:
        client.create_model(model)
    made = client.send_retraining(model, plan, submission)
    for warning in made.warnings:
        talk(f"warning: {warning}")
    fmt = chosen(json, csv=False)
    document = {"retraining": made.document, "remarks": made.warnings}
    render.show(RETRAININGS, [made], fmt, document=document)
    if fmt is Format.TABLE:
        talk(f"train it now: det retrain run {model}")


def _planned(config: Any, model_dir: Path | None) -> Any:
    from determined.experimental import _submission

    return _submission.plan(config, model_dir)


def _read(file: Path) -> tuple[dict[str, Any], str, Any]:
    """The plan, the model's name, and the experiment configuration (a path or a mapping)."""
    from determined import expconf

    plan = dict(expconf.read_yaml(file).data)
    model, config = plan.pop("model", None), plan.pop("experiment", None)
    if not isinstance(model, str):
        raise CliError(f"{file}: model: give the name of the model that is trained again")
    if isinstance(config, str):
        return plan, model, file.parent / config
    if not isinstance(config, dict):
        raise CliError(
            f"{file}: experiment: give an experiment configuration, or the path of one beside {file.name}"
        )
    return plan, model, config


@app.command("list|ls")
def list_retrainings(ctx: typer.Context, json: Json = False, csv: Csv = False) -> None:
    """List the models that are trained again."""
    render.show(
        RETRAININGS, state(ctx).client.list_retrainings(), chosen(json, csv), what="retrainings"
    )


@app.command("run")
def run(
    ctx: typer.Context,
    model: Model,
    force: Annotated[
        bool, typer.Option("--force", help="train although the data has not changed")
    ] = False,
    detach: Annotated[bool, typer.Option("--detach", help="do not wait for the end")] = False,
) -> None:
    """Train the model again now; print what becomes of it."""
    made = _reference(ctx, model).run(force=force)
    talk(f"retraining run {made} of {model}")
    if not detach:
        _follow(ctx, model, made)


def _follow(ctx: typer.Context, model: str, run_id: int) -> None:
    import time

    from determined.common.api.patience import patiently

    retraining = _reference(ctx, model)
    seen = None
    while True:
        listed = patiently(lambda: list(retraining.iter_runs(limit=20)))
        now = next(one for one in listed if one.id == run_id)
        if now.state != seen:
            seen = now.state
            talk(f"run {run_id}: {seen}")
        if now.end_time or seen == "WAITING_FOR_APPROVAL":
            break
        time.sleep(1.0)
    talk(f"run {run_id}: {now.reason}")
    if seen == "WAITING_FOR_APPROVAL":
        talk(f"approve it: det retrain approve {model}")
    if seen in ("FAILED", "CANCELED"):
        raise typer.Exit(1)


@app.command("history")
def history(ctx: typer.Context, model: Model, json: Json = False, csv: Csv = False) -> None:
    """Show each time that the model was trained again or rolled back, and why it was promoted or not."""
    found = [one.document for one in _reference(ctx, model).iter_runs()]
    render.show(RUNS, found, chosen(json, csv), document={"runs": found}, what="runs")


@app.command("pause")
def pause(ctx: typer.Context, model: Model) -> None:
    """Let schedule and events rest; a run that is open goes on."""
    _reference(ctx, model).pause()
    talk(f"the retraining of {model} is paused: det retrain resume {model}")


@app.command("resume")
def resume(ctx: typer.Context, model: Model) -> None:
    """Let schedule and events go on; what was missed while they rested is not caught up."""
    _reference(ctx, model).resume()
    talk(f"the retraining of {model} goes on")


@app.command("cancel")
def cancel(ctx: typer.Context, model: Model) -> None:
    """End the open run and kill its experiment; the champion stays."""
    ended = _reference(ctx, model).cancel()
    talk(f"canceled retraining run {ended} of {model}")


@app.command("report")
def report(
    ctx: typer.Context,
    model: Model,
    metric: Annotated[str, typer.Argument(help="its name, as in the plan's live_metric")],
    values: Annotated[list[float], typer.Argument(help="one or more, the oldest first")],
    version: Annotated[
        int | None,
        typer.Option("--version", help="that is in use; default: the champion", metavar="VERSION"),
    ] = None,
) -> None:
    """Report how the model does where it is used: the plan's events live_metric go by it."""
    noted = model_reference(ctx, model).report_live_metric(metric, *values, version=version)
    of = f"version {noted}" if noted is not None else "no version: there is no champion yet"
    talk(f"noted {counted(len(values), 'value')} of {metric}, of {of}")


@app.command("approve")
def approve(
    ctx: typer.Context,
    model: Model,
    reject: Annotated[bool, typer.Option("--reject", help="keep the champion instead")] = False,
) -> None:
    """Approve the run that waits for it: its version becomes the champion."""
    answered = _reference(ctx, model).approve(not reject)
    talk(f"{'rejected' if reject else 'approved'} retraining run {answered} of {model}")


@app.command("rollback")
def rollback(
    ctx: typer.Context,
    model: Model,
    to: Annotated[
        int | None,
        typer.Option("--to", help="default: the version before", metavar="VERSION", min=1),
    ] = None,
) -> None:
    """Let the alias stand for the version before again, in one step."""
    before, now = _reference(ctx, model).roll_back(to)
    talk(f"{model}: the champion is version {now} again, not version {before}")


@app.command("delete")
def delete(ctx: typer.Context, model: Model) -> None:
    """Train the model again no more. Its versions and aliases stay; the history of the runs goes."""
    _reference(ctx, model).delete()
    talk(f"{model} is not trained again any more")
