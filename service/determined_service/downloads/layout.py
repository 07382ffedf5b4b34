"""A checkpoint as one sequence of bytes: its files in the order of their names, one after the other."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

_RANGE = re.compile(r"bytes=(\d{0,18})-(\d{0,18})")


class PlacedFile(NamedTuple):
    """``offset``: where it begins in the sequence. ``checksum``: None if it is not known."""

    path: str
    size: int
    offset: int
    checksum: str | None
    executable: bool


@dataclass(frozen=True, slots=True)
class Range:
    """The bytes from ``start`` up to ``end``."""

    start: int
    end: int

    def __len__(self) -> int:
        return self.end - self.start


def files(
    resources: Mapping[str, int], checksums: Mapping[str, str], executable: Collection[str]
) -> list[PlacedFile]:
    """The files of a checkpoint in order; directories end in "/" and are none."""
    found = []
    offset = 0
    programs = frozenset(executable)
    for path in sorted(path for path in resources if not path.endswith("/")):
        size = int(resources[path])
        found.append(PlacedFile(path, size, offset, checksums.get(path), path in programs))
        offset += size
    return found


def directories(resources: Mapping[str, int]) -> list[str]:
    return sorted(path for path in resources if path.endswith("/"))


def spans(every: list[PlacedFile], wanted: Range) -> list[tuple[str, int, int]]:
    """Of each file that lies in ``wanted``: its path, and from where up to where."""
    found = []
    for file in every:
        start = max(wanted.start - file.offset, 0)
        end = min(wanted.end - file.offset, file.size)
        if start < end:
            found.append((file.path, start, end))
    return found


def read_range(header: str | None, size: int) -> Range | None:
    """The range that a ``Range`` header asks for; None: everything (no header, or one to be ignored).

    Raises ValueError when these bytes do not exist.
    """
    found = _RANGE.fullmatch((header or "").replace(" ", ""))
    if found is None or not (found[1] or found[2]):
        # Several ranges, another unit: a server may answer with the whole.
        return None
    if not found[1]:
        start, end = max(size - int(found[2]), 0), size
    else:
        start = int(found[1])
        end = min(int(found[2]) + 1, size) if found[2] else size
        if found[2] and int(found[2]) < start:
            return None
    if start >= end:
        raise ValueError(f"there are {size} bytes")
    return Range(start, end)


def listing(
    resources: Mapping[str, int],
    checksums: Mapping[str, str],
    executable: Collection[str],
    version: str,
) -> dict[str, Any]:
    """The answer to a request for the files. Sizes are 64-bit numbers, which our JSON writes as strings."""
    every = files(resources, checksums, executable)
    return {
        "version": version,
        "size": str(sum(file.size for file in every)),
        "files": [
            {
                "path": file.path,
                "size": str(file.size),
                "offset": str(file.offset),
                "checksum": file.checksum,
                "executable": file.executable,
            }
            for file in every
        ],
        "directories": directories(resources),
    }
