"""The argument that names an experiment, and the SDK's object for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from determined.cli import completion
from determined.cli.state import state

if TYPE_CHECKING:
    from determined.experimental import Experiment

ExperimentId = Annotated[
    int,
    typer.Argument(help="experiment ID", metavar="ID", autocompletion=completion.experiments),
]


def reference(ctx: typer.Context, experiment_id: int) -> Experiment:
    """The SDK's object for an experiment, without a request to the service."""
    from determined.experimental import Experiment

    return Experiment(experiment_id, state(ctx).session)
