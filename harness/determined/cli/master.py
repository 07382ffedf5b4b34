"""``det master``"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from determined.cli.arguments.options import Json, Yaml
from determined.cli.errors import talk
from determined.cli.groups import group
from determined.cli.output import log_lines, render
from determined.cli.state import state

app = group("The service.")
config = group("The cluster configuration.", default="show")
app.add_typer(config, name="config")


@app.command("info")
def info(
    ctx: typer.Context,
    json: Json = False,
    yaml: Yaml = False,
) -> None:
    """Show the service's version and settings; no login is needed."""
    if json and yaml:
        raise typer.BadParameter("give --json or --yaml, not both")
    found = state(ctx).master_info
    if json:
        render.print_json(found)
        return
    if yaml:
        render.print_yaml(found)
        return
    records = [{"name": name, "value": value} for name, value in found.items()]
    columns = (render.Column("Name", "name"), render.Column("Value", "value"))
    render.show(columns, records, render.Format.TABLE)


@app.command("logs")
def logs(
    ctx: typer.Context,
    follow: Annotated[
        bool, typer.Option("-f", "--follow", help="keep printing, like tail -f")
    ] = False,
    tail: log_lines.Tail = None,
    json: log_lines.JsonLines = False,
) -> None:
    """Print the service's own log, as far as it is still in its memory; for administrators."""
    found = state(ctx).cluster.iter_service_log(follow=follow, tail=tail)
    log_lines.write((entries if json else _readable(entries) for entries in found), json)


def _readable(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The entries as a log file has them."""
    return [
        {
            "message": f"{one['timestamp']} [{one['level'].removeprefix('LOG_LEVEL_')}]: {one['message']}"
        }
        for one in entries
    ]


@config.command("show")
def show_config(ctx: typer.Context, json: Json = False, yaml: Yaml = False) -> None:
    """Show the configuration in force as YAML, secrets masked; for administrators."""
    if json and yaml:
        raise typer.BadParameter("give --json or --yaml, not both")
    found = state(ctx).cluster.get_cluster_config()
    if json:
        render.print_json(found["config"])
    else:
        render.print_yaml(found["config"])
    if found.get("refusal"):
        talk(f"the configuration file is not in force:\n{found['refusal']}")
