"""Having a cluster to submit to: the one that answers, else a new one on this machine."""

from __future__ import annotations

import subprocess
import sys

from determined.cli._errors import CliError, talk
from determined.cli._state import State
from determined.common.master import Source


def answers(shared: State) -> bool:
    """Whether the cluster that is meant answers at the address known now."""
    from determined.common.api import errors

    try:
        return shared.address.is_meant(shared.master_info)
    except errors.APIException:
        return False


def knows_us(shared: State) -> bool:
    """Whether there are credentials for the cluster; asks for none."""
    from determined.common.api import authentication, errors

    try:
        with authentication.connect(
            shared.address, shared.user, ask=None, transport=shared.transport_or_tls()
        ):
            return True
    except errors.UnauthenticatedException:
        return False


def reason_to_start(shared: State) -> str | None:
    """Why :func:`ensure_cluster` would start a cluster, in words; None: it would not."""
    if shared.address.chosen:
        return None
    url = shared.address.url
    if not answers(shared):
        return f"no cluster answers at {url}"
    if shared.address.source is Source.DEFAULT and not knows_us(shared):
        return f"not logged in to the cluster at {url} (`det user login`)"
    return None


def ensure_cluster(shared: State) -> None:
    """Starts the local cluster unless the service answers, or the user named another address.

    A cluster that merely happens to listen at the default address is used by those who are logged
    in to it. Raises CliError when the local cluster does not start.
    """
    reason = reason_to_start(shared)
    if reason is None:
        return
    talk(f"{reason}: starting one on this machine")
    code = start_local_cluster()
    if code != 0:
        raise CliError(
            f"the local cluster did not start (exit code {code});"
            " `det deploy local logs` shows what its parts said"
        )
    shared.forget_address()


def start_local_cluster() -> int:
    """Runs ``det deploy local cluster-up``; its exit code. What it says goes to stderr."""
    # -P: a module of the working directory (the user's own typer.py) must not be taken for ours.
    command = [sys.executable, "-P", "-m", "determined.cli", "deploy", "local", "cluster-up"]
    return subprocess.run(command, stdout=2, check=False).returncode
