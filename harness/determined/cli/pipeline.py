"""``det pipeline``: experiments that take what earlier ones have found."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from determined.cli import completion
from determined.cli.arguments.options import Csv, Json, chosen
from determined.cli.arguments.places import IntoWorkspace, ProjectName, project_id
from determined.cli.errors import CliError, talk
from determined.cli.groups import group
from determined.cli.output import format as f
from determined.cli.output import log_lines, render
from determined.cli.output.render import Column, Format, Record, Section
from determined.cli.printing import echo
from determined.cli.state import State, state
from determined.common.printable import counted

if TYPE_CHECKING:
    from determined.experimental.pipeline import PipelineRun

app = group("Pipelines: experiments that take what earlier ones have found.", default="list")

PipelineId = Annotated[
    int,
    typer.Argument(help="pipeline ID", metavar="ID", autocompletion=completion.pipelines, min=1),
]
POLL_S = 1.0

PIPELINES = (
    Column("ID", "id"),
    Column("Owner", "username", spare=9),
    Column("Name", "name"),
    Column("State", "state"),
    Column("Steps", lambda r: f"{r['completedSteps']}/{r['stepCount']}"),
    Column("Started", f.field("startTime", f.time), spare=6),
    Column("Ended", f.field("endTime", f.time), spare=7),
    Column("Again Of", "againOf", spare=3),
    Column("Cause", lambda r: r.get("cause"), spare=10),
    Column("Next", f.field("nextTime", f.time), spare=4),
    Column("Reason", "reason"),
)
STEPS = (
    Column("Step", "name"),
    Column("Kind", lambda r: r.get("kind", "experiment"), spare=8),
    Column("State", "state"),
    Column("Needs", lambda r: ", ".join(r["needs"]), spare=5),
    Column("Experiments or Task", lambda r: _experiments(r["experiments"])),
    Column("Started", f.field("startTime", f.time), spare=6),
    Column("Ended", f.field("endTime", f.time), spare=7),
    Column("Reason", "reason"),
)
EXPERIMENTS = (
    Column("Step", "step"),
    Column("Item", "item", spare=1),
    Column("Try", "attempt", spare=5),
    Column("Experiment", "id"),
    Column("State", "state"),
    Column("Cached", "cached", spare=6),
    Column("Best Metric", lambda r: (r["best"] or {}).get("metric")),
    Column("Best Trial", lambda r: (r["best"] or {}).get("trialId"), spare=7),
    Column("Checkpoint", lambda r: (r["best"] or {}).get("checkpoint")),
    Column("Reason", "reason"),
)


def _experiments(listed: list[Record]) -> str:
    numbers = [one["id"] if one["id"] is not None else one.get("taskId") for one in listed]
    return ", ".join(str(one) for one in numbers if one is not None)


@app.command("run")
def run(
    ctx: typer.Context,
    file: Annotated[Path, typer.Argument(help="YAML file", metavar="PIPELINE.yaml")],
    param: Annotated[
        list[str] | None,
        typer.Option("--param", help="set a parameter of the pipeline", metavar="NAME=VALUE"),
    ] = None,
    workspace_name: IntoWorkspace = None,
    project_name: ProjectName = None,
    detach: Annotated[
        bool, typer.Option("-d", "--detach", help="print the pipeline's ID and exit")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="check it, as the cluster would; submit nothing")
    ] = False,
    json: Json = False,
) -> None:
    """Run a pipeline and follow it; exit code 0 if it completed, else 1.

    Ctrl-C detaches from the pipeline, which keeps running.
    """
    from determined.cli.submission.bring_up import ensure_cluster
    from determined.experimental import pipeline as sdk

    planned = sdk.plan(file, _params(param or []))
    shared = state(ctx)
    ensure_cluster(shared)
    within = project_id(shared, workspace_name, project_name)
    planned = dataclasses.replace(planned, project_id=within)
    if dry_run:
        _warn(sdk.validate(shared.session, planned))
        talk(
            f"{file}: {counted(len(planned.plan.steps), 'step')}, no mistake found; nothing was submitted"
        )
        return
    made = sdk.send(shared.session, planned)
    _warn(made.warnings)
    if detach:
        talk(
            f"submitted pipeline {planned.plan.name!r}; follow it with: det pipeline wait {made.id}"
        )
        echo(str(made.id))
        return
    talk(f"submitted pipeline {made.id} ({planned.plan.name})")
    _follow(made, json)


def _warn(warnings: list[str]) -> None:
    for warning in warnings:
        talk(f"warning: {warning}")


def _params(given: list[str]) -> dict[str, Any]:
    from determined import expconf

    found = {}
    for one in given:
        name, equals, _ = one.partition("=")
        if not equals or not name or "." in name:
            raise CliError(f"--param {one!r} is not of the form NAME=VALUE")
        found.update(expconf.apply_overrides({}, [one]))
    return found


def _follow(run: PipelineRun, json: bool) -> None:
    seen: dict[str, str] = {}
    try:
        while True:
            now = run.describe()
            for step in now["steps"]:
                words = _in_words(step)
                if step["state"] != "WAITING" and seen.get(step["name"]) != words:
                    seen[step["name"]] = words
                    talk(words)
            if now["endTime"]:
                break
            time.sleep(POLL_S)
    except KeyboardInterrupt:
        talk(_how_to_come_back(run.id))
        raise typer.Exit(130) from None
    if json:
        render.print_json(now)
    else:
        render.show(EXPERIMENTS, list(_all_tries(now, earlier=False)), Format.TABLE)
    talk(f"pipeline {run.id} {now['state']}: {now['reason']}")
    if now["state"] != "COMPLETED":
        talk(f"try again what did not complete: det pipeline resume {run.id}")
        raise typer.Exit(1)


def _in_words(step: Record) -> str:
    ids = _experiments(step["experiments"])
    several = "s" if "," in ids else ""
    words = f"step {step['name']}: {step['state']}" + (
        f" (experiment{several} {ids})" if ids else ""
    )
    return words + (f": {step['reason']}" if step["reason"] else "")


def _how_to_come_back(pipeline_id: int) -> str:
    return (
        f"\ndetached; pipeline {pipeline_id} keeps running\n"
        f"  follow it again:  det pipeline wait {pipeline_id}\n"
        f"  see its logs:     det pipeline logs -f {pipeline_id}\n"
        f"  end it:           det pipeline cancel {pipeline_id}"
    )


def _run(shared: State, pipeline_id: int) -> PipelineRun:
    from determined.experimental.pipeline import PipelineRun

    return PipelineRun(pipeline_id, shared.session)


@app.command("wait")
def wait(ctx: typer.Context, pipeline_id: PipelineId, json: Json = False) -> None:
    """Follow a pipeline to its end; exit code 0 if it completed, else 1."""
    _follow(_run(state(ctx), pipeline_id), json)


@app.command("list|ls")
def list_pipelines(ctx: typer.Context, json: Json = False, csv: Csv = False) -> None:
    """List the pipelines, the latest first."""
    from determined.experimental import pipeline as sdk

    found = sdk.read_pipelines(state(ctx).session)
    render.show(PIPELINES, found, chosen(json, csv), what="pipelines")


@app.command("describe")
def describe(
    ctx: typer.Context,
    pipeline_id: PipelineId,
    history: Annotated[
        bool, typer.Option("--history", help="earlier tries of experiments, too")
    ] = False,
    json: Json = False,
    csv: Csv = False,
) -> None:
    """Show a pipeline: its steps, their experiments, what these have found, and why."""
    found = _run(state(ctx), pipeline_id).describe()
    sections = [
        Section("", PIPELINES, [found]),
        Section("Steps", STEPS, found["steps"]),
        Section("Experiments", EXPERIMENTS, list(_all_tries(found, earlier=history))),
    ]
    render.show_sections(sections, chosen(json, csv), document=found)


def _all_tries(found: Record, *, earlier: bool) -> Iterator[Record]:
    for step in found["steps"]:
        tries = [*(step["earlierExperiments"] if earlier else ()), *step["experiments"]]
        for one in sorted(tries, key=lambda one: (one["index"], one["attempt"])):
            yield {"step": step["name"], **one}


@app.command("resume")
def resume(
    ctx: typer.Context,
    pipeline_id: PipelineId,
    detach: Annotated[bool, typer.Option("-d", "--detach", help="do not wait for the end")] = False,
    json: Json = False,
) -> None:
    """Try again what failed, was skipped or was canceled, and follow it; what has completed stays."""
    run = _run(state(ctx), pipeline_id)
    run.resume()
    talk(f"pipeline {pipeline_id} goes on")
    if not detach:
        _follow(run, json)


@app.command("again")
def again(
    ctx: typer.Context,
    pipeline_id: PipelineId,
    detach: Annotated[
        bool, typer.Option("-d", "--detach", help="print the new pipeline's ID and exit")
    ] = False,
    json: Json = False,
) -> None:
    """Run a pipeline again from its beginning, with the same plan and code, and follow it."""
    made = _run(state(ctx), pipeline_id).again()
    talk(f"pipeline {made.id} runs pipeline {pipeline_id} again")
    if detach:
        echo(str(made.id))
    else:
        _follow(made, json)


@app.command("schedule")
def schedule(
    ctx: typer.Context,
    pipeline_id: PipelineId,
    cron: Annotated[str | None, typer.Option("--cron", help="five fields", metavar="CRON")] = None,
    interval: Annotated[
        float | None, typer.Option("--interval", help="seconds", metavar="S")
    ] = None,
    rrule: Annotated[str | None, typer.Option("--rrule", help="FREQ=…", metavar="RULE")] = None,
    timezone: Annotated[
        str | None, typer.Option("--timezone", help="such as Europe/Berlin; default: UTC")
    ] = None,
    off: Annotated[bool, typer.Option("--off", help="run it again no more")] = False,
) -> None:
    """Have a pipeline run again on a schedule, each time as a new pipeline."""
    run = _run(state(ctx), pipeline_id)
    given = [cron, interval, rrule]
    if sum(one is not None for one in given) != (0 if off else 1):
        raise CliError("give one of --cron, --interval, --rrule and --off")
    if off:
        run.delete_schedule()
        talk(f"pipeline {pipeline_id} has no schedule any more")
        return
    following = run.set_schedule(cron=cron, interval_s=interval, rrule=rrule, timezone=timezone)
    talk(f"pipeline {pipeline_id} runs again at {f.time(following)}")


@app.command("approve")
def approve(
    ctx: typer.Context,
    pipeline_id: PipelineId,
    step: Annotated[
        str | None,
        typer.Option("--step", help="which, when several steps wait", metavar="NAME"),
    ] = None,
    reject: Annotated[
        bool, typer.Option("--reject", help="the step fails, and so does the pipeline")
    ] = False,
) -> None:
    """Approve the step that waits for it, so that the steps that need it begin."""
    name = _run(state(ctx), pipeline_id).approve(not reject, step)
    talk(f"{'rejected' if reject else 'approved'} step {name} of pipeline {pipeline_id}")


@app.command("cancel")
def cancel(ctx: typer.Context, pipeline_id: PipelineId) -> None:
    """End a pipeline and kill its experiments."""
    _run(state(ctx), pipeline_id).cancel()
    talk(f"canceled pipeline {pipeline_id}; go on with it: det pipeline resume {pipeline_id}")


@app.command("delete")
def delete(ctx: typer.Context, pipeline_id: PipelineId) -> None:
    """Forget a pipeline that has ended. Its experiments stay."""
    _run(state(ctx), pipeline_id).delete()
    talk(f"deleted pipeline {pipeline_id}; its experiments stay")


@app.command("logs")
def logs(
    ctx: typer.Context,
    pipeline_id: PipelineId,
    step: Annotated[
        str | None, typer.Option("--step", help="of this step only", metavar="NAME")
    ] = None,
    follow: log_lines.Follow = False,
    json: log_lines.JsonLines = False,
    tail: log_lines.Tail = None,
) -> None:
    """Print the logs of the pipeline's experiments: of each the first trial's."""
    shared = state(ctx)
    run = _run(shared, pipeline_id)
    shown: set[int] = set()
    while True:
        now = run.describe()
        _require_step(now, step)
        new = [
            (one["name"], tried["id"])
            for one in now["steps"]
            if step is None or one["name"] == step
            for tried in one["experiments"]
            if tried["id"] is not None and tried["id"] not in shown
        ]
        for name, experiment_id in new:
            shown.add(experiment_id)
            _show_logs(shared, name, experiment_id, follow=follow, json=json, tail=tail)
        if not follow or now["endTime"]:
            return
        if not new:
            time.sleep(POLL_S)


def _require_step(now: Record, step: str | None) -> None:
    names = [one["name"] for one in now["steps"]]
    if step is not None and step not in names:
        raise CliError(f"pipeline {now['id']} has no step {step!r} (it has {', '.join(names)})")


def _show_logs(
    shared: State, step: str, experiment_id: int, *, follow: bool, json: bool, tail: int | None
) -> None:
    experiment = shared.experiments.get_experiment(experiment_id)
    if follow:
        try:
            trial = experiment.await_first_trial()
        except RuntimeError as error:
            talk(f"step {step}: {error}")
            return
    else:
        first = next(experiment.iter_trials(limit=2), None)
        if first is None:
            talk(f"step {step}: experiment {experiment_id} has no trial yet")
            return
        trial = first
    talk(f"step {step}: logs of trial {trial.id}, the first of experiment {experiment_id}")
    log_lines.write(trial.iter_log_batches(follow, tail=tail), json)
