"""Ids that requests name."""

from __future__ import annotations

import uuid

from determined.common.wire.limits import UUID_BEGINNING_DIGITS
from determined_service.base.errors import BadRequest, NotFound


def parse_uuid(text: str, what: str) -> uuid.UUID:
    """The UUID in ``text``. Raises NotFound for a malformed one, because nothing can have that id."""
    try:
        return uuid.UUID(text)
    except ValueError as error:
        raise NotFound(f"{what} {text!r} does not exist (not a UUID)") from error


def uuids_beginning(text: str, field: str) -> tuple[uuid.UUID, uuid.UUID]:
    """The lowest and the highest UUID that begin with ``text``.

    Raises BadRequest for less than :data:`~determined.common.wire.limits.UUID_BEGINNING_DIGITS` digits, and
    for what cannot be the beginning of a UUID.
    """
    given = text.lower()
    digits = given.replace("-", "")
    try:
        lowest, highest = (uuid.UUID(digits.ljust(32, end)) for end in "0f")
    except ValueError:
        lowest = highest = uuid.UUID(int=0)
    if len(digits) < UUID_BEGINNING_DIGITS or not str(lowest).startswith(given):
        raise BadRequest(
            f"{field}: {text!r} is not the beginning of a UUID: at least {UUID_BEGINNING_DIGITS} hexadecimal"
            " digits, with the hyphens of the UUID"
        )
    return lowest, highest
