"""``det master``"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from determined.cli.arguments.options import Json, Yaml
from determined.cli.errors import talk
from determined.cli.groups import group
from determined.cli.output import format as f
from determined.cli.output import log_lines, render
from determined.cli.state import state

app = group("The service.")
config = group("The cluster configuration.", default="show")
app.add_typer(config, name="config")
message = group("What administrators tell all users.")
app.add_typer(message, name="cluster-message")

MESSAGE = (
    render.Column("Message", "message"),
    render.Column("Begins", f.field("startTime", f.time)),
    render.Column("Ends", f.field("endTime", f.time)),
)


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


@message.command("set")
def set_message(
    ctx: typer.Context,
    text: Annotated[str, typer.Option("-m", "--message", help="the message", metavar="TEXT")],
    start: Annotated[
        str | None,
        typer.Option(
            "-s",
            "--start",
            help="when users begin to see it, such as 2026-10-26T23:17:12Z; default: now",
            metavar="TIME",
        ),
    ] = None,
    end: Annotated[
        str | None,
        typer.Option(
            "-e",
            "--end",
            help="when users see it no more; default: it stays until it is cleared",
            metavar="TIME",
        ),
    ] = None,
    duration: Annotated[
        str | None,
        typer.Option(
            "-d",
            "--duration",
            help="in place of --end: the time from its start on, such as 90m, 24h, 5d, 2w",
            metavar="DURATION",
        ),
    ] = None,
) -> None:
    """Tell all users a message, in place of the one before; for administrators.

    `det` shows it at each command, until its end. Everybody who reaches the service can read it.
    """
    if end is not None and duration is not None:
        raise typer.BadParameter("give --end or --duration, not both")
    state(ctx).cluster.set_cluster_message(text, start=start, end=end, duration=duration)
    talk("set the message")


@message.command("get")
def get_message(ctx: typer.Context, json: Json = False, yaml: Yaml = False) -> None:
    """Show the message to all users; to administrators also one that begins later."""
    if json and yaml:
        raise typer.BadParameter("give --json or --yaml, not both")
    found = state(ctx).cluster.get_cluster_message()
    if json:
        render.print_json({"clusterMessage": found})
    elif yaml:
        render.print_yaml({"clusterMessage": found})
    else:
        render.show(MESSAGE, [] if found is None else [found], render.Format.TABLE, what="messages")


@message.command("clear")
def clear_message(
    ctx: typer.Context,
    clear: Annotated[
        bool, typer.Option("-c", "--clear", help="nothing else, as in Determined", hidden=True)
    ] = False,
) -> None:
    """Take the message away; for administrators."""
    state(ctx).cluster.clear_cluster_message()
    talk("cleared the message")
