"""Starts a program beside a task's own in its container."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from determined.common.wire import doors
from determined_tasks.containers import engine
from determined_tasks.containers.engine import EngineUnavailable
from determined_tasks.doors import EntryError, read_exactly

if TYPE_CHECKING:
    from docker.api.client import APIClient

_HEADER = struct.Struct(">BxxxL")
_STDERR = 2
PIECE = 64 << 10
SAID_CHARS = 300


@dataclass(frozen=True)
class ContainerEntry:
    """``name``: the container; ``connect``: makes a client of the engine for one thread; ``run_dir``: of the
    task, as the container sees it."""

    name: str
    connect: Callable[[], APIClient]
    run_dir: str

    def __call__(self, connection: socket.socket, variables: Mapping[str, str]) -> None:
        """By the engine's exec: the container's account, environment and namespaces."""
        from docker.errors import APIError

        own = {doors.RUN_DIR: self.run_dir, **variables}
        body = {
            "Cmd": ["python3", "-P", "-m", doors.PROGRAM],
            "Env": [f"{name}={value}" for name, value in own.items()],
            **dict.fromkeys(("AttachStdin", "AttachStdout", "AttachStderr"), True),
        }
        try:
            client = self.connect()
            made = engine.call(client, "POST", f"/containers/{self.name}/exec", json=body)
            stream: Any = client.exec_start(made["Id"], socket=True)
        except (APIError, EngineUnavailable, OSError) as error:
            words = error.explanation if isinstance(error, APIError) else error
            raise EntryError(f"no program can be started in the container: {words}") from error
        with contextlib.closing(stream):
            has_spoken, said = _join(connection, getattr(stream, "_sock", stream))
        if not has_spoken:
            last = " ".join(said.decode(errors="replace").split())[-SAID_CHARS:]
            raise EntryError(
                "the image needs python3 with determined-prefect, as for training, to be entered:"
                f" {last or 'it could not be started'}"
            )


def _join(connection: socket.socket, inside: socket.socket) -> tuple[bool, bytes]:
    """Passes on both ways until the program has ended. Whether it said anything, and its errors."""
    inside.settimeout(None)

    def up() -> None:
        with contextlib.suppress(OSError):
            while data := connection.recv(PIECE):
                inside.sendall(data)
        # The program inside ends when its input does.
        with contextlib.suppress(OSError):
            inside.shutdown(socket.SHUT_WR)

    threading.Thread(target=up, name="entry-input", daemon=True).start()
    has_spoken, said = False, b""
    with contextlib.suppress(OSError, EOFError):
        while True:
            kind, size = _HEADER.unpack(read_exactly(inside, _HEADER.size))
            while size:
                data = inside.recv(min(size, PIECE))
                if not data:
                    raise EOFError
                size -= len(data)
                if kind == _STDERR:
                    said = (said + data)[-PIECE:]
                else:
                    has_spoken = True
                    with contextlib.suppress(OSError):
                        connection.sendall(data)
    return has_spoken, said
