"""A fork server: an interpreter that has done its imports and forks on order.

``python -m determined_deployments.agent.launchers.fork_server.zygote <socket> <name>`` is the root of a
tree; every other zygote is a fork of one, with further modules imported. A zygote has one thread, touches no
accelerator, connects to the agent's socket and then speaks JSON lines:

to the zygote
    ``{"op": "fork", "id", "call": "module:function", "arg"}``: run ``function(arg)`` in a fork, with the
    environment, umask and locale that the root began with
    ``{"op": "zygote", "name", "modules", "optional", "env", "cpu_seconds"}``: fork a zygote that imports more
from the zygote
    ``{"event": "ready", "name", "pid", "base_path"}``: first line; imports are done
    ``{"event": "broken", "name", "module", "reason"}``: first and last line; an import failed
    ``{"event": "starting", "name", "pid"}``: a zygote that was ordered, before it is ready
    ``{"event": "forked", "id", "pid"}`` and ``{"event": "exit", "pid", "status"}`` (wait status)

It ends when the connection does; what it forked goes on.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import resource
import selectors
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

from determined.common.forking import safety
from determined.common.forking.beginning import Beginning
from determined.common.forking.process import set_title

# Imported before anything else is known: what every leg's supervisor needs.
BASE_MODULES = (
    "determined_tasks.leg",
    "determined_deployments.agent.launchers.fork_server.warm_up:http_client",
)

ROOT = "root"


class BrokenImportError(Exception):
    """A module must not be imported here; ``args`` are its name and the reason."""


class _Become(BaseException):
    """Unwinds a fork's stack down to :func:`main`, which then runs something else."""

    def __init__(self, function: Callable[[], object]) -> None:
        self.function = function


class Zygote:
    """One fork server, connected; :meth:`serve` returns when the agent is gone."""

    def __init__(self, path: str, name: str, base_path: list[str], beginning: Beginning) -> None:
        self.path = path
        self.name = name
        self.base_path = base_path
        self.beginning = beginning
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.connect(path)
        self._received = b""

    def send(self, message: dict[str, Any]) -> None:
        self._socket.sendall(json.dumps(message).encode() + b"\n")

    def serve(self) -> None:
        """Answers orders until the agent is gone. In a fork: raises _Become."""
        with contextlib.suppress(ConnectionError):
            self._serve()

    def _serve(self) -> None:
        self._wake_read, self._wake_write = socket.socketpair()
        self._wake_read.setblocking(False)
        self._wake_write.setblocking(False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.set_wakeup_fd(self._wake_write.fileno(), warn_on_full_buffer=False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._socket, selectors.EVENT_READ)
        self._selector.register(self._wake_read, selectors.EVENT_READ)
        self.send(
            {
                "event": "ready",
                "name": self.name,
                "pid": os.getpid(),
                "base_path": self.base_path,
            }
        )
        while True:
            self._reap()
            for key, _ in self._selector.select():
                if key.fileobj is self._wake_read:
                    with contextlib.suppress(BlockingIOError):
                        self._wake_read.recv(4096)
                elif not self._read_orders():
                    return

    def _close(self) -> None:
        for item in (self._selector, self._socket, self._wake_read, self._wake_write):
            item.close()

    def _reap(self) -> None:
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return
                self.send({"event": "exit", "pid": pid, "status": status})

    def _read_orders(self) -> bool:
        try:
            data = self._socket.recv(1 << 20)
        except ConnectionError:
            return False
        self._received += data
        *lines, self._received = self._received.split(b"\n")
        for line in lines:
            self._obey(json.loads(line))
        return bool(data)

    def _obey(self, order: dict[str, Any]) -> None:
        if order["op"] == "zygote":
            pid = self._fork(lambda: _warm(self, order))
            self.send({"event": "starting", "name": order["name"], "pid": pid})
        elif order["op"] == "fork":
            pid = self._fork(lambda: _call(self.beginning, order["call"], order["arg"]))
            self.send({"event": "forked", "id": order["id"], "pid": pid})

    def _fork(self, function: Callable[[], object]) -> int:
        pid = os.fork()
        if pid:
            return pid
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self._close()
        os.setsid()
        gc.enable()
        raise _Become(function)


def _call(beginning: Beginning, name: str, arg: Any) -> object:
    beginning.restore()
    module, _, function = name.partition(":")
    return getattr(importlib.import_module(module), function)(arg)


def _warm(parent: Zygote, order: dict[str, Any]) -> None:
    """A new zygote: imports, then serves."""
    gc.disable()
    os.environ.update(order.get("env") or {})
    set_title(f"zygote {order['name']}")
    try:
        zygote = Zygote(parent.path, order["name"], parent.base_path, parent.beginning)
    except (ConnectionError, FileNotFoundError):  # the agent is gone
        os._exit(0)
    try:
        with _cpu_limit(order.get("cpu_seconds")):
            import_modules(order["modules"], order.get("optional") or ())
    except BrokenImportError as error:
        module, reason = error.args
        event = {"event": "broken", "name": order["name"], "module": module, "reason": reason}
        with contextlib.suppress(ConnectionError):
            zygote.send(event)
        os._exit(1)  # at once: threads that must not be here are not waited for
    safety.settle()
    zygote.serve()
    os._exit(0)


@contextlib.contextmanager
def _cpu_limit(seconds: int | None) -> Iterator[None]:
    """Let the kernel end this process, a new fork, after this number of seconds of CPU in the block."""
    if seconds is None:
        yield
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_CPU)
    if hard == resource.RLIM_INFINITY or seconds < hard:
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_CPU, (soft, hard))


