"""Free TCP ports on the loopback interface."""

from __future__ import annotations

import random
import socket
from collections.abc import Collection
from typing import Literal

import psutil

from determined_deployments.local.state import HOST

SEARCHED = 50
"""How many ports are tried, above the wanted one or drawn, before any free one is taken."""
UNUSED = range(20_000, 30_000)
"""Where ports are drawn: below those that systems give to outgoing connections, which would take one
away from a component that is not running."""


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
    """``wanted`` if it is free, else the next free one above it, else any free port. None: drawn."""
    if wanted is None:
        tried = random.sample(UNUSED, SEARCHED)
    else:
        tried = list(range(wanted, min(wanted + SEARCHED, 65536)))
    for port in tried:
        if port not in avoid and is_free(port):
            return port
    while (port := any_free()) in avoid:
        pass
    return port


def listener(port: int, process: psutil.Process) -> Literal["nobody", "itself", "other"]:
    """Who listens on ``port``: ``process`` itself, or somebody else. Where the system does not tell,
    ``process`` has the benefit of the doubt."""
    try:
        socket.create_connection((HOST, port), timeout=1.0).close()
    except OSError:
        return "nobody"
    try:
        own = process.net_connections(kind="tcp")
    except psutil.NoSuchProcess:
        return "other"
    except psutil.AccessDenied:
        return "itself"
    listens = any(c.status == psutil.CONN_LISTEN and c.laddr.port == port for c in own)
    return "itself" if listens else "other"


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
