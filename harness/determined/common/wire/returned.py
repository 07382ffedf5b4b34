"""Files that a task leaves behind for its owner (`det run --here`): what comes back, and how much of it."""

from __future__ import annotations

from dataclasses import dataclass, field

from determined.common.wire.message import Message, checked

FIELD = "return_files"
"""The field of a command's configuration that asks for it."""
BEFORE = "determined.before"
"""The key in the archive's headers with the SHA-256 of the file that was sent; empty: it is new."""
MOST_FILES = 10_000
MOST_BYTES = 256 << 20
"""Of all files together, before compression."""
PIECE_BYTES = 1 << 20
KEPT_DAYS = 7
"""So long the service keeps what nobody fetches."""
MOST_REMARKS = 50
REMARK_CHARS = 1_000


@checked
@dataclass(frozen=True, slots=True)
class Returned(Message):
    """The report that all pieces are there: how many, of how many bytes. ``remarks``: what was left out."""

    pieces: int
    size: int
    remarks: list[str] = field(default_factory=list)
