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

import enum
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields
from typing import Any, ClassVar, Self, TypeVar
from uuid import UUID

M = TypeVar("M", bound="type[Message]")
Convert = Callable[[Any], Any]


class WireError(ValueError):
    """The data is not the expected message. The error says where and why."""


class Message:
    """Base of all messages; give subclasses both decorators."""

    __slots__ = ()
    _readers: ClassVar[Mapping[str, Convert]] = {}
    _writers: ClassVar[Mapping[str, Convert | None]] = {}
    _required: ClassVar[frozenset[str]] = frozenset()

    @classmethod
    def from_json(cls, data: Any) -> Self:
        """Raises WireError for a field that is missing or has the wrong type."""
        if isinstance(data, cls):
            return data
        if not isinstance(data, Mapping):
            raise WireError(f"must be an object, is {_shown(data)}")
        if not cls._required <= data.keys():
            raise WireError(f"{', '.join(sorted(cls._required - data.keys()))}: missing")
        given = {}
        for name, read in cls._readers.items():
            if name in data:
                try:
                    given[name] = read(data[name])
                except WireError as error:
                    raise WireError(f"{name}: {error}") from None
        return cls(**given)

    def to_json(self) -> dict[str, Any]:
        """The message as plain values. Values of type Any are not copied."""
        found = {}
        for name, write in self._writers.items():
            value = getattr(self, name)
            found[name] = value if write is None or value is None else write(value)
        return found


def checked(cls: M) -> M:
    """Prepare the reading and writing of a message once, when its class is made, not in each fork."""
    hints = typing.get_type_hints(cls)
    own: Any = fields(cls)  # type: ignore[arg-type]
    cls._readers = {item.name: _reader(hints[item.name]) for item in own}
    cls._writers = {item.name: _writer(hints[item.name]) for item in own}
    cls._required = frozenset(
        item.name for item in own if item.default is item.default_factory is MISSING
    )
    return cls


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _reader(hint: Any) -> Convert:
    """A function that turns a JSON value into a value of the type ``hint``."""
    origin, given = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return _same
    if hint is None or hint is types.NoneType:
        return _plain(types.NoneType)
    if origin in (typing.Union, types.UnionType):
        return _one_of(hint, [_reader(choice) for choice in given])
    if origin is list:
        return _list(_reader(given[0]))
    if origin is dict:
        return _dict(_reader(given[0]), _reader(given[1]))
    if issubclass(hint, Message):
        return hint.from_json
    if issubclass(hint, enum.Enum) or hint is UUID:
        return _made(hint)
    return _plain(hint)


def _same(value: Any) -> Any:
    return value


def _plain(kind: type) -> Convert:
    kinds: tuple[type, ...] = (int, float) if kind is float else (kind,)

    def read(value: Any) -> Any:
        # True is an int to Python, not to JSON.
        if isinstance(value, kinds) and (kind is bool or not isinstance(value, bool)):
            return value
        raise WireError(f"must be {kind.__name__}, is {_shown(value)}")

    return read


def _made(kind: Any) -> Convert:
    def read(value: Any) -> Any:
        try:
            return value if isinstance(value, kind) else kind(value)
        except (ValueError, TypeError, AttributeError):
            raise WireError(f"must be {kind.__name__}, is {_shown(value)}") from None

    return read


def _one_of(hint: Any, readers: list[Convert]) -> Convert:
    def read(value: Any) -> Any:
        problems = []
        for choice in readers:
            try:
                return choice(value)
            except WireError as error:
                problems.append(str(error))
        # Of `X | None`: what is wrong with the X.
        optional = len(readers) == 2 and types.NoneType in typing.get_args(hint)
        raise WireError(problems[0] if optional else f"must be {hint}, is {_shown(value)}")

    return read


def _list(item: Convert) -> Convert:
    def read(value: Any) -> Any:
        if not isinstance(value, (list, tuple)):
            raise WireError(f"must be a list, is {_shown(value)}")
        if item is _same:
            return list(value)
        found = []
        for place, one in enumerate(value):
            try:
                found.append(item(one))
            except WireError as error:
                raise WireError(f"[{place}]: {error}") from None
        return found

    return read


def _dict(key: Convert, item: Convert) -> Convert:
    def read(value: Any) -> Any:
        if not isinstance(value, Mapping):
            raise WireError(f"must be an object, is {_shown(value)}")
        found = {}
        for name, one in value.items():
            try:
                found[key(name)] = item(one)
            except WireError as error:
                raise WireError(f"{name}: {error}") from None
        return found

    return read


def _writer(hint: Any) -> Convert | None:
    """A function that turns a value of the type ``hint`` into JSON, None if the value is JSON already."""
    origin, given = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        made = [choice for choice in given if _writer(choice) is not None]
        assert len(made) <= 1, f"{hint}: the type of a value cannot be told from its JSON"
        return _writer(made[0]) if made else None
    if origin is list:
        write = _writer(given[0])
        return None if write is None else lambda value: list(map(write, value))
    if origin is dict:
        name, item = _writer(given[0]) or _same, _writer(given[1]) or _same
        if name is item is _same:
            return None
        return lambda value: {name(key): item(one) for key, one in value.items()}
    if hint is UUID:
        return str
    if isinstance(hint, type) and issubclass(hint, Message):
        return lambda value: value.to_json()
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return lambda value: value.value
    return None
