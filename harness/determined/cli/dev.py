"""``det dev``"""

from __future__ import annotations

import typer

from determined.cli.groups import group
from determined.cli.printing import echo
from determined.cli.state import state

app = group("For those who write programs that use the REST API.")


@app.command("auth-token")
def auth_token(ctx: typer.Context) -> None:
    """Print the token of your login, for programs that take one (MLFLOW_TRACKING_TOKEN, curl).

    Whoever has it is you until you log out.
    """
    # `det` has looked whether the service still takes it, or has just got it.
    echo(str(state(ctx).session.token))
