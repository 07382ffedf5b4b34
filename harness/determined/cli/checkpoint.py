"""``det checkpoint`` (``det c``)"""

from __future__ import annotations

from typing import Annotated

import typer

from determined.cli import _render
from determined.cli._checkpoints import record, report
from determined.cli._groups import group
from determined.cli._options import Csv, Json, OutputDir, Quiet, chosen
from determined.cli._render import Column, Section
from determined.cli._state import state
from determined.cli.experiment.lists import CHECKPOINTS

app = group("What trainings saved.")

Uuid = Annotated[str, typer.Argument(help="the checkpoint's UUID")]

FILES = (Column("Path", "path"), Column("Size", "size"), Column("Checksum", "checksum"))


@app.command("describe")
def describe(ctx: typer.Context, uuid: Uuid, json: Json = False, csv: Csv = False) -> None:
    """A checkpoint with its files."""
    fmt = chosen(json, csv)
    document = state(ctx).session.get(f"/api/v1/checkpoints/{uuid}")["checkpoint"]
    checksums = document.get("checksums") or {}
    files = [
        {"path": path, "size": int(size), "checksum": checksums.get(path)}
        for path, size in sorted((document.get("resources") or {}).items())
    ]
    experiment = Column("Experiment ID", lambda r: (r.get("training") or {}).get("experimentId"))
    columns = [experiment, *CHECKPOINTS, Column("Metadata", "metadata")]
    sections = [Section("Checkpoint", columns, [document]), Section("Files", FILES, files)]
    _render.show_sections(sections, fmt, document=document)


@app.command("download")
def download(
    ctx: typer.Context,
    uuid: Uuid,
    output_dir: OutputDir = None,
    quiet: Quiet = False,
    mode: Annotated[
        str,
        typer.Option("--mode", metavar="MODE", help="direct (from its storage), master or auto"),
    ] = "auto",
) -> None:
    """Download it to checkpoints/<UUID>, or to DIR."""
    from determined.experimental.client import DownloadMode

    try:
        chosen_mode = DownloadMode(mode)
    except ValueError:
        raise typer.BadParameter(f"--mode {mode!r}: must be direct, master or auto") from None
    checkpoint = state(ctx).client.get_checkpoint(uuid)
    path = checkpoint.download(str(output_dir) if output_dir is not None else None, chosen_mode)
    report([record(checkpoint, path)], quiet)
