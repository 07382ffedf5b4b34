"""``det template`` (``det tpl``)"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from determined.cli.arguments.options import Csv, Json, chosen
from determined.cli.errors import talk
from determined.cli.groups import group
from determined.cli.output import render
from determined.cli.output.render import Column, Format
from determined.cli.printing import echo
from determined.cli.state import state

if TYPE_CHECKING:
    from determined.experimental._template import Template

app = group("Templates: values that several configurations share, by a name.", default="list")
values = group("Change a part of a template.")
app.add_typer(values, name="set-value")

Name = Annotated[str, typer.Argument(metavar="NAME")]
File = Annotated[Path, typer.Argument(help="YAML file with fields of configurations")]
Workspace = Annotated[
    str | None, typer.Option("-w", "--workspace-name", help="workspace of the template")
]


def _config(one: Mapping[str, Any]) -> str:
    import yaml

    return str(yaml.safe_dump(one["config"], sort_keys=False)).rstrip()


NAMES = (
    Column("Name", "name"),
    Column("Workspace", "workspaceName"),
)
DETAILS = (*NAMES, Column("Config", _config))
SOURCES = (
    Column("Field", "path"),
    Column("Value", "value"),
    Column("From", "source"),
)


def _read(file: Path) -> dict[str, Any]:
    """The file's fields, checked here, where lines are known. Raises ConfigError."""
    from determined import expconf

    return expconf.check_template(expconf.read_yaml(file))


def _say(template: Template, verb: str) -> None:
    for remark in template.remarks:
        talk(f"warning: {remark}")
    talk(f"{verb} template {template.name}")


@app.command("list|ls")
def list_templates(
    ctx: typer.Context,
    details: Annotated[
        bool, typer.Option("-d", "--details", help="also show their configurations")
    ] = False,
    json: Json = False,
    csv: Csv = False,
) -> None:
    """List the templates."""
    found = state(ctx).templates.list_templates()
    render.show(DETAILS if details else NAMES, found, chosen(json, csv), what="templates")


@app.command("describe")
def describe(ctx: typer.Context, name: Name, json: Json = False) -> None:
    """Print a template's configuration as YAML."""
    found = state(ctx).templates.get_template(name)
    if json:
        render.print_json(found.document)
    else:
        echo(_config(found.document))


@app.command("create")
def create(ctx: typer.Context, name: Name, file: File, workspace_name: Workspace = None) -> None:
    """Create a template.

    Experiments take its values with det experiment create --template NAME, tasks with det cmd run --template
    NAME and the like. Every user can read it.
    """
    shared = state(ctx)
    within = None
    if workspace_name is not None:
        within = shared.workspaces.get_workspace(workspace_name).id
    made = shared.templates.create_template(name, _read(file), workspace_id=within)
    _say(made, "created")


@app.command("set")
def set_template(ctx: typer.Context, name: Name, file: File) -> None:
    """Create a template, or replace its configuration.

    Determined's releases call this deprecated; create and set-value config do the one or the other.
    """
    _say(state(ctx).templates.set_template(name, _read(file)), "set")


@values.command("config")
def set_config(ctx: typer.Context, name: Name, file: File) -> None:
    """Replace a template's configuration."""
    template = state(ctx).templates.get_template(name)
    template.set_config(_read(file))
    _say(template, "changed")


@app.command("remove|rm")
def remove(ctx: typer.Context, name: Name) -> None:
    """Delete a template. What was made with it keeps its values."""
    state(ctx).templates.get_template(name).delete()
    talk(f"removed template {name}")


@app.command("apply")
def apply(
    ctx: typer.Context,
    name: Name,
    config_file: Annotated[Path, typer.Argument(help="YAML file of an experiment")],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="show every value, not only those of the template")
    ] = False,
    json: Json = False,
    csv: Csv = False,
) -> None:
    """Show the values that an experiment would have by a template, and where they come from.

    With --dry-run, --json and --csv it is the whole configuration. Nothing is submitted: det experiment
    create --template NAME does that.
    """
    found = state(ctx).templates.get_template(name).explain(config_file)
    fmt = chosen(json, csv)
    if dry_run or fmt is not Format.TABLE:
        render.show(SOURCES, found, fmt, what="values")
        return
    shown = [one for one in found if f"template {name}" in one.source]
    if shown:
        render.show(SOURCES, shown, fmt, what="values")
    else:
        talk(
            f"template {name} sets no value of this configuration: others that win over it set them"
        )
    others = Counter(one.source for one in found if one not in shown)
    words = ", ".join(f"{number} from {source}" for source, number in others.most_common())
    talk(f"not shown (--dry-run shows all): {words}")
