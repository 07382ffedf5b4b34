"""Pages on which an experiment can be looked at."""

from __future__ import annotations

from typing import TYPE_CHECKING

from determined.cli.errors import talk
from determined.common.api import errors

if TYPE_CHECKING:
    from determined.experimental import Experiment


def say_where(experiment: Experiment) -> None:
    """Says how to look at it: the last line of a command that submits or follows it."""
    talk(f"look at it: det open {experiment.id}, or {experiment.page()}")


def in_mlflow(experiment: Experiment) -> str | None:
    """The address of its trials in MLflow; None also if the service does not answer."""
    try:
        return experiment.mlflow_page()
    except errors.APIException:
        return None
