"""``python3 -m determined.exec.door``: one program beside a task's own, for one connection.

The supervisor of the task starts it as the task's account, with the task's environment. Its standard input
and output are the connection (a socket, or a pipe each way), on which frames go both ways. The program ends
with the connection, and the connection with the program.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import json
import os
import shutil
import signal
import socket
import stat
import sys
from collections.abc import Mapping

from determined.common.wire import doors, shells
from determined.common.wire.doors import Hello
from determined.common.wire.shells import Frame, Frames
from determined.exec import _sshd
from determined.exec._terminals import END_SECONDS, Terminal, TerminalProgram, end, exit_frame

_PR_SET_PDEATHSIG = 1
NOWHERE = "/nonexistent"
# The rights of the task's own process. A program beside it must not report for it by accident.
_RIGHTS = ("DET_SESSION_TOKEN", "MLFLOW_TRACKING_TOKEN", "MLFLOW_RUN_ID")
CANNOT_RUN = {FileNotFoundError: 127, PermissionError: 126}


def environment(env: Mapping[str, str]) -> dict[str, str]:
    """The program's environment: the task's variables without the task's token."""
    found = {name: value for name, value in _sshd.environment(env).items() if name not in _RIGHTS}
    found.pop(doors.HELLO, None)
    # Where determined.get_cluster_info() finds the token, too.
    return {**found, "DET_RUN_DIR": NOWHERE}


async def connection() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Standard input and output as streams. Both are closed for the programs that are started."""
    loop = asyncio.get_running_loop()
    ends = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1):
        os.dup2(null, number)
    if stat.S_ISSOCK(os.fstat(ends[0]).st_mode):
        os.close(ends[1])
        return await asyncio.open_connection(sock=socket.socket(fileno=ends[0]))
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(ends[0], "rb", 0)
    )
    transport, protocol = await loop.connect_write_pipe(
        asyncio.streams.FlowControlMixin, os.fdopen(ends[1], "wb", 0)
    )
    return reader, asyncio.StreamWriter(transport, protocol, None, loop)


async def piped(
    program: TerminalProgram, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    """A program whose output and errors come apart, to its end or the connection's."""
    process = await asyncio.create_subprocess_exec(
        *program.argv,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=dict(program.env),
        cwd=program.work_dir,
        start_new_session=True,
        limit=shells.FRAME_BYTES,
    )
    assert process.stdin and process.stdout and process.stderr
    output = asyncio.gather(
        _pass_on(process.stdout, Frame.OUTPUT, writer),
        _pass_on(process.stderr, Frame.ERRORS, writer),
    )
    given = asyncio.create_task(_feed(reader, process.stdin))
    ended = asyncio.create_task(process.wait())
    try:
        await asyncio.wait((given, ended), return_when=asyncio.FIRST_COMPLETED)
        if ended.done():
            # A program that was left behind may hold the pipes.
            await asyncio.wait((output,), timeout=END_SECONDS)
            with contextlib.suppress(OSError):
                writer.write(exit_frame(process.returncode or 0))
                await writer.drain()
    finally:
        for task in (output, given):
            task.cancel()
        await asyncio.gather(output, given, return_exceptions=True)
        await end(process, ended, signal.SIGTERM)


async def _pass_on(source: asyncio.StreamReader, kind: Frame, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await source.read(shells.FRAME_BYTES):
            writer.write(shells.frame(kind, data))
            await writer.drain()


async def _feed(reader: asyncio.StreamReader, stdin: asyncio.StreamWriter) -> None:
    """Pass the client's input to the program until the client goes."""
    frames = Frames()
    open_ = True
    while data := await reader.read(shells.FRAME_BYTES):
        for kind, content in frames.feed(data):
            # A program that reads no more may go on.
            with contextlib.suppress(OSError):
                if kind == Frame.INPUT and open_:
                    stdin.write(content)
                    await stdin.drain()
                elif kind == Frame.END:
                    open_ = False
                    stdin.close()


def banner(env: Mapping[str, str]) -> str:
    """The first lines of a terminal: the task's processes, and how to look into them."""
    from determined.exec import stacks

    found = [one for one in stacks.processes(env) if one.is_python]
    lines = [f"{one.pid:>8}  {one.words}" for one in found[:8]]
    if len(found) > 8:
        lines.append(f"          and {len(found) - 8} more")
    if shutil.which("py-spy", path=env.get("PATH")):
        how = "py-spy dump --pid PID shows where one is, py-spy top --pid PID where its time goes"
    else:
        how = "no py-spy is installed here (pip install py-spy): it shows where a process is"
    return "".join(f"{line}\r\n" for line in ["the task's Python processes:", *lines, how])


async def run(hello: Hello) -> None:
    """One connection."""
    env = dict(os.environ)
    own = environment(env)
    reader, writer = await connection()
    work_dir = env.get(doors.WORK_DIR) or env.get("DET_WORKDIR") or "/"
    argv = hello.argv or [_sshd.login_shell(env)]
    program = TerminalProgram(argv, own, work_dir)
    try:
        if hello.tty:
            if hello.banner:
                writer.write(shells.frame(Frame.OUTPUT, banner(own).encode()))
            size = {"term": hello.term, "rows": hello.rows, "columns": hello.columns}
            await Terminal(program, reader, writer, Frames(), size).run([])
        else:
            await piped(program, reader, writer)
    except OSError as error:
        words = f"det: {argv[0]}: {error.strerror or error}\n"
        writer.write(shells.frame(Frame.ERRORS, words.encode()))
        writer.write(exit_frame(CANNOT_RUN.get(type(error), 1)))
        with contextlib.suppress(OSError):
            await writer.drain()
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


def main() -> None:
    """Runs the program of :data:`doors.HELLO`."""
    if sys.platform == "linux":
        # The supervisor normally ends this process, and may itself be killed.
        parent = os.getppid()
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        if os.getppid() != parent:
            raise SystemExit(1)
    asyncio.run(run(Hello.from_json(json.loads(os.environ[doors.HELLO]))))


if __name__ == "__main__":
    main()
