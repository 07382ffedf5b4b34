"""``det version``"""

from __future__ import annotations

import contextlib
from typing import Any

import typer

from determined.__version__ import __version__
from determined.cli.arguments.options import Json
from determined.cli.printing import echo
from determined.cli.state import state

app = typer.Typer(add_completion=False)


@app.command()
def version(ctx: typer.Context, json: Json = False) -> None:
    """Show the versions of det and of the service; it is not an error if the service does not answer."""
    from determined.cli.output import render
    from determined.common.api import errors

    shared = state(ctx)
    address = shared.address
    found: dict[str, Any] = {}
    with contextlib.suppress(errors.APIException):
        found = shared.master_info
    record = {
        "client": {"version": __version__},
        "master": {"url": address.url, "version": found.get("version")},
    }
    if json:
        render.print_json(record)
        return
    echo(f"client: {__version__}")
    echo(f"master: {found.get('version') or 'no answer'} ({address.url})")
