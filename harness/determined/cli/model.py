"""``det model`` (``det m``)"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from determined.cli import completion
from determined.cli.arguments.abbreviated import checkpoint_uuid
from determined.cli.arguments.options import Csv, Json, Order, OutputDir, Quiet, chosen
from determined.cli.errors import CliError, talk
from determined.cli.experiment.lists import CHECKPOINTS
from determined.cli.groups import group
from determined.cli.output import differences, render
from determined.cli.output import format as f
from determined.cli.output.downloads import Mode, download_one
from determined.cli.output.render import Column, Format, Record, Section
from determined.cli.state import state

if TYPE_CHECKING:
    from determined.experimental import Model

app = group("Models: checkpoints that are kept under a name and a number.", default="list")
aliases = group("Names such as champion, which stand for one version of a model.")
app.add_typer(aliases, name="alias")

LATEST = "-1"

Name = Annotated[
    str, typer.Argument(help="the model's name or id", autocompletion=completion.models)
]
Version = Annotated[
    str,
    typer.Argument(
        help="a version's number, or an alias (@champion or champion)", metavar="VERSION"
    ),
]
Number = Annotated[int, typer.Argument(help="a version's number", metavar="VERSION", min=1)]
Workspace = Annotated[
    str | None,
    typer.Option("-w", "--workspace-name", help="its workspace", metavar="NAME"),
]

MODELS = (
    Column("ID", "id"),
    Column("Name", "name"),
    Column("Description", "description", spare=3),
    Column("Owner", "username", spare=6),
    Column("Versions", "numVersions"),
    Column("Aliases", lambda r: _pairs(r.get("aliases"))),
    Column("Labels", lambda r: ", ".join(r.get("labels") or ())),
    Column("Created", f.field("creationTime", f.time), spare=7),
    Column("Updated", f.field("lastUpdatedTime", f.time), spare=4),
)
NOTED = (
    Column("Workspace", "workspaceName", spare=9),
    Column("Archived", "archived", spare=8),
    Column("Tags", lambda r: _pairs(r.get("tags"))),
    Column("Metadata", lambda r: r.get("metadata") or None),
)


def _pairs(found: Mapping[str, Any] | None) -> str:
    return ", ".join(f"{name}: {value}" for name, value in sorted((found or {}).items()))


def _of_checkpoint(column: Column) -> Column:
    return Column(column.title, lambda r: column.value(r["checkpoint"]))


VERSIONS = (
    Column("Version", "version"),
    Column("Aliases", lambda r: ", ".join(r.get("aliases") or ())),
    Column("Name", "name"),
    Column("Comment", "comment", spare=4),
    *(
        _of_checkpoint(one)
        for one in CHECKPOINTS
        if one.title in ("Trial ID", "Total Batches", "Searcher Metric", "Validation Metrics")
    ),
    Column("Checkpoint UUID", lambda r: r["checkpoint"]["uuid"]),
    Column("Registered By", "username", spare=5),
    Column("Registered", f.field("creationTime", f.time)),
)


def _training(record: Record) -> Record:
    return record["checkpoint"].get("training") or {}


def _lineage(name: str) -> Any:
    return lambda r: (r.get("lineage") or {}).get(name) or None


LINEAGE = (
    Column("Experiment ID", _lineage("experimentId")),
    Column("Experiment", _lineage("experimentName")),
    Column("Owner", _lineage("experimentOwner"), spare=6),
    Column("Trial ID", lambda r: _training(r).get("trialId")),
    Column("H-Params", lambda r: f.pairs(_training(r).get("hparams") or {})),
    Column("Data", _lineage("data")),
    Column("Trial Metadata", _lineage("trialMetadata")),
    Column("Code", _lineage("modelDefinitionHash")),
    Column("Warm Start", _lineage("warmStartCheckpoint")),
)
MOVES = (
    Column("Alias", "alias"),
    Column("From Version", "fromVersion"),
    Column("To Version", "toVersion"),
    Column("Moved By", "username", spare=2),
    Column("Moved", f.field("time", f.time)),
)


def reference(ctx: typer.Context, name: str) -> Model:
    """The SDK's object for a model, without a request to the service."""
    from determined.experimental import Model

    return Model(state(ctx).session, name)


def _meant(version: str) -> int | str:
    """A number, or an alias, which may be written with an "@" before it."""
    if version == LATEST or (version.isascii() and version.isdecimal()):
        return int(version)
    return version.removeprefix("@")


