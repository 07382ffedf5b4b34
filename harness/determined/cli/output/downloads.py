"""Downloading checkpoints, and reporting where they are."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from determined.cli.output import format as f
from determined.cli.output.render import Column, Format, Record, show
from determined.cli.printing import echo

if TYPE_CHECKING:
    from determined.experimental import Checkpoint

SortBy = Annotated[
    str | None,
    typer.Option("--sort-by", help="rank checkpoints by this validation metric", metavar="METRIC"),
]
SmallerIsBetter = Annotated[
    # Not a flag: upstream's option takes a value.
    str | None,
    typer.Option(
        "--smaller-is-better",
        help="whether a smaller metric is better: true or false; needed with --sort-by",
        metavar="BOOL",
    ),
]

Mode = Annotated[
    str,
    typer.Option(
        "--mode",
        metavar="MODE",
        help="direct (from the storage), master (through the service) or auto",
    ),
]

DOWNLOADED = (
    Column("Experiment ID", "experiment_id"),
    Column("Trial ID", "trial_id"),
    Column("Steps Completed", "steps_completed"),
    Column("UUID", "uuid"),
    Column("Size", f.field("size", f.size)),
    Column("Local Path", "path"),
)


def _boolean(text: str) -> bool:
    words = {"true": True, "t": True, "yes": True, "1": True}
    words |= {"false": False, "f": False, "no": False, "0": False}
    if text.lower() not in words:
        raise typer.BadParameter(f"{text!r} is neither true nor false")
    return words[text.lower()]


def ranking(sort_by: str | None, smaller_is_better: str | None) -> tuple[str | None, bool | None]:
    """The values of the two options, or None twice. Raises a usage error if only one is given."""
    if (sort_by is None) != (smaller_is_better is None):
        raise typer.BadParameter("give both of --sort-by and --smaller-is-better, or neither")
    return sort_by, None if smaller_is_better is None else _boolean(smaller_is_better)


def download_one(checkpoint: Checkpoint, directory: Path | None, mode: str, quiet: bool) -> None:
    """Downloads ``checkpoint`` to ``directory`` (default ``checkpoints/<uuid>``) and reports it.

    ``mode`` is what was typed. Raises a usage error for an unknown one.
    """
    from determined.experimental.client import DownloadMode

    try:
        how = DownloadMode(mode)
    except ValueError:
        raise typer.BadParameter(f"--mode {mode!r}: must be direct, master or auto") from None
    path = checkpoint.download(str(directory) if directory is not None else None, how)
    report([record(checkpoint, path)], quiet)


def download_all(checkpoints: Iterable[Checkpoint], directory: Path, quiet: bool) -> None:
    """Downloads each checkpoint to ``directory/<uuid>``."""
    records: list[Record] = []
    for checkpoint in checkpoints:
        path = checkpoint.download(str(directory / checkpoint.uuid))
        records.append(record(checkpoint, path))
    report(records, quiet)


def report(records: list[Record], quiet: bool) -> None:
    """Prints where the downloads are: a table, or only the paths if ``quiet``."""
    if quiet:
        for item in records:
            echo(item["path"])
        return
    show(DOWNLOADED, records, Format.TABLE)


def record(checkpoint: Checkpoint, path: str) -> Record:
    """The report's record of one downloaded checkpoint."""
    training = checkpoint.training
    return {
        "experiment_id": training.experiment_id if training else None,
        "trial_id": checkpoint.trial_id,
        "steps_completed": (checkpoint.metadata or {}).get("steps_completed"),
        "uuid": checkpoint.uuid,
        "size": sum((checkpoint.resources or {}).values()),
        "path": path,
    }
