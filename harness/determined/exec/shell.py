"""``python3 -m determined.exec.shell``: what a shell's task runs. It lets the shell's owner in.

One port is ssh's: each connection gets a separate sshd, which runs as the task's account. The other port
is for terminals where there is no sshd, or no ssh. Both want the shell's key, which only its owner has.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from determined.common.api import Session, errors
from determined.common.forking.process import tied_to_parent
from determined.common.wire import shells
from determined.exec import _sshd
from determined.exec._terminals import TerminalProgram, Terminals

MOST = 200
"""Connections at a time."""
BANNER_SECONDS = 1.0
"""Seconds that a client of ssh may wait for the server's first word. A client that only checks the port has
gone by then."""
REPORT_SECONDS = 30.0
AGAIN_SECONDS = (0.02, 5.0)


def say(words: str) -> None:
    """A line of the task's log."""
    print(f"shell: {words}", file=sys.stderr, flush=True)


class Service:
    """Tells the service about this task, again and again until it has heard it."""

    def __init__(self, master: str, token: str, task_id: str) -> None:
        self._master = master.rstrip("/")
        self._token = token
        self._task_id = task_id

    async def tell(self, path: str, content: dict[str, Any], conflict_s: float = 0.0) -> bool:
        """False: the service refuses it. A conflict counts as refused after ``conflict_s``."""
        until = time.monotonic() + conflict_s
        delay = AGAIN_SECONDS[0]
        while True:
            status = await asyncio.to_thread(self._put, path.format(task_id=self._task_id), content)
            if status == 200:
                return True
            early = status == 409 and time.monotonic() < until
            if 400 <= status < 500 and status != 429 and not early:
                return False
            await asyncio.sleep(delay)
            delay = min(delay * 1.5, AGAIN_SECONDS[1])

    def _put(self, path: str, content: dict[str, Any]) -> int:
        """The answer's status; 0: there is none."""
        try:
            with Session(self._master, self._token, max_retries=1) as session:
                session.put(path, json=content)
        except errors.APIException as error:
            return error.status_code or 0
        return 200


class ShellUse:
    """Counts who is in, and tells the service when the first one comes and the last one goes."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._count = 0
        self._changed = asyncio.Event()

    @property
    def is_full(self) -> bool:
        return self._count >= MOST

    def add(self, number: int) -> None:
        self._count += number
        self._changed.set()

    async def report(self) -> None:
        """For ever."""
        told = False
        while True:
            await self._changed.wait()
            self._changed.clear()
            in_use = self._count > 0
            if in_use != told:
                await self._service.tell(
                    "/api/v1/shells/{task_id}/report_idle", {"idle": not in_use}
                )
                told = in_use


async def serve_ssh(
    sshd: _sshd.Sshd | None, no_ssh: str, use: ShellUse, sock: socket.socket
) -> None:
    """One connection to ssh's port."""
    loop = asyncio.get_running_loop()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(BANNER_SECONDS):
            if not await _first_byte(sock):
                return
    if sshd is None or use.is_full:
        words = no_ssh or f"{MOST} connections are open, which is the most"
        with contextlib.suppress(OSError):
            await loop.sock_sendall(sock, f"{words}\r\n".encode())
        return
    use.add(1)
    try:
        sock.setblocking(True)
        end = sock.fileno()
        # SIGTERM, which sshd passes on to its own child.
        process = await asyncio.create_subprocess_exec(
            *sshd.argv, stdin=end, stdout=end, preexec_fn=tied_to_parent(signal.SIGTERM)
        )
        # Its end is the connection's end.
        sock.close()
        await process.wait()
    finally:
        use.add(-1)


async def _first_byte(sock: socket.socket) -> bool:
    """Wait for the client's first byte, without taking it from the socket. False if the client left."""
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    loop.add_reader(sock.fileno(), readable.set)
    try:
        await readable.wait()
    finally:
        loop.remove_reader(sock.fileno())
    try:
        return bool(sock.recv(1, socket.MSG_PEEK))
    except OSError:
        return False


async def serve_terminal(terminals: Terminals, use: ShellUse, sock: socket.socket) -> None:
    """One connection to the terminals' port."""
    if use.is_full:
        return
    reader, writer = await asyncio.open_connection(sock=sock, limit=2 * shells.FRAME_BYTES)
    try:
        await terminals.serve(reader, writer)
    finally:
        writer.close()


async def accept(
    listener: socket.socket, serve: Callable[[socket.socket], Awaitable[None]]
) -> None:
    """Serves each connection by itself, for ever."""
    loop = asyncio.get_running_loop()
    works: set[asyncio.Task[None]] = set()

    async def one(sock: socket.socket) -> None:
        try:
            await serve(sock)
        except OSError as error:
            say(f"a connection has ended: {error}")
        finally:
            sock.close()

    while True:
        try:
            sock, _ = await loop.sock_accept(listener)
        except OSError as error:
            say(f"no connection can be taken now: {error}")
            await asyncio.sleep(1)
            continue
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        works.add(task := asyncio.ensure_future(one(sock)))
        task.add_done_callback(works.discard)


def _listener(variable: str) -> socket.socket:
    host = os.environ.get("DET_LISTEN_HOST", "127.0.0.1")
    made = socket.create_server((host, int(os.environ[variable])), backlog=100)
    made.setblocking(False)
    return made


async def run() -> None:
    """Until the task is ended."""
    env = os.environ
    folder = Path(env["DET_RUN_DIR"]) / "shell"
    folder.mkdir(mode=0o700, exist_ok=True)
    work_dir = str(Path.cwd())
    ssh, terminal = (_listener(name) for name in (shells.SSH_PORT, shells.TERMINAL_PORT))
    sshd, no_ssh = None, ""
    try:
        sshd = _sshd.prepare(folder, env[shells.PUBLIC_KEY], env, work_dir)
    except (_sshd.NoSshd, OSError) as error:
        no_ssh = str(error)
        say(f"{no_ssh}: open it by det shell open --no-ssh {env['DET_TASK_ID']}")
    else:
        if not sshd.has_sftp:
            say("no sftp-server is installed here: copy files by scp -O, or by rsync")
    service = Service(env["DET_MASTER"], env["DET_SESSION_TOKEN"], env["DET_TASK_ID"])
    use = ShellUse(service)
    terminals = Terminals(
        env[shells.SECRET_HASH],
        TerminalProgram([_sshd.login_shell(env)], _sshd.environment(env), work_dir),
        use.add,
    )
    works = [
        asyncio.create_task(accept(ssh, lambda one: serve_ssh(sshd, no_ssh, use, one))),
        asyncio.create_task(accept(terminal, lambda one: serve_terminal(terminals, use, one))),
        asyncio.create_task(use.report()),
    ]
    door = shells.Door(no_ssh=no_ssh[:1000])
    if sshd is not None:
        door = shells.Door(sshd.account, sshd.host_key, no_tty=sshd.no_tty)
    # The service hears of the ports from the agent, in the same moment.
    if not await service.tell(shells.DOOR, door.to_json(), conflict_s=REPORT_SECONDS):
        raise SystemExit("the service does not take this task for a shell that runs")
    await asyncio.gather(*works)


def main() -> None:
    """Never returns by itself."""
    asyncio.run(run())


if __name__ == "__main__":
    main()
