"""Sending a planned submission."""

from __future__ import annotations

from typing import TYPE_CHECKING

from determined.cli.errors import talk
from determined.cli.state import State

if TYPE_CHECKING:
    from determined.experimental import Experiment
    from determined.experimental._submission import Submission


def send(submission: Submission, shared: State) -> Experiment:
    """Submits the experiment, and prints the service's warnings."""
    warn_about_version(shared)
    submitted = submission.send(shared.session)
    for warning in submitted.warnings:
        talk(f"warning: {warning}")
    return submitted.experiment


def warn_about_version(shared: State) -> None:
    """Prints a warning if the client and the service have different versions."""
    from determined.__version__ import __version__

    found = shared.master_info.get("version")
    if found and found != __version__:
        talk(f"warning: this det is version {__version__}, the service is version {found}")
