"""A message: a frozen dataclass that reads and writes JSON, and checks what it reads.

::

    @checked
    @dataclass(frozen=True, slots=True)
    class Started(Message):
        pid: int | None = None

A message of a newer release may have fields that are not known here; they are ignored. A field that is
missing takes its default. The service gives the same classes to FastAPI, which reads them as pydantic
would.
"""

from __future__ import annotations

from typing import Any, Self, TypeVar

import msgspec

M = TypeVar("M", bound="type[Message]")


class WireError(ValueError):
    """The data is not the expected message. The error says where and why."""


class Message:
    """Base of all messages; give subclasses both decorators."""

    __slots__ = ()

    @classmethod
    def from_json(cls, data: Any) -> Self:
        """Raises WireError for a field that is missing or has the wrong type."""
        try:
            return msgspec.convert(data, cls)
        except msgspec.ValidationError as error:
            raise WireError(str(error)) from None

    def to_json(self) -> dict[str, Any]:
        """The message as plain values."""
        found: dict[str, Any] = msgspec.to_builtins(self)
        return found


def checked(cls: M) -> M:
    """Prepare the reading of a message once, when its class is made, not in each fork."""
    msgspec.json.Decoder(cls)
    return cls
