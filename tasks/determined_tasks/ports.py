"""Ports of a task that the service's proxy reaches: which they are, and when a server listens at them.

A port of the platform's range is reserved while its leg lives, so that two tasks of one machine never get
the same one. That a port is ready is found out here, beside the process: only here can be seen that it is
the task's own process that listens, and not another's at the same number.
"""

from __future__ import annotations

import contextlib
import http.client
import random
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import urlsplit

import psutil

from determined.common.wire.legs import FREE_PORTS, LegSpec, Port, PortState

LISTEN_HOST = "DET_LISTEN_HOST"
"""The variable that says where a server has to listen, to be reached through the service."""
LOOPBACK = "127.0.0.1"

LOOK_S = 0.1
LOOK_AGAIN_S = 2.0
"""Once it is ready: another server may listen there later."""
CONNECT_S = 2.0
WAY_PAUSES_S = (0.2, 0.5, 1.0, 2.0, 4.0)


class PortsError(Exception):
    """The task gets no port; the message says why."""


@dataclass
class Reserved:
    """The order's ports with their numbers. The reservations end with :meth:`free`, or with this process."""

    ports: list[Port]
    held: list[socket.socket] = field(default_factory=list)

    def free(self) -> None:
        for one in self.held:
            one.close()
        self.held.clear()

    def environment(self, listen_host: str = LOOPBACK) -> dict[str, str]:
        """The variables that tell the task's process its ports."""
        if not self.ports:
            return {}
        found = {port.env: str(port.port) for port in self.ports if port.env}
        return {LISTEN_HOST: listen_host, **found}


def reserve(wanted: Iterable[Port]) -> Reserved:
    """Raises PortsError when the whole range is in use."""
    found = Reserved([])
    for port in wanted:
        if port.port:
            found.ports.append(port)
            continue
        number, held = free_one()
        found.held.extend(held)
        found.ports.append(replace(port, port=number))
    return found


def free_one() -> tuple[int, list[socket.socket]]:
    """A number of the range, and what keeps it. Raises PortsError."""
    begin = random.SystemRandom().randrange(len(FREE_PORTS))
    for number in (*FREE_PORTS[begin:], *FREE_PORTS[:begin]):
        held = _hold(number)
        if held is None:
            continue
        with socket.socket() as tried:
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                tried.bind(("0.0.0.0", number))
            except OSError:
                for one in held:
                    one.close()
                continue
        return number, held
    raise PortsError(
        f"every port from {FREE_PORTS[0]} to {FREE_PORTS[-1]} of this machine is in use: end tasks that"
        " nobody needs, or start this one elsewhere"
    )


def _hold(number: int) -> list[socket.socket] | None:
    """A name that one process of the machine can have, and that the kernel frees at its end; None: another
    process has it."""
    if sys.platform != "linux":
        return []
    held = socket.socket(socket.AF_UNIX)
    try:
        held.bind(f"\0determined-port-{number}")
    except OSError:
        held.close()
        return None
    return [held]


def own_address(master: str) -> str:
    """This machine's address as the service at ``master`` sees it; loopback when that is this machine.

    Raises OSError: there is no way to the service, also after some seconds.
    """
    url = urlsplit(master)
    for pause in (*WAY_PAUSES_S, None):
        try:
            return _way(url.hostname or LOOPBACK, url.port or 80)
        except OSError as error:
            if pause is None:
                # To take loopback for it would lead visitors to the service's own machine.
                raise OSError(f"no way to the service at {master}: {error}") from error
            time.sleep(pause)
    raise AssertionError


def _way(host: str, port: int) -> str:
    # Nothing is sent: the kernel is asked for the way.
    infos = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)
    family, kind, protocol, _, where = infos[0]
    with socket.socket(family, kind, protocol) as asked:
        asked.connect(where)
        address = str(asked.getsockname()[0])
    # The service has an address of this machine.
    return LOOPBACK if address in (where[0], "::1", LOOPBACK) else address


