"""Finding a cluster to submit to, or starting one on this machine."""

from __future__ import annotations

import subprocess
import sys

from determined.cli.errors import CliError, talk
from determined.cli.state import State
from determined.common import installation
from determined.common.master import AddressSource


def answers(shared: State) -> bool:
    """Whether a cluster answers at the address, and is the expected one."""
    from determined.common.api import errors

    try:
        return shared.address.is_meant(shared.master_info)
    except errors.APIException:
        return False


def knows_us(shared: State) -> bool:
    """Whether the user is logged in to the cluster; never asks for a password."""
    from determined.common.api import authentication, errors

    try:
        with authentication.connect(
            shared.address, shared.user, ask=None, transport=shared.transport
        ):
            return True
    except errors.UnauthenticatedException:
        return False


def reason_to_start(shared: State) -> str | None:
    """The reason for which :func:`ensure_cluster` would start a cluster; None if it would not."""
    if shared.address.chosen:
        return None
    url = shared.address.url
    if not answers(shared):
        return f"no cluster answers at {url}"
    if shared.address.source is AddressSource.DEFAULT and not knows_us(shared):
        return f"not logged in to the cluster at {url} (`det user login`)"
    return None


def ensure_cluster(shared: State) -> None:
    """Starts the local cluster, unless a cluster answers or the user gave an address.

    A cluster that answers at the default address is used only if the user is logged in to it. Raises
    CliError if the local cluster does not start.
    """
    reason = reason_to_start(shared)
    if reason is None:
        return
    if (missing := installation.no_platform()) is not None:
        raise CliError(
            f"{reason}; give the address of a cluster with -m or DET_MASTER. None can be started on this "
            f"machine: {missing}"
        )
    talk(f"{reason}: starting a cluster on this machine")
    code = start_local_cluster()
    if code != 0:
        raise CliError(
            f"the local cluster did not start (exit code {code});"
            " `det deploy local logs` shows the logs of its parts"
        )
    shared.forget_address()


def start_local_cluster() -> int:
    """Runs ``det deploy local cluster-up`` with its output on stderr; returns its exit code."""
    # -P: the user's working directory may contain a module with the name of a library (typer.py).
    command = [sys.executable, "-P", "-m", "determined.cli", "deploy", "local", "cluster-up"]
    return subprocess.run(command, stdout=2, check=False).returncode
