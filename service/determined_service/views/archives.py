"""Stored model definitions, read in pieces: one may have 95 MiB, and no request waits for the whole."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import IO, Any

import sqlalchemy as sa
from starlette.responses import Response

from determined.common.wire import limits
from determined_registry.database.tables import model_definitions
from determined_service.base.db import Database
from determined_service.base.errors import NotFound
from determined_service.base.streams import Stream
from determined_service.state.change import reader

PIECE_BYTES = 3 * 256 * limits.KIB
"""Of an archive at once: a multiple of three, so that the pieces in base64 are the whole in base64."""
_HEAD_BYTES = 3 * 64 * limits.KIB
"""The first piece, which is read with the hash and is mostly all."""

_PIECE = (
    "SELECT substring(archive, %s::integer, %s::integer) FROM model_definitions WHERE hash = %s"
)


@dataclass(frozen=True, slots=True)
class Archive:
    """The tar.gz of this hash; ``size`` in bytes, ``head`` is its first piece."""

    hash: str
    size: int
    head: bytes

    async def pieces(self, db: Database) -> AsyncIterator[bytes]:
        """All of it. No connection to the database is held between two pieces.

        Raises NotFound when the definition is deleted meanwhile.
        """
        yield self.head
        at = len(self.head)
        while at < self.size:
            found = await self._piece(db, at)
            if not found:
                raise NotFound(f"model definition {self.hash} does not exist any more")
            yield found
            at += len(found)

    async def _piece(self, db: Database, at: int) -> bytes:
        """From the byte ``at`` on; empty when the definition is deleted.

        Past SQLAlchemy, which cannot ask for binary answers: as text a byte is two digits, and parsing these
        took four fifths of a download's cost in the service.
        """
        async with reader(db).connect() as conn:
            driver: Any = (await conn.get_raw_connection()).driver_connection
            cursor = await driver.execute(_PIECE, (at + 1, PIECE_BYTES, self.hash), binary=True)
            row = await cursor.fetchone()
        return row[0] if row is not None else b""

    async def save(self, db: Database, file: IO[bytes]) -> None:
        """Write the whole archive to ``file`` and rewind it."""
        async for piece in self.pieces(db):
            file.write(piece)
        file.seek(0)


async def find_archive(db: Database, of: sa.ColumnElement[Any]) -> Archive | None:
    """The archive whose hash is ``of``, a text or a subquery; None: there is none."""
    c = model_definitions.c
    size = sa.func.octet_length(c.archive)
    head = sa.func.substring(c.archive, 1, _HEAD_BYTES)
    async with reader(db).connect() as conn:
        row = (await conn.execute(sa.select(c.hash, size, head).where(c.hash == of))).first()
    return None if row is None else Archive(row[0], row[1], bytes(row[2]))


def in_base64(size: int) -> int:
    """Characters of ``size`` bytes in base64."""
    return (size + 2) // 3 * 4


def base64_json(name: str, size: int, pieces: AsyncIterator[bytes]) -> Response:
    """The answer ``{name: …}`` with ``pieces`` in base64. Each but the last has a multiple of three bytes;
    together they have ``size``.

    A client is told the length first, so it notices when the rest does not come.
    """
    before, after = f'{{"{name}":"'.encode(), b'"}'

    async def body() -> AsyncIterator[bytes]:
        yield before
        async for piece in pieces:
            yield base64.b64encode(piece)
        yield after

    length = len(before) + in_base64(size) + len(after)
    headers = {"Content-Length": str(length)}
    return Stream(body(), media_type="application/json", headers=headers)