class PortWatch:
    """Checks in a thread if the ports can be reached, and reports each change.

    ``report`` may wait for the service. ``pids``: whose listening counts, they and their descendants; None:
    anybody's.
    """

    def __init__(
        self,
        ports: list[Port],
        address: str,
        report: Callable[[PortState], bool],
        say: Callable[[str, str], None],
        pids: Callable[[], list[int]] | None,
    ) -> None:
        self._ports = ports
        self._address = address
        self._report = report
        self._say = say
        self._pids = pids
        self._ended = threading.Event()
        self._told: dict[str, PortState] = {}
        # The listening socket that was last found to be the task's.
        self._inodes: dict[int, frozenset[str]] = {}
        self._thread = threading.Thread(target=self._run, name="ports", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def end(self) -> None:
        """Returns without waiting: the thread may be about to report something that nobody needs any more."""
        self._ended.set()

    def _run(self) -> None:
        while not self._ended.is_set():
            for port in self._ports:
                try:
                    found = self._look(port)
                except (OSError, psutil.Error) as error:
                    found = PortState(
                        port.name, False, f"port {port.port} cannot be looked at: {error}"
                    )
                self._tell(port, found)
            waits = any(not told.ready for told in self._told.values())
            self._ended.wait(LOOK_S if waits else LOOK_AGAIN_S)

    def _tell(self, port: Port, found: PortState) -> None:
        before = self._told.get(port.name)
        if before == found or self._ended.is_set():
            return
        if before is None and not found.ready and found == _waits(port):
            # As the service has it from the beginning.
            self._told[port.name] = found
            return
        if not found.ready and found != _waits(port):
            self._say(found.waits_for, "WARNING")
        if self._report(found):
            self._told[port.name] = found

    def _look(self, port: Port) -> PortState:
        try:
            socket.create_connection((self._address, port.port), CONNECT_S).close()
        except OSError:
            return _waits(port)
        if not self._is_own(port.port):
            return PortState(
                port.name,
                False,
                f"port {port.port}: another process of this machine listens there, which is not the task's",
            )
        told = self._told.get(port.name)
        if port.ready_path and not (told is not None and told.ready):
            return self._answers(port)
        return PortState(port.name, True)

    def _answers(self, port: Port) -> PortState:
        link = http.client.HTTPConnection(self._address, port.port, timeout=CONNECT_S)
        try:
            link.request("GET", port.ready_path)
            status = link.getresponse().status
        except (OSError, http.client.HTTPException):
            return _waits(port)
        finally:
            link.close()
        return PortState(port.name, True) if status < 500 else _waits(port)

    def _is_own(self, number: int) -> bool:
        if self._pids is None or sys.platform != "linux":
            return True
        inodes = _listening(number)
        if not inodes or inodes == self._inodes.get(number):
            return True
        held = _sockets_of(self._pids())
        # None: they are another account's, into which this process does not see.
        if held is not None and not inodes & held:
            return False
        self._inodes[number] = inodes
        return True


def _waits(port: Port) -> PortState:
    if port.ready_path:
        return PortState(port.name, False, f"its server at port {port.port} does not answer yet")
    return PortState(port.name, False, f"nothing listens at port {port.port} yet")


def _listening(number: int) -> frozenset[str]:
    """The sockets of this network that listen at the port; empty where that is not known."""
    found = set()
    wanted = f":{number:04X}"
    for table in ("/proc/self/net/tcp", "/proc/self/net/tcp6"):
        with contextlib.suppress(OSError):
            for line in Path(table).read_text().splitlines()[1:]:
                fields = line.split()
                if fields[1].endswith(wanted) and fields[3] == "0A":
                    found.add(fields[9])
    return frozenset(found)


def _sockets_of(pids: list[int]) -> set[str] | None:
    """The sockets of the processes and their descendants; None: none of them could be inspected."""
    found: set[str] = set()
    seen = False
    for pid in pids:
        try:
            process = psutil.Process(pid)
            family = [process, *process.children(recursive=True)]
        except psutil.Error:
            continue
        for one in family:
            try:
                for name in Path(f"/proc/{one.pid}/fd").iterdir():
                    with contextlib.suppress(OSError):
                        target = str(name.readlink())
                        if target.startswith("socket:["):
                            found.add(target[8:-1])
                seen = True
            except OSError:
                continue
    return found if seen else None


def ports_of(spec: LegSpec) -> list[Port]:
    """Those that this node of the leg serves: of a gang the first one's alone."""
    return spec.ports if spec.node == 0 else []
