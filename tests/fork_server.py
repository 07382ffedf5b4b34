"""Runs command after command of one program without its imports, which take longer than most commands.

A process of the program's own interpreter imports it once, and each command is a fork of that process with
the arguments, the environment and the directory of the command, like a newly started process.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import importlib
import json
import os
import pkgutil
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

LARGEST = 1 << 20
"""Bytes of a command with its environment."""


class ForkServer:
    """``python``: the interpreter; ``modules``: modules to import beforehand, ``package.*`` for a package
    with all its modules; ``env``: its environment then."""

    def __init__(self, python: str, modules: Sequence[str], env: Mapping[str, str]) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="determined-fork-")
        self._path = f"{self._folder.name}/socket"
        # The pipe ends with this process: nobody writes to it, so the reader sees the end of the file.
        self._process = subprocess.Popen(
            [python, "-P", __file__, self._path, *modules],
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == b"ready\n", f"{python} cannot import {modules}"

    def run(
        self,
        args: Sequence[str],
        env: Mapping[str, str],
        cwd: Path | None = None,
        input: str = "",
        timeout: float | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """As ``subprocess.run([python, *args], capture_output=True, text=True, …)``; ``args`` begin with
        ``-m MODULE`` or ``-c SOURCE``."""
        request = json.dumps([list(args), dict(env), str(cwd or Path.cwd())]).encode()
        with (
            tempfile.TemporaryFile("w+") as stdin,
            tempfile.TemporaryFile("w+") as stdout,
            tempfile.TemporaryFile("w+") as stderr,
            socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection,
        ):
            stdin.write(input)
            stdin.seek(0)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, LARGEST)
            connection.connect(self._path)
            files = [file.fileno() for file in (stdin, stdout, stderr)]
            socket.send_fds(connection, [request], files)
            pid = int(connection.recv(100))
            connection.settimeout(timeout)
            try:
                code = int(connection.recv(100))
            except TimeoutError:
                os.killpg(pid, signal.SIGKILL)
                raise subprocess.TimeoutExpired(list(args), timeout or 0) from None
            texts = []
            for file in (stdout, stderr):
                file.seek(0)
                texts.append(file.read())
            return subprocess.CompletedProcess(list(args), code, *texts)


@functools.cache
def fork_server(
    python: str, modules: Sequence[str], settings: tuple[tuple[str, str], ...]
) -> ForkServer:
    """One for the session. ``settings``: the environment variables on which the imports may depend."""
    foreign = ("DET_", "PREFECT_", "PYTEST_", "PYTHON", "VIRTUAL_ENV")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    return ForkServer(python, modules, {**kept, **dict(settings)})


def _serve(path: str, modules: Sequence[str]) -> None:
    for module in modules:
        name, all_of_it, _ = module.partition(".*")
        found = importlib.import_module(name)
        if all_of_it:
            for each in pkgutil.walk_packages(found.__path__, f"{name}."):
                if not each.name.endswith(".__main__"):
                    with contextlib.suppress(
                        ImportError
                    ):  # of packages that are not installed, or that an error message explains
                        importlib.import_module(each.name)
    gc.freeze()  # what is there stays as it is, in memory that all forks share
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(path)
        listener.listen()
        if os.fork() == 0:
            _accept(listener)
        print("ready", flush=True)
        sys.stdin.read()
        os.killpg(0, signal.SIGKILL)


def _accept(listener: socket.socket) -> NoReturn:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nothing reads its exit code
    while True:
        connection, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            _attend(connection)
        connection.close()


def _attend(connection: socket.socket) -> NoReturn:
    request, files, _, _ = socket.recv_fds(connection, LARGEST, 3)
    pid = os.fork()
    if pid == 0:
        connection.close()
        for number, file in enumerate(files):
            os.dup2(file, number)
            os.close(file)
        _execute(*json.loads(request))
    # It may end at once: its group is there from its first moment.
    with contextlib.suppress(OSError):
        os.setpgid(pid, pid)
    connection.send(str(pid).encode())
    _, status = os.waitpid(pid, 0)
    with contextlib.suppress(OSError):
        connection.send(str(os.waitstatus_to_exitcode(status)).encode())
    os._exit(0)


def _execute(args: list[str], env: dict[str, str], cwd: str) -> NoReturn:
    """Runs the command in this process, which ends as an interpreter does."""
    with contextlib.suppress(OSError):
        os.setsid()
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    how, what, *rest = args
    sys.argv = [how, *rest]
    code: object = 0
    try:
        if how == "-m":
            runpy.run_module(what, run_name="__main__", alter_sys=True)
        else:
            exec(compile(what, "<string>", "exec"), {"__name__": "__main__"})
    except SystemExit as error:
        code = error.code
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
        code = 1
    if isinstance(code, str):
        print(code, file=sys.stderr)
        code = 1
    # The steps at the end of an interpreter. It would also take all modules apart, which takes half a second.
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code if isinstance(code, int) else 0)


if __name__ == "__main__":
    _serve(sys.argv[1], sys.argv[2:])
