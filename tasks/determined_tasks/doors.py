"""A supervisor's door: a port at which whoever may enter the task starts programs beside it.

It is opened when the service has been asked for it, and closed when nobody has used it for a while. The
threads here end with the supervisor, and the programs with it or with their connections.
"""

from __future__ import annotations

import hmac
import json
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from determined.common.api import Session, errors
from determined.common.backoff import Backoff
from determined.common.wire import doors, paths, shells
from determined.common.wire.doors import DoorOrder, DoorState, Hello
from determined.common.wire.legs import LegSpec, Port
from determined.common.wire.message import WireError
from determined.common.wire.shells import Frame
from determined_tasks import gating, ports
from determined_tasks.task_environment import AgentSide

if TYPE_CHECKING:
    from determined_tasks.gates import Gates

logger = logging.getLogger(__name__)

HELLO_SECONDS = 20.0
RETRY_SECONDS = (0.1, 5.0)
LOOK_SECONDS = 5.0


class EntryError(Exception):
    """No program can be started beside the task's; the client is told these words."""


class Enter(Protocol):
    """Starts :data:`doors.PROGRAM` beside the task's own process, joins it to the connection, and returns
    when it has ended. ``variables`` are for it alone. Raises EntryError."""

    def __call__(self, connection: socket.socket, variables: Mapping[str, str]) -> None: ...


class Doors:
    """The door of one leg. :meth:`rung` may be called at any time, in one thread."""

    def __init__(
        self, spec: LegSpec, place: AgentSide, enter: Enter, say: Callable[[str, str], None]
    ) -> None:
        self._spec = spec
        self._place = place
        self._enter = enter
        self._say = say
        self._lock = threading.Lock()
        self._listener: socket.socket | None = None
        self._reserved = ports.Reserved([])
        self._gates: Gates | None = None
        self._state = DoorState(spec.node, "", False)
        self._sessions: set[socket.socket] = set()
        self._used = time.monotonic()

    def rung(self) -> None:
        """Asks the service whether the door is wanted, and sees to it."""
        try:
            with self._place.session() as service:
                where = paths.DOOR_ORDER.format(
                    allocation_id=self._spec.allocation_id, node=self._spec.node
                )
                order = DoorOrder.from_json(service.get(where))
                if not order.wanted:
                    return
                state = replace(self.open(order.secret_hash, order.gate_key), open=True)
                self._post(service, state)
        except (errors.APIException, OSError, ValueError) as error:
            # The agent rings again.
            logger.info("the door is not open yet: %s", error)

    def open(self, secret_hash: str, gate_key: str = "") -> DoorState:
        """Open the door for clients that know the secret. Returns its address, or a problem."""
        with self._lock:
            if self._listener is not None and self._state.secret_hash == secret_hash:
                self._used = time.monotonic()
                return self._state
            self._shut()
            address = ports.own_address(self._place.master)
            state = DoorState(self._spec.node, secret_hash, False, address)
            try:
                name = doors.port_name(self._spec.node)
                self._reserved = ports.reserve([Port(name, gate_key=gate_key)])
            except ports.PortsError as error:
                return replace(state, problem=str(error))
            inside = self._reserved.ports[0]
            listener = socket.create_server((ports.LOOPBACK, inside.port))
            token, allocation_id = self._place.token, self._spec.allocation_id
            self._gates = gating.gates_before(
                [inside], address, ports.LOOPBACK, token, allocation_id
            )
            if self._gates is None:
                state = replace(state, port=inside.port)
            else:
                state = replace(state, port=self._gates.ports[0].port, behind=inside.port)
            self._listener, self._state = listener, state
            self._used = time.monotonic()
            threading.Thread(
                target=self._accept, args=(listener, secret_hash), name="door", daemon=True
            ).start()
            return self._state

    def _post(self, service: Session, state: DoorState) -> None:
        if state.problem:
            state = replace(state, open=False)
        path = paths.DOOR.format(allocation_id=self._spec.allocation_id)
        service.post(path, json=state.to_json())

    def _shut(self) -> None:
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        if self._gates is not None:
            self._gates.end()
            self._gates = None
        self._reserved.free()

    def _accept(self, listener: socket.socket, secret_hash: str) -> None:
        listener.settimeout(LOOK_SECONDS)
        backoff = Backoff(*RETRY_SECONDS)
        while True:
            try:
                connection, _ = listener.accept()
            except TimeoutError:
                if self._is_over(listener):
                    return
                continue
            except OSError:
                with self._lock:
                    if self._listener is not listener:
                        return
                time.sleep(backoff.next_delay())
                continue
            backoff.reset()
            connection.settimeout(HELLO_SECONDS)
            with self._lock:
                is_full = len(self._sessions) >= doors.MOST_SESSIONS
                if not is_full:
                    self._sessions.add(connection)
            serve = _refuse_full if is_full else self._serve
            threading.Thread(
                target=serve, args=(connection, secret_hash), name="entry", daemon=True
            ).start()

    def _is_over(self, listener: socket.socket) -> bool:
        """Closes the door that nobody uses, if the service agrees."""
        with self._lock:
            idle = time.monotonic() - self._used
            if self._sessions or idle < doors.IDLE_SECONDS or self._listener is not listener:
                return self._listener is not listener
            state = self._state
        try:
            with self._place.session() as service:
                self._post(service, replace(state, open=False))
        except errors.BadRequestException:
            # Somebody has asked for it again, and the agent is about to ring; or the allocation ends.
            with self._lock:
                self._used = time.monotonic()
            return False
        except errors.APIException:
            return False
        with self._lock:
            if self._listener is listener:
                self._shut()
        return True

    def _serve(self, connection: socket.socket, secret_hash: str) -> None:
        try:
            hello = _hello(connection, secret_hash)
            connection.settimeout(None)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            what = f"the program {hello.argv[0]}" if hello.argv else "a terminal"
            self._say(
                f"{what} was started beside the task, by det exec, det attach or its page", "INFO"
            )
            self._enter(connection, {doors.HELLO: json.dumps(hello.to_json())})
        except (EntryError, WireError) as error:
            _refuse(connection, str(error))
        except (OSError, EOFError, ValueError) as error:
            logger.info("a connection to the door ended: %s", error)
        finally:
            connection.close()
            with self._lock:
                self._sessions.discard(connection)
                self._used = time.monotonic()


