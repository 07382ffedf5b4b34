"""Stores model definitions, equal ones once."""

from __future__ import annotations

import struct

import sqlalchemy as sa
from psycopg import AsyncConnection as RawConnection
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from determined.common.wire import limits
from determined_registry.database.tables import model_definitions
from determined_service.submission.model_definition import ModelDefinition

PIECE_BYTES = 256 * limits.KIB
_INCOMING = sa.text(
    "CREATE TEMPORARY TABLE IF NOT EXISTS incoming_definition (archive bytea) ON COMMIT DROP"
)
_COPY = "COPY incoming_definition FROM STDIN (FORMAT BINARY)"
_KEEP = sa.text(
    """
    INSERT INTO model_definitions (hash, archive, size, owner_id)
    SELECT :hash, archive, :size, :owner_id FROM incoming_definition
    ON CONFLICT DO NOTHING RETURNING hash
    """
)


async def store_definition(
    conn: AsyncConnection, definition: ModelDefinition, owner_id: int
) -> bool:
    """Store the definition if it is new. Returns True if it was, and so counts in the owner's quota.

    A file is sent in pieces, so that copying it delays no other request.
    """
    if isinstance(definition.archive, bytes):
        made = await conn.execute(
            insert(model_definitions)
            .values(
                hash=definition.hash,
                archive=definition.archive,
                size=len(definition.archive),
                owner_id=owner_id,
            )
            .on_conflict_do_nothing()
            .returning(model_definitions.c.hash)
        )
        return made.first() is not None
    known = sa.select(model_definitions.c.hash).where(model_definitions.c.hash == definition.hash)
    if (await conn.execute(known)).first() is not None:
        return False
    await conn.execute(_INCOMING)
    raw = (await conn.get_raw_connection()).driver_connection
    assert isinstance(raw, RawConnection)
    size = definition.archive.stat().st_size
    async with raw.cursor() as cursor, cursor.copy(_COPY) as copy:
        # Postgres' binary format: its signature, no flags, one column of `size` bytes, the end.
        await copy.write(b"PGCOPY\n\xff\r\n\0" + struct.pack("!iihi", 0, 0, 1, size))
        with definition.archive.open("rb") as file:
            while piece := file.read(PIECE_BYTES):
                await copy.write(piece)
        await copy.write(struct.pack("!h", -1))
    kept = {"hash": definition.hash, "size": size, "owner_id": owner_id}
    is_new = (await conn.execute(_KEEP, kept)).first() is not None
    # Another definition may follow in this transaction.
    await conn.execute(sa.text("TRUNCATE incoming_definition"))
    return is_new