def import_modules(modules: list[str], optional: tuple[str, ...] | list[str] = ()) -> None:
    """Imports ``modules`` and ``optional`` (those that are installed) and sees that forks stay safe.

    ``module:function`` also calls the function, without arguments.

    Raises BrokenImportError for an import that fails, starts a thread or initialises an accelerator.
    """
    for entry in [*modules, *optional]:
        module, _, function = entry.partition(":")
        try:
            with safety.checked_import():
                imported = importlib.import_module(module)
                if function:
                    getattr(imported, function)()
        except safety.NotForkableError as error:
            raise BrokenImportError(entry, str(error)) from error
        except ModuleNotFoundError as error:
            if entry in optional and f"{module}.".startswith(f"{error.name}."):
                continue
            raise BrokenImportError(entry, str(error)) from error
        except BaseException as error:  # packages raise anything at import
            raise BrokenImportError(entry, f"{type(error).__name__}: {error}") from error


def main(path: str, name: str) -> NoReturn:
    """The root zygote's process, and through _Become that of every fork."""
    beginning = Beginning.now()
    # Frozen objects are not visited, and so not copied, in any fork.
    gc.disable()
    # Without the current directory, which `-m` puts in front.
    base_path = list(sys.path) if sys.flags.safe_path else sys.path[1:]
    sys.path[:] = base_path

    def serve_root() -> None:
        import_modules(list(BASE_MODULES))
        safety.settle()
        Zygote(path, name, base_path, beginning).serve()
        os._exit(0)

    function: Callable[[], object] = serve_root
    while True:
        code = 1
        try:
            result = function()
            code = result if isinstance(result, int) else 0
        except _Become as become:
            function = become.function
            continue
        except SystemExit as error:
            code = error.code if isinstance(error.code, int) else 0 if error.code is None else 1
        except KeyboardInterrupt:
            code = 130
        except BaseException:
            traceback.print_exc()
        with contextlib.suppress(Exception):
            threading._shutdown()  # type: ignore[attr-defined]
            sys.stdout.flush()
            sys.stderr.flush()
        # Without tearing the heap down: that costs as much as a short trial.
        os._exit(code)


if __name__ == "__main__":
    # Under its real name: forks import it, and __main__ becomes the user's.
    from determined_deployments.agent.launchers.fork_server import zygote

    zygote.main(sys.argv[1], ROOT)
