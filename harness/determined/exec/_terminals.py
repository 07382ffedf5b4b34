"""Terminals of a shell without sshd: pseudo-terminals over connections of frames."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import hmac
import json
import os
import pty
import re
import signal
import struct
import termios
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from determined.common.wire import shells
from determined.common.wire.shells import Frame, Frames

HELLO_SECONDS = 20.0
END_SECONDS = 5.0
"""After its terminal has hung up a program may take so long to end."""
EOF_SECONDS = 0.2
"""The end of the input is typed again after this time."""
MOST_WAITING = 256 << 10
"""Bytes of input that a program has not read; then the client waits."""
SIDE = 1000
"""Rows and columns of a terminal, at most."""
_TERM = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,63}")


class TerminalRefused(Exception):
    """The client is told these words."""


@dataclass(frozen=True)
class TerminalProgram:
    """A program to run on a terminal."""

    argv: list[str]
    env: Mapping[str, str]
    work_dir: str


@dataclass(frozen=True)
class Terminals:
    """Serves connections. ``used`` is told when a terminal begins (1) and ends (-1)."""

    secret_hash: str
    program: TerminalProgram
    used: Callable[[int], None]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, to its end."""
        frames = Frames()
        try:
            async with asyncio.timeout(HELLO_SECONDS):
                hello, rest = await self._hello(reader, frames)
        except (TimeoutError, EOFError, OSError):
            return
        except (TerminalRefused, ValueError) as error:
            with contextlib.suppress(OSError):
                writer.write(shells.frame(Frame.REFUSED, str(error).encode()))
                await writer.drain()
            return
        self.used(1)
        try:
            await Terminal(self.program, reader, writer, frames, hello).run(rest)
        finally:
            self.used(-1)

    async def _hello(
        self, reader: asyncio.StreamReader, frames: Frames
    ) -> tuple[dict[str, Any], list[tuple[int, bytes]]]:
        found: list[tuple[int, bytes]] = []
        while not found:
            data = await reader.read(shells.FRAME_BYTES)
            if not data:
                raise EOFError
            found = frames.feed(data)
        kind, content = found[0]
        hello = json.loads(content) if kind == Frame.HELLO else None
        if not isinstance(hello, dict):
            raise TerminalRefused(
                "this is a terminal of a shell: open it by det shell open --no-ssh ID"
            )
        given = shells.hash_of(str(hello.get("secret") or ""))
        if not hmac.compare_digest(given, self.secret_hash):
            raise TerminalRefused("this is not the shell's key: only its owner may open a terminal")
        return hello, found[1:]


