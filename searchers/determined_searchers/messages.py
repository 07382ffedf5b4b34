"""The common ground of events and operations: frozen dataclasses with a JSON form."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, TypeVar

from determined_searchers.errors import SearcherError
from determined_searchers.metrics import decode_metric, encode_metric

INT64 = range(-(2**63), 2**63)


class SearchMessage:
    """One event or operation. ``type`` is its name in JSON."""

    __slots__ = ()
    type: ClassVar[str]
    # How a field of that name is read from JSON; other fields are taken as they are.
    readers: ClassVar[Mapping[str, Callable[[Any], Any]]] = {}

    def to_json(self) -> dict[str, Any]:
        """A JSON object (strict: non-finite floats as strings) with the key ``type``."""
        names = (field.name for field in dataclasses.fields(self))  # type: ignore[arg-type]
        return {"type": self.type} | {name: encode_metric(getattr(self, name)) for name in names}


MessageType = TypeVar("MessageType", bound=SearchMessage)


def read_message(data: Any, classes: tuple[type[MessageType], ...], noun: str) -> MessageType:
    """Builds the message that ``data`` (a :meth:`SearchMessage.to_json` object) describes.

    Raises SearcherError that names the unknown type, the missing or unknown field, or the value
    that does not fit.
    """
    if not isinstance(data, Mapping):
        raise SearcherError(f"a searcher {noun} must be an object, not {data!r}")
    found = next((cls for cls in classes if cls.type == data.get("type")), None)
    if found is None:
        known = ", ".join(cls.type for cls in classes)
        raise SearcherError(f"unknown searcher {noun} {data.get('type')!r}; known are {known}")
    fields = {field.name: field for field in dataclasses.fields(found)}  # type: ignore[arg-type]
    unknown = sorted(set(data) - set(fields) - {"type"})
    missing = [
        name
        for name, field in fields.items()
        if name not in data and field.default is dataclasses.MISSING
    ]
    if unknown or missing:
        what = f"does not take {unknown}" if unknown else f"needs {missing}"
        raise SearcherError(f"searcher {noun} {found.type} {what}")
    values: dict[str, Any] = {}
    for name in fields:
        if name in data:
            try:
                values[name] = found.readers.get(name, decode_metric)(data[name])
            except (TypeError, ValueError) as error:
                raise SearcherError(
                    f"searcher {noun} {found.type}: {name} cannot be {data[name]!r} ({error})"
                ) from None
    return found(**values)


def text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("not a string")
    return value


def whole_number(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError("not a whole number")
    if value not in INT64:
        raise ValueError("does not fit into 64 bits")
    return value


def positive(value: Any) -> int:
    if whole_number(value) < 1:
        raise ValueError("must be at least 1")
    return int(value)


def flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError("not true or false")
    return value


def number(value: Any) -> float:
    value = decode_metric(value)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError("not a number")
    return float(value)


def optional(read: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if value is None else read(value)


def mapping(value: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise TypeError("not an object")
    return dict(value)
