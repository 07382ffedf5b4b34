"""Ids that requests name."""

from __future__ import annotations

import uuid

from determined_service.base.errors import NotFound


def parse_uuid(text: str, what: str) -> uuid.UUID:
    """The UUID in ``text``. Raises NotFound for a malformed one, because nothing can have that id."""
    try:
        return uuid.UUID(text)
    except ValueError as error:
        raise NotFound(f"{what} {text!r} does not exist (not a UUID)") from error
