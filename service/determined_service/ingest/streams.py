"""Numbered batches: decide which batches are new."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from determined.common.wire.checks import show
from determined_service.base.checks import check_int
from determined_service.base.errors import BadRequest

# DO UPDATE rather than DO NOTHING: it locks the row, so that the same batch sent twice at once waits
# for itself.
_LOCK = sa.text(
    """
    INSERT INTO report_streams AS s (stream_id, last_seq)
    SELECT id, -1 FROM unnest(cast(:streams AS uuid[])) AS g(id) ORDER BY id
    ON CONFLICT (stream_id) DO UPDATE SET updated_at = now()
    RETURNING s.stream_id, s.last_seq
    """
)
_STORE = sa.text(
    """
    UPDATE report_streams AS s SET last_seq = g.seq
    FROM unnest(cast(:streams AS uuid[]), cast(:seqs AS bigint[])) AS g(id, seq)
    WHERE s.stream_id = g.id
    """
)


@dataclass(frozen=True, slots=True)
class StreamPosition:
    """A batch's place: the ``seq``-th of ``stream``. A sender sends one batch at a time, and counts
    up; it repeats a number only to repeat the batch."""

    stream: uuid.UUID
    seq: int


async def lock_streams(
    conn: AsyncConnection, positions: Iterable[StreamPosition | None]
) -> dict[uuid.UUID, int]:
    """The last number stored of each stream (-1: none), locked until the transaction ends."""
    streams = sorted({position.stream for position in positions if position is not None})
    if not streams:
        return {}
    rows = await conn.execute(_LOCK, {"streams": streams})
    return {row.stream_id: row.last_seq for row in rows}


async def advance_streams(conn: AsyncConnection, last: dict[uuid.UUID, int]) -> None:
    """Notes the new last numbers of streams locked by :func:`lock_streams`."""
    if last:
        await conn.execute(_STORE, {"streams": list(last), "seqs": list(last.values())})


def is_repeated(position: StreamPosition | None, after: dict[uuid.UUID, int]) -> bool:
    """True if the batch at ``position`` is stored already; if not, notes in ``after`` (last numbers per
    stream) that it will be. A batch without a position is never a repetition."""
    if position is None:
        return False
    if position.seq <= after[position.stream]:
        return True
    after[position.stream] = position.seq
    return False


def read_position(body: Mapping[str, Any]) -> StreamPosition | None:
    """``stream`` and ``seq`` of a request's body; None without ``stream``. Raises BadRequest."""
    if body.get("stream") is None:
        return None
    seq = check_int(body.get("seq"), "seq")
    try:
        return StreamPosition(uuid.UUID(body["stream"]), seq)
    except (ValueError, TypeError, AttributeError) as error:
        raise BadRequest(f"stream must be a UUID, not {show(body['stream'])}") from error
