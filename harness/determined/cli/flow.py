"""``det flow``: from a YAML file to a trained model in one command."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from determined.cli.arguments.options import Includes, Json, Overrides, TestMode
from determined.cli.arguments.places import IntoWorkspace, ProjectName, project_id
from determined.cli.errors import CliError, talk
from determined.cli.groups import group
from determined.cli.output import render
from determined.cli.printing import echo
from determined.cli.state import State, state
from determined.cli.submission import entrypoint, submit
from determined.cli.submission.bring_up import ensure_cluster
from determined.cli.submission.test_mode import train_one_batch
from determined.common.printable import counted

if TYPE_CHECKING:
    from determined.experimental import Experiment
    from determined.experimental._submission import Submission

app = group("From a YAML file to a trained model in one command.")


@app.command("run")
def run(
    ctx: typer.Context,
    config_file: Annotated[Path, typer.Argument(help="YAML file", metavar="CONFIG_FILE")],
    model_dir: Annotated[
        Path | None, typer.Argument(help="file or directory with the training code")
    ] = None,
    include: Includes = None,
    config: Overrides = None,
    name: Annotated[
        str | None, typer.Option("--name", help="use this name for the experiment")
    ] = None,
    workspace_name: IntoWorkspace = None,
    project_name: ProjectName = None,
    detach: Annotated[
        bool, typer.Option("-d", "--detach", help="print the experiment's ID and exit")
    ] = False,
    paused: Annotated[
        bool, typer.Option("--paused", help="submit it paused; print its ID and exit")
    ] = False,
    test_mode: TestMode = False,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="show what would be submitted and the plan; submit nothing"),
    ] = False,
    json: Json = False,
) -> None:
    """Run an experiment and follow it; exit code 0 if it completed, else 1.

    If no cluster answers, one is started on this machine and left running. Ctrl-C detaches from the
    experiment, which keeps running.
    """
    if sum([paused, test_mode, dry_run]) > 1:
        raise typer.BadParameter("give only one of --paused, --test-mode and --dry-run")
    from determined.experimental import _submission

    shared = state(ctx)
    planned = _submission.plan(
        config_file,
        model_dir,
        include or (),
        overrides=config or (),
        change=None if name is None else lambda data: {**data, "name": name},
        activate=not paused,
    )
    wrong = entrypoint.missing(planned, config_file, model_dir)
    if wrong is not None and not dry_run:
        raise CliError(wrong)
    if not dry_run:
        ensure_cluster(shared)
    within = project_id(shared, workspace_name, project_name)
    planned = dataclasses.replace(planned, project_id=within)
    if dry_run:
        if wrong is not None:
            talk(f"warning: {wrong}")
        _show_plan(planned, shared, json)
        return
    if test_mode:
        train_one_batch(planned, shared)
    experiment = submit.send(planned, shared)
    from determined.cli.following import pages

    if paused:
        talk(
            f"submitted {experiment.name!r}, paused; start it with: det e activate {experiment.id}"
        )
        pages.say_where(experiment)
        echo(str(experiment.id))
        return
    if detach:
        talk(f"submitted {experiment.name!r}; follow it with: det e wait {experiment.id}")
        pages.say_where(experiment)
        echo(str(experiment.id))
        return
    talk(f"submitted experiment {experiment.id} ({experiment.name})")
    _follow(shared, experiment, json)


def _follow(shared: State, experiment: Experiment, json: bool) -> None:
    from determined.cli.following import follow, live, pages

    start = time.monotonic()
    try:
        tracker = follow.follow(experiment, live.best_view())
    except KeyboardInterrupt:
        talk(_how_to_come_back(experiment.id))
        raise typer.Exit(130) from None
    document = follow.result(tracker, follow.best_checkpoint(experiment))
    if tracker.state == "ERROR":
        follow.explain_failure(shared.session, tracker)
    if json:
        render.print_json(document)
    else:
        for line in follow.summary(document, time.monotonic() - start):
            echo(line)
        top, best = document["best_checkpoint"] or {}, document["best"] or {}
        if uuid := top.get("uuid") or best.get("checkpoint"):
            talk(f"get the best checkpoint: det checkpoint download {uuid}")
        if page := pages.in_mlflow(experiment):
            talk(f"look at it in MLflow: {page}")
        pages.say_where(experiment)
    if tracker.state != "COMPLETED":
        raise typer.Exit(1)


def _how_to_come_back(experiment_id: int) -> str:
    return (
        f"\ndetached; experiment {experiment_id} keeps running\n"
        f"  follow it again:  det e wait {experiment_id}\n"
        f"  see its logs:     det e logs -f {experiment_id}\n"
        f"  end it:           det e kill {experiment_id}"
    )


def _show_plan(planned: Submission, shared: State, json: bool) -> None:
    """Prints the completed configuration, the files and the plan.

    Raises CliError if the cluster would refuse the submission.
    """
    from determined.cli.submission import plan

    config = planned.completed()
    document: dict[str, Any] = {
        "config": config,
        "files": [
            {"path": item.path, "size": len(item.content)}
            for item in planned.items
            if item.content is not None
        ],
        "plan": plan.make(config, planned, shared),
    }
    if json:
        render.print_json(document)
    else:
        _print_plan(planned, document)
        plan.show(document["plan"])
    refusal = document["plan"]["cluster"]["refusal"]
    if refusal is not None:
        raise CliError(f"the cluster would refuse this experiment: {refusal}")


def _print_plan(planned: Submission, document: dict[str, Any]) -> None:
    import yaml

    from determined.cli.output import format as f

    echo(yaml.safe_dump(document["config"], sort_keys=True), end="")
    talk(f"{counted(len(document['files']), 'file')}, {f.size(planned.size)}, would be sent:")
    for file in document["files"]:
        talk(f"  {file['path']}  {f.size(file['size'])}")
    if planned.left_open():
        talk("set only when the experiment is submitted: " + ", ".join(planned.left_open()))
