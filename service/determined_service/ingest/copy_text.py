"""Postgres' COPY text format."""

from __future__ import annotations

from collections.abc import Iterable

from psycopg import AsyncConnection as RawConnection
from sqlalchemy.ext.asyncio import AsyncConnection

NULL = b"\\N"


def json_field(encoded: bytes) -> bytes:
    """``encoded`` JSON by orjson, which holds no raw tab or newline: only backslashes matter."""
    return encoded.replace(b"\\", b"\\\\") if b"\\" in encoded else encoded


def text_field(value: str | None) -> bytes:
    """Any text; NUL, which Postgres cannot hold, becomes U+FFFD."""
    if value is None:
        return NULL
    encoded = value.encode("utf-8", "backslashreplace").replace(b"\\", b"\\\\")
    return (
        encoded.replace(b"\t", b"\\t")
        .replace(b"\n", b"\\n")
        .replace(b"\r", b"\\r")
        .replace(b"\0", "\ufffd".encode())
    )


def bytea_field(value: bytes) -> bytes:
    """Any bytes."""
    return b"\\\\x" + value.hex().encode()


async def copy_rows(conn: AsyncConnection, into: str, rows: Iterable[bytes]) -> None:
    """``COPY <into> FROM STDIN`` in ``conn``'s transaction; ``into`` is ``table (columns)``."""
    raw = (await conn.get_raw_connection()).driver_connection
    assert isinstance(raw, RawConnection)
    async with raw.cursor() as cursor, cursor.copy(f"COPY {into} FROM STDIN") as copy:
        await copy.write(b"".join(rows))
