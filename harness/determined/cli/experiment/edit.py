"""``det e label`` and ``det e set``"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from determined.cli.arguments.places import Project, Workspace
from determined.cli.errors import talk
from determined.cli.experiment.paths import ExperimentId, reference
from determined.cli.groups import group

labels = group("Labels of an experiment.")
settings = group("Change an experiment's name, resources or checkpoint policy.")

Label = Annotated[str, typer.Argument(help="the label")]


@labels.command("add")
def add_label(ctx: typer.Context, experiment_id: ExperimentId, label: Label) -> None:
    """Add a label."""
    reference(ctx, experiment_id).add_label(label)
    talk(f"added label {label!r} to experiment {experiment_id}")


@labels.command("remove")
def remove_label(ctx: typer.Context, experiment_id: ExperimentId, label: Label) -> None:
    """Remove a label."""
    reference(ctx, experiment_id).remove_label(label)
    talk(f"removed label {label!r} from experiment {experiment_id}")


@settings.command("name")
def set_name(
    ctx: typer.Context, experiment_id: ExperimentId, name: Annotated[str, typer.Argument()]
) -> None:
    """Change the name."""
    reference(ctx, experiment_id).set_name(name)
    talk(f"experiment {experiment_id} is now called {name!r}")


@settings.command("description")
def set_description(
    ctx: typer.Context, experiment_id: ExperimentId, description: Annotated[str, typer.Argument()]
) -> None:
    """Change the description."""
    reference(ctx, experiment_id).set_description(description)
    talk(f"set the description of experiment {experiment_id}")


@settings.command("priority")
def set_priority(
    ctx: typer.Context,
    experiment_id: ExperimentId,
    priority: Annotated[
        int,
        typer.Argument(
            min=1, max=99, help="a lower number is more important; on Kubernetes a higher one"
        ),
    ],
) -> None:
    """Change the priority. It holds at once."""
    remarks = reference(ctx, experiment_id).set_priority(priority)
    _say(experiment_id, "priority", priority, remarks)


@settings.command("weight")
def set_weight(
    ctx: typer.Context,
    experiment_id: ExperimentId,
    weight: Annotated[float, typer.Argument(min=0, help="weight of its fair share")],
) -> None:
    """Change the weight. It holds at once."""
    remarks = reference(ctx, experiment_id).set_weight(weight)
    _say(experiment_id, "weight", weight, remarks)


@settings.command("max-slots")
def set_max_slots(
    ctx: typer.Context,
    experiment_id: ExperimentId,
    max_slots: Annotated[
        str, typer.Argument(help="slots that all its trials together may use, or none")
    ],
) -> None:
    """Change how many slots the trials may use together; `none`: no limit. It holds at once.

    Trials above the limit save a checkpoint, and go on later.
    """
    if max_slots.lower() not in ("none", "null") and not max_slots.isdecimal():
        raise typer.BadParameter(f"max_slots must be a whole number or none, not {max_slots!r}")
    limit = int(max_slots) if max_slots.isdecimal() else None
    remarks = reference(ctx, experiment_id).set_max_slots(limit)
    _say(experiment_id, "max_slots", limit, remarks)


def _say(experiment_id: int, field: str, value: float | None, remarks: Sequence[str]) -> None:
    for remark in remarks:
        talk(f"warning: {remark}")
    words = "none" if value is None else f"{value:g}"
    talk(f"set {field} of experiment {experiment_id} to {words}")


def move(
    ctx: typer.Context,
    experiment_id: ExperimentId,
    workspace_name: Workspace,
    project_name: Project,
) -> None:
    """Move an experiment to a project of a workspace."""
    reference(ctx, experiment_id).move_to_project(workspace_name, project_name)
    talk(
        f"experiment {experiment_id} is in project {project_name!r} of workspace {workspace_name!r}"
    )


def register(app: typer.Typer) -> None:
    """Adds the groups."""
    app.command("move")(move)
    app.add_typer(labels, name="label")
    app.add_typer(settings, name="set")
