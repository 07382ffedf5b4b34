"""Values that are made by the ten thousand: :func:`record`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def record(cls: type[T]) -> type[T]:
    """A dataclass whose fields nobody sets again, which mypy checks and Python does not.

    Python's own check (``frozen=True``) makes each field of each new object cost a call: of eleven fields
    five times as much as here.
    """
    return dataclass(slots=True, unsafe_hash=True)(cls)
