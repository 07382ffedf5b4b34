"""``det checkpoint`` (``det c``)"""

from __future__ import annotations

from typing import Annotated

import typer

from determined.cli import completion
from determined.cli.arguments.abbreviated import checkpoint_uuid, checkpoint_uuids
from determined.cli.arguments.confirmation import Yes, confirm
from determined.cli.arguments.options import Csv, Json, OutputDir, Quiet, chosen
from determined.cli.experiment.lists import CHECKPOINTS
from determined.cli.following.deletion import wait_for_deletion
from determined.cli.groups import group
from determined.cli.output import render
from determined.cli.output.downloads import Mode, download_one
from determined.cli.output.render import Column, Section
from determined.cli.state import state

app = group(
    "Checkpoints: the saved states of models. `det experiment list-checkpoints ID` lists them."
)

Uuid = Annotated[
    str,
    typer.Argument(
        help="the checkpoint's UUID, or the beginning of it", autocompletion=completion.checkpoints
    ),
]

FILES = (Column("Path", "path"), Column("Size", "size"), Column("Checksum", "checksum"))


@app.command("describe")
def describe(ctx: typer.Context, uuid: Uuid, json: Json = False, csv: Csv = False) -> None:
    """Show a checkpoint and its files."""
    fmt = chosen(json, csv)
    shared = state(ctx)
    document = shared.client.get_checkpoint(checkpoint_uuid(shared, uuid)).document
    checksums = document.get("checksums") or {}
    files = [
        {"path": path, "size": int(size), "checksum": checksums.get(path)}
        for path, size in sorted((document.get("resources") or {}).items())
    ]
    experiment = Column("Experiment ID", lambda r: (r.get("training") or {}).get("experimentId"))
    columns = [experiment, *CHECKPOINTS, Column("Metadata", "metadata")]
    if document.get("reason"):
        columns.append(Column("Reason", "reason"))
    sections = [Section("Checkpoint", columns, [document]), Section("Files", FILES, files)]
    render.show_sections(sections, fmt, document=document)


Uuids = Annotated[
    list[str],
    typer.Argument(
        help="UUIDs of checkpoints, or the beginnings of some",
        metavar="UUID",
        autocompletion=completion.checkpoints,
    ),
]


def _named(ctx: typer.Context, words: list[str]) -> list[str]:
    """The UUIDs; splits the words at commas too, as upstream's command does."""
    parts = [part.strip() for word in words for part in word.split(",") if part.strip()]
    return checkpoint_uuids(state(ctx), parts)


def _checkpoints(uuids: list[str]) -> str:
    return f"checkpoint {uuids[0]}" if len(uuids) == 1 else f"{len(uuids)} checkpoints"


@app.command("delete")
def delete(ctx: typer.Context, uuids: Uuids, yes: Yes = False) -> None:
    """Delete checkpoints for good."""
    names = _named(ctx, uuids)
    confirm(f"Delete {_checkpoints(names)}? This cannot be undone.", yes)
    client = state(ctx).client
    deletion_id = client.delete_checkpoints(names)
    wait_for_deletion(client, deletion_id, f"deleted {_checkpoints(names)}")


@app.command("rm")
def remove_files(
    ctx: typer.Context,
    uuids: Uuids,
    globs: Annotated[
        list[str] | None,
        typer.Option(
            "--glob",
            help="files to delete, e.g. 'optimizer*' or 'logs/**'; without: sizes and states are refreshed",
            metavar="GLOB",
        ),
    ] = None,
    yes: Yes = False,
) -> None:
    """Delete files of checkpoints for good; no trial can start from these checkpoints afterwards.

    Without --glob nothing is deleted: the sizes and states of the checkpoints become those of the files that
    are in the storage.
    """
    names = _named(ctx, uuids)
    listed = " ".join(globs or ())
    if globs:
        confirm(f"Delete {listed} from {_checkpoints(names)}? This cannot be undone.", yes)
    client = state(ctx).client
    deletion_id = client.remove_checkpoint_files(names, globs or ())
    done = f"deleted {listed} from" if globs else "refreshed"
    wait_for_deletion(client, deletion_id, f"{done} {_checkpoints(names)}")


@app.command("download")
def download(
    ctx: typer.Context,
    uuid: Uuid,
    output_dir: OutputDir = None,
    quiet: Quiet = False,
    mode: Mode = "auto",
) -> None:
    """Download a checkpoint to checkpoints/<UUID>, or to DIR."""
    shared = state(ctx)
    found = shared.client.get_checkpoint(checkpoint_uuid(shared, uuid))
    download_one(found, output_dir, mode, quiet)
