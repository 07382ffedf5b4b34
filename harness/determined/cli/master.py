"""``det master``"""

from __future__ import annotations

from typing import Annotated

import typer

from determined.cli import _render
from determined.cli._groups import group
from determined.cli._options import Json
from determined.cli._state import state

app = group("The service.")


@app.command("info")
def info(
    ctx: typer.Context,
    json: Json = False,
    yaml: Annotated[bool, typer.Option("--yaml", help="print YAML")] = False,
) -> None:
    """What the service says of itself; no login is needed."""
    if json and yaml:
        raise typer.BadParameter("--json and --yaml exclude each other")
    found = state(ctx).master_info
    if json:
        _render.print_json(found)
        return
    if yaml:
        import yaml as writer

        typer.echo(writer.safe_dump(found), nl=False)
        return
    records = [{"name": name, "value": value} for name, value in found.items()]
    columns = (_render.Column("Name", "name"), _render.Column("Value", "value"))
    _render.show(columns, records, _render.Format.TABLE)
