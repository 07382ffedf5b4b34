"""Checks input against :mod:`determined.common.wire.limits`, before anything is stored.

* :func:`check_value`: JSON of an open shape, such as metadata
* :func:`check_shape`: the raw bytes of JSON, before they are parsed

A refusal says where (a path such as ``metadata.a[3]``), what was found, and what is allowed.
"""

from __future__ import annotations

import datetime
import math
import re
from typing import Any

from determined.common.wire import limits
from determined.common.wire.checks import SHOWN, refusal, show, text_problem
from determined_service.base.refusals import BadRequest, TooLarge


def check_text(text: Any, path: str, most: int = limits.NAME_CHARS) -> str:
    """``text``, if it is text of at most ``most`` characters; raises BadRequest."""
    why = refusal(text, path, most)
    if why is not None:
        raise BadRequest(why)
    return str(text)


def check_int(value: Any, path: str, least: int = 0, most: int = limits.INT64) -> int:
    """``value``, if it is a whole number in that range; raises BadRequest."""
    if type(value) is not int or not least <= value <= most:
        raise BadRequest(
            f"{path}: expected a whole number from {least} to {most}, found {show(value)}"
        )
    return value


def check_time(
    moment: datetime.datetime, path: str, years: tuple[int, int] = limits.YEARS
) -> datetime.datetime:
    """``moment``, if it lies in ``years``, the last one included; raises BadRequest."""
    first, last = years
    if not first <= moment.year <= last:
        raise BadRequest(
            f"{path}: expected a time from {first} to {last}, found {moment.isoformat()}"
        )
    return moment


def check_bytes(found: int, most: int, path: str) -> None:
    """Raises BadRequest for more bytes than ``most``."""
    if found > most:
        raise BadRequest(f"{path}: {found} bytes found, at most {most} are allowed")


class _Walk:
    """One look at a value of an open shape."""

    def __init__(self, most: int, nul: bool) -> None:
        self.most = most
        self.left = most
        self.nul = nul

    def visit(self, value: Any, path: str, depth: int) -> None:
        self.left -= 1
        if self.left < 0:
            raise BadRequest(f"{path}: at most {self.most} values are allowed")
        kind = type(value)
        if kind is str:
            self.text(value, path)
        elif kind is int:
            if not -limits.INT64 - 1 <= value <= limits.INT64:
                raise BadRequest(f"{path}: expected a number of 64 bits, found {show(value)}")
        elif kind is float:
            if not math.isfinite(value):
                raise BadRequest(f"{path}: {value} cannot be stored: send it as a string")
        elif kind is dict or kind is list:
            if depth >= limits.DEPTH:
                shown = path if len(path) <= SHOWN else f"{path[:SHOWN]}…"
                raise BadRequest(
                    f"{shown}: lists and objects lie more than {limits.DEPTH} deep in each other; "
                    f"{limits.DEPTH} are allowed"
                )
            if kind is dict:
                for key, item in value.items():
                    where = f"{path}.{key}" if path else key
                    if len(where) > 200:
                        where = f"{where[:200]}…"
                    self.text(key, where)
                    self.visit(item, where, depth + 1)
            else:
                for place, item in enumerate(value):
                    self.visit(item, f"{path}[{place}]", depth + 1)

    def text(self, text: str, path: str) -> None:
        if not self.nul or not text.isascii():
            problem = text_problem(text.replace("\0", "") if self.nul else text)
            if problem:
                raise BadRequest(f"{show(path)}: {problem}")


def check_value(
    value: Any, path: str = "", *, values: int = limits.VALUES, nul: bool = False
) -> None:
    """Raises BadRequest for JSON that is too deep, has too many values, numbers beyond 64 bits, or
    characters that cannot be stored. ``nul``: NUL is let through, because the caller replaces it.
    """
    _Walk(values, nul).visit(value, path, 0)


# Strings are skipped as wholes; an open one reaches to the end. Possessive: no look back, so linear time.
_TOKEN = re.compile(rb'"(?:[^"\\]++|\\.)*+"?|[\[{]', re.DOTALL)


def check_shape(raw: bytes, most: int = limits.CONTAINERS) -> None:
    """Raises TooLarge for JSON text with more lists and objects than ``most``, whose parsing would hold up
    everybody else.
    """
    if raw.count(b"[") + raw.count(b"{") <= most:
        return
    found = 0
    for token in _TOKEN.finditer(raw):
        if token[0][0] != 0x22:
            found += 1
            if found > most:
                raise TooLarge(
                    f"the request's body has more than {most} lists and objects; "
                    f"at most {most} are allowed"
                )
