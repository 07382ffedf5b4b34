"""Turning the command line's arguments into a submitted experiment."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from determined.cli.errors import talk
from determined.cli.state import State

if TYPE_CHECKING:
    from determined.experimental import Experiment
    from determined.experimental._submission import Submission


def plan(
    config_file: Path,
    model_dir: Path | None,
    includes: Iterable[Path] | None,
    overrides: Iterable[str] | None,
    change: Callable[[dict[str, Any]], dict[str, Any]] | None = None,
    **options: Any,
) -> Submission:
    """Checks the configuration and packs the files. ``change`` is what options make of the configuration.

    ``options`` are those of :func:`determined.experimental._submission.plan`.
    """
    from determined.experimental import _submission

    config = _submission.read_config(config_file).override(overrides or ())
    if change is not None:
        config = config.changed(change(config.document.data))
    return _submission.plan(config, model_dir, includes or (), **options)


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
