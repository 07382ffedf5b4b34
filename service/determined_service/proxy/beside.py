"""A program beside a task, and what it prints: as `det` runs it through a door, without the tunnel."""

from __future__ import annotations

import asyncio
import contextlib
import json
from dataclasses import dataclass

from determined.common.wire import shells
from determined.common.wire.doors import Hello
from determined.common.wire.shells import Frame, Frames
from determined_service.proxy import gates

CONNECT_S = 10.0
READ_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class Printed:
    """What it printed, its errors among it. ``code``: its exit code; None: it was cut off, by ``why``."""

    text: str
    code: int | None
    why: str = ""


async def run(
    address: str, port: int, gate: bytes, hello: Hello, secret: str, *, most: int, seconds: float
) -> Printed:
    """Runs the program of ``hello`` at an open door, for at most ``seconds``, and reads ``most`` bytes.

    ``gate``: the key of the gate before the door; empty: there is none. Raises OSError: nobody is there.
    """
    async with asyncio.timeout(CONNECT_S):
        if gate:
            sock = await gates.connect(address, port, gate)
            reader, writer = await asyncio.open_connection(sock=sock)
        else:
            reader, writer = await asyncio.open_connection(address, port)
    printed = bytearray()
    try:
        said = json.dumps({"secret": secret, **hello.to_json()}).encode()
        writer.write(shells.frame(Frame.HELLO, said) + shells.frame(Frame.END))
        async with asyncio.timeout(seconds):
            await writer.drain()
            code, why = await _converse(reader, printed, most)
    except TimeoutError:
        code, why = None, f"it took more than {seconds:.0f} s"
    except OSError as error:
        code, why = None, f"the connection was lost: {error}"
    finally:
        # With its connection the program ends.
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
    return Printed(printed[:most].decode("utf-8", "backslashreplace"), code, why)


async def _converse(
    reader: asyncio.StreamReader, printed: bytearray, most: int
) -> tuple[int | None, str]:
    frames = Frames()
    while data := await reader.read(READ_BYTES):
        try:
            found = frames.feed(data)
        except ValueError:
            return None, "the task's machine sent what is no output"
        for kind, content in found:
            if kind in (Frame.OUTPUT, Frame.ERRORS):
                printed += content
            elif kind == Frame.REFUSED:
                return None, content.decode(errors="replace")
            elif kind == Frame.EXIT:
                return _code(content), ""
        if len(printed) > most:
            return None, f"it printed more than {most} bytes"
    return None, "the task has ended, or was stopped"


def _code(content: bytes) -> int | None:
    try:
        return int(json.loads(content)["code"])
    except (ValueError, KeyError, TypeError):
        return None
