"""JSON as Determined's clients expect it, by orjson."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson
from starlette.responses import Response


def _default(value: Any) -> Any:
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    raise TypeError(f"{type(value).__name__} cannot be sent as JSON")


def dumps(value: Any) -> bytes:
    """UTF-8 JSON; datetimes (UTC) end in ``Z``, UUIDs are text, numpy values are plain ones."""
    return orjson.dumps(
        value,
        default=_default,
        option=orjson.OPT_UTC_Z | orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS,
    )


def by_name(value: Any) -> Any:
    """A copy whose mappings are sorted by their names, at every level.

    For hyperparameters: JSONB keeps the shortest name first, while Determined sorted them, and so do users'
    logs, patterns and file names.
    """
    if isinstance(value, Mapping):
        return {name: by_name(value[name]) for name in sorted(value)}
    if isinstance(value, list):
        return [by_name(item) for item in value]
    return value


# Many clients take these for line ends too (as str.splitlines does).
_LINE_ENDS = (("\u2028", b"\\u2028"), ("\u2029", b"\\u2029"), ("\x85", b"\\u0085"))


def one_line_each(lines: bytes) -> bytes:
    """NDJSON that nobody divides elsewhere than at its line feeds."""
    if not lines.isascii():
        for character, escape in _LINE_ENDS:
            lines = lines.replace(character.encode(), escape)
    return lines


def ndjson(result: Any) -> bytes:
    """One line ``{"result": …}`` of a streamed answer."""
    return one_line_each(dumps({"result": result}) + b"\n")


class JsonResponse(Response):
    """An answer of JSON."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return dumps(content)
