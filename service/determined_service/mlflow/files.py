"""Files pass between the service and MLflow's server by their paths.

Both are processes of one account on one machine, and to send each byte once more, through a socket, takes
longer than all the rest.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import functools
import os
import shutil
import stat
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import BinaryIO

WRITE_BYTES = 1 << 20
READ_BYTES = 1 << 18
"""Bytes that a thread writes or reads at once: no more of each transfer is in memory."""


@contextlib.asynccontextmanager
async def received(body: AsyncIterator[bytes], folder: Path) -> AsyncIterator[Path]:
    """``body`` as a file below ``folder``, which is removed after the block unless it was moved."""
    own = Path(await asyncio.to_thread(tempfile.mkdtemp, dir=folder))
    try:
        path = own / "content"
        # Buffered, as such a file is not closed while a thread that nobody waits for any more writes to it.
        with await asyncio.to_thread(path.open, "wb") as file:
            held: list[bytes] = []
            size = 0
            async for piece in body:
                held.append(piece)
                size += len(piece)
                if size >= WRITE_BYTES:
                    await asyncio.to_thread(file.writelines, held)
                    held, size = [], 0
            await asyncio.to_thread(file.writelines, held)
            await asyncio.to_thread(file.flush)
        yield path
    finally:
        remove = functools.partial(shutil.rmtree, own, ignore_errors=True)
        await asyncio.shield(asyncio.get_running_loop().run_in_executor(None, remove))


@contextlib.contextmanager
def opened(path: str) -> Iterator[BinaryIO]:
    """The regular file ``path``. Raises OSError: FileNotFoundError for a link, which may have taken the
    file's place since MLflow's server looked."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise FileNotFoundError(f"{path} is a link") from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise FileNotFoundError(f"{path} is not a regular file")
    with os.fdopen(descriptor, "rb") as file:
        yield file


async def pieces(file: BinaryIO) -> AsyncIterator[bytes]:
    """All of the file."""
    while piece := await asyncio.to_thread(file.read, READ_BYTES):
        yield piece
