"""``det master``"""

from __future__ import annotations

from typing import Annotated

import typer

from determined.cli.arguments.options import Json
from determined.cli.groups import group
from determined.cli.output import render
from determined.cli.printing import echo
from determined.cli.state import state

app = group("The service.")


@app.command("info")
def info(
    ctx: typer.Context,
    json: Json = False,
    yaml: Annotated[bool, typer.Option("--yaml", help="print YAML")] = False,
) -> None:
    """Show the service's version and settings; no login is needed."""
    if json and yaml:
        raise typer.BadParameter("give --json or --yaml, not both")
    found = state(ctx).master_info
    if json:
        render.print_json(found)
        return
    if yaml:
        import yaml as writer

        # The session's answer is a kind of dict that YAML does not know.
        echo(writer.safe_dump(dict(found)), end="")
        return
    records = [{"name": name, "value": value} for name, value in found.items()]
    columns = (render.Column("Name", "name"), render.Column("Value", "value"))
    render.show(columns, records, render.Format.TABLE)