class Terminal:
    """A program on a pseudo-terminal, for one connection."""

    def __init__(
        self,
        program: TerminalProgram,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        frames: Frames,
        hello: Mapping[str, Any],
    ) -> None:
        self._program = program
        self._reader = reader
        self._writer = writer
        self._frames = frames
        self._hello = hello
        self._master = -1
        self._waiting = bytearray()
        self._last_typed = b"\n"
        self._can_write = asyncio.Event()
        self._can_write.set()

    async def run(self, rest: list[tuple[int, bytes]]) -> None:
        self._master, slave = pty.openpty()
        try:
            os.set_blocking(self._master, False)
            self._resize(self._hello)
            process = await self._start(slave)
        finally:
            os.close(slave)
        output = asyncio.create_task(self._output())
        given = asyncio.create_task(self._input(rest))
        ended = asyncio.create_task(process.wait())
        try:
            await asyncio.wait((given, ended), return_when=asyncio.FIRST_COMPLETED)
            if not ended.done():
                # The client has gone.
                output.cancel()
            else:
                given.cancel()
                # Nobody may be reading it, or a program left behind may hold the terminal.
                await asyncio.wait((output,), timeout=END_SECONDS)
                output.cancel()
                with contextlib.suppress(OSError):
                    self._writer.write(exit_frame(process.returncode or 0))
                    await self._writer.drain()
        finally:
            for task in (output, given):
                task.cancel()
            await asyncio.gather(output, given, return_exceptions=True)
            self._close()
            await end(process, ended)

    async def _start(self, slave: int) -> asyncio.subprocess.Process:
        term = str(self._hello.get("term") or "")
        env = {
            **self._program.env,
            "TERM": term if _TERM.fullmatch(term) else "xterm",
            "SHELL": self._program.argv[0],
        }
        return await asyncio.create_subprocess_exec(
            *self._program.argv,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env=env,
            cwd=self._program.work_dir,
            start_new_session=True,
            preexec_fn=_own_terminal,
        )

    async def _output(self) -> None:
        """Send the programs' output, as fast as the client takes it."""
        loop = asyncio.get_running_loop()
        readable = asyncio.Event()
        loop.add_reader(self._master, readable.set)
        try:
            while True:
                await readable.wait()
                readable.clear()
                try:
                    data = os.read(self._master, shells.FRAME_BYTES)
                except BlockingIOError:
                    continue
                except OSError:  # the last program has closed it
                    return
                if not data:
                    return
                self._writer.write(shells.frame(Frame.OUTPUT, data))
                loop.remove_reader(self._master)
                await self._writer.drain()
                loop.add_reader(self._master, readable.set)
        except OSError:
            return
        finally:
            with contextlib.suppress(ValueError, OSError):
                loop.remove_reader(self._master)

    async def _input(self, found: list[tuple[int, bytes]]) -> None:
        """Pass on the client's input until the client goes."""
        over = False
        with contextlib.suppress(OSError, ValueError), contextlib.ExitStack() as typing:
            while True:
                for kind, content in found:
                    if kind == Frame.INPUT:
                        await self._write(content)
                    elif kind == Frame.END and not over:
                        over = True
                        typing.callback(asyncio.create_task(self._type_the_end()).cancel)
                    elif kind == Frame.RESIZE:
                        self._resize(json.loads(content))
                data = await self._reader.read(shells.FRAME_BYTES)
                if not data:
                    return
                found = self._frames.feed(data)

    async def _type_the_end(self) -> None:
        """Types Ctrl-D until the programs have ended.

        Once is not enough: the kernel turns one that comes while a program (readline) changes the terminal's
        mode into a plain character, and each program that runs in the shell takes one.
        """
        if self._last_typed not in b"\r\n":
            await self._write(b"\n")
        while True:
            if not self._waiting:
                await self._write(b"\x04")
            await asyncio.sleep(EOF_SECONDS)

    async def _write(self, content: bytes) -> None:
        self._last_typed = content[-1:] or self._last_typed
        self._waiting += content
        self._flush()
        if len(self._waiting) > MOST_WAITING:
            self._can_write.clear()
            await self._can_write.wait()

    def _flush(self) -> None:
        loop = asyncio.get_running_loop()
        while self._waiting:
            try:
                written = os.write(self._master, self._waiting[:4096])
            except BlockingIOError:
                loop.add_writer(self._master, self._flush)
                return
            except OSError:
                self._waiting.clear()
                break
            del self._waiting[:written]
        loop.remove_writer(self._master)
        self._can_write.set()

    def _resize(self, given: Any) -> None:
        given = given if isinstance(given, dict) else {}
        rows, columns = given.get("rows"), given.get("columns")
        if not all(type(one) is int and 0 < one <= SIDE for one in (rows, columns)):
            rows, columns = 24, 80
        # The kernel tells the programs (SIGWINCH).
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def _close(self) -> None:
        """Hangs up: the kernel sends SIGHUP to the programs of the terminal."""
        loop = asyncio.get_running_loop()
        with contextlib.suppress(ValueError, OSError):
            loop.remove_reader(self._master)
            loop.remove_writer(self._master)
        os.close(self._master)


async def end(
    process: asyncio.subprocess.Process, ended: asyncio.Task[int], number: int = 0
) -> None:
    """Waits for the program's end, a while; then kills it and its group. ``number``: a signal that tells it
    to end."""
    if number and not ended.done():
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
    try:
        await asyncio.wait_for(ended, END_SECONDS)
    except TimeoutError:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


def exit_frame(code: int) -> bytes:
    """The last frame; ``code`` is negative for a signal."""
    content = json.dumps({"code": code if code >= 0 else 128 - code}).encode()
    return shells.frame(Frame.EXIT, content)


def _own_terminal() -> None:
    # A process started with `nohup` or `&` ignores these signals, and so would its children.
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
