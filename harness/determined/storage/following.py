"""Copies of files that grow in a storage: each time only what is new comes."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath

from determined.storage import files

Admit = Callable[[str, int], bool]
"""True if a file (its relative path) may take that number of additional bytes here."""
Read = Callable[[str, int, int], bytes]
"""The bytes of a file, by its relative path, from one place up to another; fewer if it ends before."""

PIECE = 8 << 20
OVERLAP = 4096
"""So many bytes before the end of a copy are compared: what is there may be another file by now."""


def everything(name: str, more: int) -> bool:
    return True


def copy_new(
    sizes: dict[str, int], read: Read, target: Path, admit: Admit = everything, threads: int = 1
) -> list[str]:
    """Bring the files below ``target`` up to ``sizes``, by path; returns those that exist then.

    A file of the same size stays as it is. A file that has grown gets its new end appended in place, so that
    programs that have it open see it. A file that was replaced is copied anew. An interrupted copy continues
    the next time.
    """

    def copy(name: str) -> str | None:
        if not _is_inside(name):
            return None
        path, size = target / name, sizes[name]
        with files.explained("write", path):
            have = path.stat().st_size if path.is_file() else 0
            if have == size and path.is_file():
                return name
            if not admit(name, size - have):
                return name if path.is_file() else None
            path.parent.mkdir(parents=True, exist_ok=True)
            if not (have < size and _append(path, name, have, size, read)):
                _replace(path, name, size, read)
        return name

    if threads == 1:
        found = [copy(name) for name in sorted(sizes)]
    else:
        with ThreadPoolExecutor(threads) as pool:
            found = list(pool.map(copy, sorted(sizes)))
    return [name for name in found if name is not None]


def _is_inside(name: str) -> bool:
    path = PurePosixPath(name)
    return bool(name) and not path.is_absolute() and ".." not in path.parts


def _append(path: Path, name: str, have: int, size: int, read: Read) -> bool:
    """False: the file is not the one whose beginning the copy is."""
    start = max(0, have - OVERLAP)
    with path.open("r+b" if path.exists() else "w+b") as file:
        file.seek(start)
        known = file.read(have - start)
        at = start
        while at < size:
            piece = read(name, at, min(size, at + PIECE))
            if at == start:
                if not piece.startswith(known):
                    return False
                piece = piece[len(known) :]
                at = have
            if not piece:
                break
            file.seek(at)
            file.write(piece)
            at += len(piece)
    return True


def _replace(path: Path, name: str, size: int, read: Read) -> None:
    new = path.with_name(f".{path.name}-{secrets.token_hex(4)}")
    try:
        with new.open("xb") as file:
            while file.tell() < size:
                piece = read(name, file.tell(), min(size, file.tell() + PIECE))
                if not piece:
                    break
                file.write(piece)
        os.replace(new, path)  # noqa: PTH105
    except BaseException:
        with contextlib.suppress(OSError):
            new.unlink()
        raise
