"""``det prefect``"""

from __future__ import annotations

import shlex

import typer

from determined.cli.errors import CliError
from determined.cli.groups import group
from determined.cli.printing import echo
from determined.cli.state import state

app = group("The Prefect server that the cluster runs on.")


@app.command("env")
def env(ctx: typer.Context) -> None:
    """Print what a shell needs for Prefect's own commands and for flows of yours: eval "$(det prefect env)"

    Only who may read the local cluster's files gets it: Prefect's password is an administrator's right.
    """
    from determined.common.wire import no_telemetry

    found = state(ctx)
    local = found.address.local
    if local is None:
        raise CliError(
            f"{found.address.url} is not the local cluster of this account ({found.origin}): whoever runs "
            "that cluster knows the address and the password of its Prefect; set PREFECT_API_URL and "
            "PREFECT_API_AUTH_STRING to them"
        )
    variables = {
        "PREFECT_API_URL": local.prefect_api_url,
        "PREFECT_API_AUTH_STRING": local.prefect_auth or "",
        **no_telemetry.VARIABLES,
    }
    for name, value in variables.items():
        echo(f"export {name}={shlex.quote(value)}")