def _refuse(connection: socket.socket, words: str) -> None:
    try:
        connection.sendall(shells.frame(Frame.REFUSED, words.encode()))
        connection.shutdown(socket.SHUT_WR)
        # Until the client has read it.
        connection.settimeout(HELLO_SECONDS)
        while connection.recv(4096):
            pass
    except OSError:
        pass


def _refuse_full(connection: socket.socket, _: str) -> None:
    with connection:
        _refuse(
            connection,
            f"{doors.MOST_SESSIONS} programs run beside this task already, which is the most: end one",
        )


def _hello(connection: socket.socket, secret_hash: str) -> Hello:
    """The first frame. Raises EntryError, WireError, ValueError; EOFError for a connection without one."""
    head = read_exactly(connection, 5)
    size = int.from_bytes(head[1:])
    if head[0] != Frame.HELLO or size > doors.MOST_BYTES:
        raise EntryError("this is the door of a task: enter it by det exec or det attach")
    given = json.loads(read_exactly(connection, size))
    secret = given.get("secret") if isinstance(given, dict) else None
    if not hmac.compare_digest(shells.hash_of(str(secret or "")), secret_hash):
        raise EntryError("this is not the door's secret: ask the service for it (det exec)")
    hello = Hello.from_json(given)
    if len(hello.argv) > doors.MOST_WORDS or any("\0" in word for word in hello.argv):
        raise EntryError(f"a program has at most {doors.MOST_WORDS} words, and no NUL in them")
    return hello


def read_exactly(connection: socket.socket, size: int) -> bytes:
    """So many bytes and no more: what follows is for somebody else. Raises EOFError."""
    found = b""
    while len(found) < size:
        piece = connection.recv(size - len(found))
        if not piece:
            raise EOFError
        found += piece
    return found


def words_of(entrypoint: str | list[str]) -> str:
    """An entrypoint in one line, to show."""
    return entrypoint if isinstance(entrypoint, str) else " ".join(entrypoint)


def main_variable(pid: int | None, entrypoint: str | list[str]) -> dict[str, str]:
    """Tells the process beside the task's which that one is."""
    return {doors.MAIN: json.dumps([pid or os.getpid(), words_of(entrypoint)[:1000]])}
