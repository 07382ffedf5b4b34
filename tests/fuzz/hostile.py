"""Values that no route expects. Everything is drawn from the ``random.Random`` that is handed in."""

from __future__ import annotations

import random
import uuid
from typing import Any

INTEGERS = [
    0,
    -1,
    2**31 - 1,
    2**31,
    -(2**31) - 1,
    2**53,
    2**63 - 1,
    2**63,
    -(2**63) - 1,
    2**64,
    10**30,
    -(10**30),
    10**400,
]
FLOATS = [0.5, -0.0, 1e308, -1e308, 5e-324, float("nan"), float("inf"), float("-inf")]
TEXTS = [
    "",
    " ",
    "\0",
    "a\0b",
    "\ud800",
    "a\udfffb",
    "\x1b[31mred",
    "line\nforged 2026-01-01 ERROR",
    "\u202eback",
    "\U0001f600" * 20,
    "é" * 300,
    "' OR 1=1 --",
    '"); drop table users; --',
    "%s %(a)s {0} {x}",
    "../../etc/passwd",
    "/",
    ".",
    "a" * 3000,
    "(a+)+$",
    "((((((((((a{1,99}){1,99}){1,99}",
    "[",
    "0001-01-01T00:00:00+14:00",
    "9999-12-31T23:59:59-14:00",
    "2026-11-21T13:00:00Z",
    "NaN",
    "Infinity",
    "null",
    "true",
    "STATE_ACTIVE",
    "ORDER_BY_DESC",
    "SORT_BY_ID",
]


def integer(draw: random.Random) -> int:
    return draw.choice(INTEGERS) if draw.random() < 0.8 else draw.randrange(-(2**70), 2**70)


def text(draw: random.Random) -> str:
    if draw.random() < 0.1:
        return str(uuid.UUID(int=draw.getrandbits(128)))
    return draw.choice(TEXTS)


def scalar(draw: random.Random) -> Any:
    kind = draw.randrange(6)
    if kind == 0:
        return draw.choice([None, True, False])
    if kind == 1:
        return draw.choice(FLOATS)
    return integer(draw) if kind < 4 else text(draw)


def value(draw: random.Random, depth: int = 0) -> Any:
    """Any JSON value."""
    roll = draw.random()
    if depth > 3 or roll < 0.6:
        return scalar(draw)
    if roll < 0.7:
        return deep(draw.choice([5, 70, 300]), draw.random() < 0.5)
    if roll < 0.85:
        return [value(draw, depth + 1) for _ in range(draw.randrange(4))]
    return {text(draw): value(draw, depth + 1) for _ in range(draw.randrange(4))}


def deep(levels: int, objects: bool) -> Any:
    """Lists or objects inside each other."""
    found: Any = 1
    for _ in range(levels):
        found = {"a": found} if objects else [found]
    return found


def raw_body(draw: random.Random) -> bytes:
    """Bytes that are not JSON, or JSON that is expensive to parse."""
    return draw.choice(
        [
            b"",
            b"{",
            b"nope",
            b"\xff\xfe\x00",
            b"\x00",
            b'"\\ud800"',
            b'{"a": 1' + b"0" * 5000 + b"}",
            b"[" * 20_000,
            b'{"a":' * 5_000,
            b"[" + b"[]," * 30_000 + b"[]]",
            b'{"a": 1, "a": 2}',
            b"\xef\xbb\xbf{}",
            b"NaN",
            b"[NaN, Infinity, -Infinity]",
            b"1e999",
            b"\x1f\x8b\x08\x00\x00\x00\x00\x00",
            b'"' + b"x" * 200_000 + b'"',
            b'["' + b'\\"' * 100_000,
            b"{" + b",".join(b'"k%d":%d' % (i, i) for i in range(20_000)) + b"}",
        ]
    )
