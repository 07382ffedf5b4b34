"""Free TCP ports on the loopback interface."""

from __future__ import annotations

import socket
from collections.abc import Collection

import psutil

from determined_deployments.local.state import HOST

SEARCHED = 50
"""How many ports above the wanted one are tried before any free one is taken."""


def is_free(port: int, host: str = HOST) -> bool:
    """Whether a server could listen on ``port`` now (ports in TIME_WAIT count as free)."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
            # Binding succeeds beside another SO_REUSEADDR socket that only bound; listening tells.
            probe.listen(1)
        except OSError:
            return False
    return True


def any_free(host: str = HOST) -> int:
    """A port the system considers free."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind((host, 0))
        port: int = probe.getsockname()[1]
    return port


def pick(wanted: int | None, avoid: Collection[int] = ()) -> int:
    """``wanted`` if it is free, else the next free one above it, else any free port."""
    if wanted is not None:
        for port in range(wanted, min(wanted + SEARCHED, 65536)):
            if port not in avoid and is_free(port):
                return port
    while (port := any_free()) in avoid:
        pass
    return port


def holder(port: int) -> str:
    """Who listens on ``port``, for messages: ``"pid 12 (nginx)"`` or ``"another program"``."""
    try:
        connections = psutil.net_connections(kind="tcp")
        for connection in connections:
            if (
                connection.status == psutil.CONN_LISTEN
                and connection.laddr
                and connection.laddr.port == port
                and connection.pid
            ):
                return f"pid {connection.pid} ({psutil.Process(connection.pid).name()})"
    except psutil.Error:
        pass
    return "another program"
