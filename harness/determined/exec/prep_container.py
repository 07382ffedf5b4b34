"""``python3 -m determined.exec.prep_container --rendezvous [-- COMMAND...]``: finds the trial's other
containers, then becomes the command.

Tells the service this container's address, waits until the other containers have told theirs, and writes
``rendezvous_info.json`` for ``determined.get_cluster_info()``. Agents run it before the entrypoint of each
node of a trial on several agents.
"""

from __future__ import annotations

import os
import socket
import sys
from urllib.parse import urlsplit

import psutil

from determined._info import get_cluster_info
from determined.common.api.errors import APIException
from determined.core import _gang
from determined.core._connection import Connection
from determined.launch._fail import fail

USAGE = "usage: python3 -m determined.exec.prep_container --rendezvous [-- COMMAND...]"


def own_address(master_url: str, interface: str | None = None) -> str:
    """The IPv4 address of ``interface``; without it, the one from which the service is reached.

    Raises SystemExit for an interface without an IPv4 address.
    """
    if interface:
        addresses = psutil.net_if_addrs()
        for found in addresses.get(interface, ()):
            if found.family == socket.AF_INET:
                return found.address
        fail(
            f"DET_INTER_NODE_NETWORK_INTERFACE: {interface!r} has no IPv4 address here; choose one of "
            f"{', '.join(sorted(addresses))}"
        )
    url = urlsplit(master_url)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        # Nothing is sent: the kernel only chooses the way.
        probe.connect((url.hostname or "127.0.0.1", url.port or 80))
        address: str = probe.getsockname()[0]
    return address


def main(arguments: list[str]) -> None:
    """Raises SystemExit."""
    command = arguments[2:]
    if arguments[:1] != ["--rendezvous"] or (
        arguments[1:] and (arguments[1] != "--" or not command)
    ):
        fail(USAGE)
    info = get_cluster_info()
    resources_id = os.environ.get("DET_RESOURCES_ID")
    if info is None or not resources_id:
        fail(
            "this is not a container of a cluster: DET_ALLOCATION_ID or DET_RESOURCES_ID is missing"
        )
    interface = os.environ.get("DET_INTER_NODE_NETWORK_INTERFACE")
    connection = Connection(info)
    try:
        address = own_address(info.master_url, interface)
        found = _gang.rendezvous(connection, info.allocation_id, resources_id, address)
    except (APIException, OSError) as error:
        fail(f"rendezvous: {error}")
    finally:
        connection.close()
    found._to_file()
    others = ", ".join(found.container_addrs)
    print(f"container {found.container_rank} of {others}", flush=True)
    if command:
        try:
            os.execvp(command[0], command)
        except OSError as error:
            fail(f"{command[0]}: {error.strerror}")


if __name__ == "__main__":
    main(sys.argv[1:])