@app.command("create")
def create(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(help="unique, whatever its case")],
    workspace: Workspace = None,
    description: Annotated[
        str | None, typer.Option("--description", help="what it is", metavar="TEXT")
    ] = None,
    json: Json = False,
) -> None:
    """Add a model to the registry."""
    made = state(ctx).models.create_model(name, description, workspace_name=workspace)
    made.reload()
    render.show(MODELS, [made], chosen(json, csv=False), document=made.document)


class ModelSort(StrEnum):
    """The sort keys of the list."""

    NAME = "name"
    DESCRIPTION = "description"
    CREATION_TIME = "creation_time"
    LAST_UPDATED_TIME = "last_updated_time"


@app.command("list|ls")
def list_models(
    ctx: typer.Context,
    workspaces: Annotated[
        str | None,
        typer.Option(
            "-w", "--workspace-names", help="names, separated by commas", metavar="NAME,..."
        ),
    ] = None,
    sort_by: Annotated[
        ModelSort, typer.Option("--sort-by", help="the column to sort by")
    ] = ModelSort.LAST_UPDATED_TIME,
    order_by: Annotated[Order, typer.Option("--order-by", help="the direction")] = Order.ASC,
    json: Json = False,
    csv: Csv = False,
) -> None:
    """List the models of the registry."""
    from determined.experimental._enums import ModelSortBy, OrderBy

    found = state(ctx).models.list_models(
        ModelSortBy[sort_by.name],
        OrderBy[order_by.name],
        workspace_names=workspaces.split(",") if workspaces else None,
    )
    render.show(MODELS, found, chosen(json, csv), what="models")


@app.command("describe")
def describe(
    ctx: typer.Context,
    name: Name,
    version: Annotated[
        str,
        typer.Option(
            "--version", help="a number or an alias; -1: the latest version", metavar="VERSION"
        ),
    ] = LATEST,
    json: Json = False,
    csv: Csv = False,
) -> None:
    """Show a model, one of its versions, and where that version comes from."""
    fmt = chosen(json, csv)
    model = state(ctx).models.get_model(name)
    found = _found(reference(ctx, name), version)
    sections = [Section("Model", [*MODELS, *NOTED], [model.document])]
    if found is not None:
        sections.append(Section("Version", VERSIONS, [found]))
        sections.append(Section("Lineage", LINEAGE, [found]))
    document = {**model.document, "modelVersion": found}
    render.show_sections(sections, fmt, document=document)
    if found is None and fmt is Format.TABLE:
        talk("it has no versions yet: det model register-version NAME UUID")


def _found(model: Model, version: str) -> dict[str, Any] | None:
    found = model.get_version(_meant(version))
    return None if found is None else found.document


@app.command("list-versions")
def list_versions(ctx: typer.Context, name: Name, json: Json = False, csv: Csv = False) -> None:
    """List the versions of a model, the latest first."""
    fmt = chosen(json, csv)
    listed = [version.document for version in reference(ctx, name).list_versions()]
    render.show(VERSIONS, listed, fmt, document={"modelVersions": listed}, what="versions")


@app.command("register-version")
def register_version(
    ctx: typer.Context,
    name: Name,
    uuid: Annotated[
        str,
        typer.Argument(
            help="the checkpoint's UUID, or the beginning of it",
            autocompletion=completion.checkpoints,
        ),
    ],
    json: Json = False,
) -> None:
    """Make a checkpoint the next version of a model. It cannot be deleted from then on."""
    model = state(ctx).models.get_model(name)
    made = model.register_version(checkpoint_uuid(state(ctx), uuid))
    made.reload()
    document = {"modelVersion": made.document}
    render.show(VERSIONS, [made], chosen(json, csv=False), document=document)


@app.command("download")
def download(
    ctx: typer.Context,
    name: Name,
    version: Annotated[
        str,
        typer.Argument(
            help="a number or an alias (@champion or champion); default: the latest version",
            metavar="[VERSION]",
            show_default=False,
        ),
    ] = LATEST,
    output_dir: OutputDir = None,
    quiet: Quiet = False,
    mode: Mode = "auto",
) -> None:
    """Download the checkpoint of a version to checkpoints/<UUID>, or to DIR."""
    found = state(ctx).models.get_model(name).get_version(_meant(version))
    if found is None:
        raise CliError(f"model {name!r} has no versions yet: det model register-version NAME UUID")
    assert found.checkpoint is not None
    download_one(found.checkpoint, output_dir, mode, quiet)


