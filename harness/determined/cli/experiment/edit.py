"""``det e label`` and ``det e set``"""

from __future__ import annotations

from typing import Annotated

import typer

from determined.cli.errors import talk
from determined.cli.experiment.paths import ExperimentId, reference
from determined.cli.groups import group

labels = group("Labels of an experiment.")
settings = group("Change an experiment's name, description or checkpoint policy.")

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


def register(app: typer.Typer) -> None:
    """Adds the groups."""
    app.add_typer(labels, name="label")
    app.add_typer(settings, name="set")
