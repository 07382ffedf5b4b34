"""``det flow``: from a YAML file to a trained model in one command."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from determined.cli import _render, _submit, _test_mode
from determined.cli._bring_up import ensure_cluster
from determined.cli._errors import CliError, talk
from determined.cli._groups import group
from determined.cli._options import Includes, Json, Overrides, TestMode
from determined.cli._state import State, state

if TYPE_CHECKING:
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
    name: Annotated[str | None, typer.Option("--name", help="another name")] = None,
    detach: Annotated[
        bool, typer.Option("-d", "--detach", help="print the experiment's ID and leave")
    ] = False,
    paused: Annotated[
        bool, typer.Option("--paused", help="do not start it yet; print its ID and leave")
    ] = False,
    test_mode: TestMode = False,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="show what would be submitted and a plan, submit nothing"),
    ] = False,
    json: Json = False,
) -> None:
    """Run an experiment and follow it: exit code 0 when it completed, else 1.

    Without a cluster, one is started on this machine and left running. Ctrl-C ends the following,
    not the experiment.
    """
    overrides = list(config or ())
    if sum([paused, test_mode, dry_run]) > 1:
        raise typer.BadParameter("--paused, --test-mode and --dry-run exclude each other")
    planned = _submit.plan(
        config_file, model_dir, include, overrides, name=name, activate=not paused
    )
    if dry_run:
        _show_plan(planned, state(ctx), json)
        return
    shared = state(ctx)
    ensure_cluster(shared)
    if test_mode:
        _test_mode.run(planned, shared)
    experiment = _submit.send(planned, shared)
    if paused:
        talk(
            f"submitted {experiment.name!r}, paused; start it with: det e activate {experiment.id}"
        )
        typer.echo(str(experiment.id))
        return
    if detach:
        talk(f"submitted {experiment.name!r}; follow it with: det e wait {experiment.id}")
        typer.echo(str(experiment.id))
        return
    talk(f"submitted experiment {experiment.id} ({experiment.name})")
    _follow(shared, experiment.id, json)


def _follow(shared: State, experiment_id: int, json: bool) -> None:
    from determined.cli import _follow, _live

    start = time.monotonic()
    try:
        tracker = _follow.follow(shared.session, experiment_id, _live.best_view())
    except KeyboardInterrupt:
        talk(_how_to_come_back(experiment_id))
        raise typer.Exit(130) from None
    document = _follow.result(tracker)
    if tracker.state == "ERROR":
        _follow.explain_failure(shared.session, tracker)
    if json:
        _render.print_json(document)
    else:
        for line in _follow.summary(document, time.monotonic() - start):
            typer.echo(line)
        if document["best"] and document["best"]["checkpoint"]:
            talk(f"get the checkpoint: det checkpoint download {document['best']['checkpoint']}")
    if tracker.state != "COMPLETED":
        raise typer.Exit(1)


def _how_to_come_back(experiment_id: int) -> str:
    return (
        f"\ndetached; experiment {experiment_id} goes on\n"
        f"  come back to it:  det e wait {experiment_id}\n"
        f"  see its logs:     det e logs -f {experiment_id}\n"
        f"  end it:           det e kill {experiment_id}"
    )


def _show_plan(planned: Submission, shared: State, json: bool) -> None:
    """The completed configuration, the files, and the plan: trials, slots, pool.

    Raises CliError when the cluster that answers would refuse it.
    """
    from determined.cli import _plan

    config = planned.completed()
    document: dict[str, Any] = {
        "config": config,
        "files": [
            {"path": item.path, "size": len(item.content)}
            for item in planned.items
            if item.content is not None
        ],
        "plan": _plan.make(config, planned, shared),
    }
    if json:
        _render.print_json(document)
    else:
        _print_plan(planned, document)
        _plan.show(document["plan"])
    refusal = document["plan"]["cluster"]["refusal"]
    if refusal is not None:
        raise CliError(f"the cluster would refuse it: {refusal}")


def _print_plan(planned: Submission, document: dict[str, Any]) -> None:
    import yaml

    from determined.cli import _format as f

    typer.echo(yaml.safe_dump(document["config"], sort_keys=True), nl=False)
    talk(f"{len(document['files'])} files, {f.size(planned.size)}, would be sent:")
    for file in document["files"]:
        talk(f"  {file['path']}  {f.size(file['size'])}")
    if planned.left_open():
        talk("chosen only when it is submitted: " + ", ".join(planned.left_open()))