@app.command("delete-version")
def delete_version(ctx: typer.Context, name: Name, version: Number) -> None:
    """Delete a version and its aliases. Its checkpoint stays, and may be deleted again."""
    reference(ctx, name).delete_version(version)
    talk(f"deleted version {version} of model {name!r}; its checkpoint is still there")


@app.command("delete")
def delete(ctx: typer.Context, name: Name) -> None:
    """Delete a model with its versions and aliases. Their checkpoints stay, and may be deleted again."""
    reference(ctx, name).delete()
    talk(f"deleted model {name!r}; its checkpoints are still there")


@app.command("archive")
def archive(ctx: typer.Context, name: Name) -> None:
    """Archive a model: it keeps its versions, and changes no more."""
    reference(ctx, name).archive()
    talk(f"archived model {name!r}")


@app.command("unarchive")
def unarchive(ctx: typer.Context, name: Name) -> None:
    """Let an archived model change again."""
    reference(ctx, name).unarchive()
    talk(f"unarchived model {name!r}")


@app.command("move")
def move(ctx: typer.Context, name: Name, workspace: Workspace = None) -> None:
    """Move a model to another workspace."""
    if workspace is None:
        raise typer.BadParameter("say where to: -w NAME")
    reference(ctx, name).move_to_workspace(workspace)
    talk(f"model {name!r} is in workspace {workspace!r}")


@app.command("diff")
def diff(
    ctx: typer.Context, name: Name, first: Version, second: Version, json: Json = False
) -> None:
    """Compare two versions: hyperparameters, metrics, configuration, code and data."""
    model = reference(ctx, name)
    versions = [_found(model, one) for one in (first, second)]
    if versions[0] is None or versions[1] is None:
        raise CliError(f"model {name!r} has no versions yet")
    one, other = versions[0], versions[1]
    parts = {
        "hyperparameters": lambda v: _training(v).get("hparams"),
        "metrics": _metrics,
        "lineage": lambda v: {
            key: value
            for key, value in (v.get("lineage") or {}).items()
            if key in ("trialId", "experimentId", "modelDefinitionHash", "trialMetadata")
        },
        "configuration": lambda v: _training(v).get("experimentConfig"),
    }
    found = {
        part: differences.differences(read(one), read(other), ids=part == "lineage")
        for part, read in parts.items()
    }
    numbers = [one["version"], other["version"]]
    columns = differences.columns(*(f"Version {number}" for number in numbers))
    sections = [
        Section(part.capitalize(), columns, records) for part, records in found.items() if records
    ]
    document = {"versions": numbers, **found}
    render.show_sections(sections, chosen(json, csv=False), document=document)
    if numbers[0] == numbers[1]:
        talk(f"{first} and {second} are the same version of model {name!r}: {numbers[0]}")
    elif not sections and not json:
        talk(f"versions {numbers[0]} and {numbers[1]} differ in nothing but their numbers")


def _metrics(version: Record) -> dict[str, Any]:
    training = _training(version)
    return {
        "validation": (training.get("validationMetrics") or {}).get("avgMetrics") or {},
        "training": (training.get("trainingMetrics") or {}).get("avgMetrics") or {},
    }


Alias = Annotated[str, typer.Argument(help="such as champion: letters, digits, _ and -")]


@aliases.command("set")
def set_alias(ctx: typer.Context, name: Name, alias: Alias, version: Number) -> None:
    """Let an alias stand for a version; if it stands for another one, it moves."""
    before = reference(ctx, name).set_alias(alias, version)
    moved = "" if before in (None, version) else f", no longer for version {before}"
    still = "still " if before == version else ""
    talk(f"alias {alias!r} of model {name!r} {still}stands for version {version}{moved}")


@aliases.command("delete|rm")
def delete_alias(ctx: typer.Context, name: Name, alias: Alias) -> None:
    """Delete an alias. The version and the alias's history stay."""
    before = reference(ctx, name).delete_alias(alias)
    # Not known when the answer was lost on its way.
    stood_for = "" if before is None else f", which stood for version {before}"
    talk(f"deleted alias {alias!r} of model {name!r}{stood_for}")


@aliases.command("history")
def history(
    ctx: typer.Context,
    name: Name,
    alias: Annotated[str | None, typer.Argument(help="default: all aliases")] = None,
    json: Json = False,
    csv: Csv = False,
) -> None:
    """Show who moved the aliases of a model when, and from which version."""
    found = reference(ctx, name).alias_history(alias)
    render.show(MOVES, found, chosen(json, csv), what="moves")
