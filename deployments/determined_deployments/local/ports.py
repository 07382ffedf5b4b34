"""Free TCP ports on the loopback interface."""

from __future__ import annotations

import random
import socket
import time
from typing import Literal

import psutil

from determined_deployments.local.state import HOST

SEARCHED = 50
"""The number of ports to try, above the wanted one or drawn, before any free one is taken."""
UNUSED = range(20_000, 30_000)
"""The range of random ports. It lies below the ports that systems give to outgoing connections, because
such a connection could take the port of a component that is not running.
"""


def is_free(port: int, host: str = HOST) -> bool:
    """True if a server could listen on ``port`` now (ports in TIME_WAIT count as free)."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
            # Binding succeeds beside another SO_REUSEADDR socket that only bound; listening tells.
            probe.listen(1)
        except OSError:
            return False
    return True


def wait_until_free(port: int, seconds: float) -> None:
    """Waits for at most ``seconds``."""
    deadline = time.monotonic() + seconds
    while not is_free(port) and time.monotonic() < deadline:
        time.sleep(0.05)


def any_free(host: str = HOST) -> int:
    """A port that the system considers free."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind((host, 0))
        port: int = probe.getsockname()[1]
    return port


class Claims:
    """Ports that this command has chosen for processes that do not listen yet. Commands of other clusters
    do not use them until :meth:`close`. Other programs may.
    """

    def __init__(self) -> None:
        self._held: list[socket.socket] = []

    def take(self, port: int) -> bool:
        """Claims ``port``; False when it is claimed already."""
        # By a UDP socket of that number: unlike a bound TCP socket it is in nobody's way, unlike a
        # file it vanishes with its process and is seen by other users, too.
        claim = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            claim.bind((HOST, port))
        except OSError:
            claim.close()
            return False
        self._held.append(claim)
        return True

    def close(self) -> None:
        while self._held:
            self._held.pop().close()

    def __enter__(self) -> Claims:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def pick(wanted: int | None, claims: Claims) -> int:
    """Claim ``wanted`` if it is free, else the next free port above it, else any free port. None: a random
    port.
    """
    if wanted is None:
        tried = random.sample(UNUSED, SEARCHED)
    else:
        tried = list(range(wanted, min(wanted + SEARCHED, 65536)))
    for port in tried:
        if is_free(port) and claims.take(port):
            return port
    while not claims.take(port := any_free()):
        pass
    return port


def listener(port: int, process: psutil.Process) -> Literal["nobody", "itself", "other"]:
    """Tell if ``process`` or another process listens on ``port``. If the system does not tell, ``process`` is
    assumed to listen."""
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
    """The process that listens on ``port``, for messages: ``"pid 12 (nginx)"`` or ``"another program"``."""
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
