"""Packs: plain tar archives that hold many small files of a checkpoint in one object.

An object of any size costs a request and its bookkeeping: a thousand small files take as long as gigabytes.
The checkpoint's manifest says where each file lies in a pack.
"""

from __future__ import annotations

import dataclasses
import hashlib
import io
import secrets
import tarfile
import time
from collections.abc import Collection, Iterable, Mapping
from typing import Any, BinaryIO

SMALL_BYTES = 1 << 20
"""Files of fewer bytes are packed."""

PACK_BYTES = 16 << 20
"""No pack is larger."""

PREFIX = ".determined-pack-"
_BLOCK = tarfile.BLOCKSIZE
# A header, what fills up the contents' last block, and a long name's two headers and its block.
_AROUND = 5 * _BLOCK


@dataclasses.dataclass(frozen=True)
class Pack:
    """``size``: bytes of the object; ``members``: path → where its contents begin in it."""

    size: int
    members: Mapping[str, int]

    @classmethod
    def from_json(cls, found: Any) -> Pack:
        """Raises KeyError, TypeError and ValueError for anything else."""
        members = {str(path): int(offset) for path, offset in dict(found["members"]).items()}
        return cls(int(found["size"]), members)


def new_name() -> str:
    """The name of a new pack below a checkpoint's prefix; no two writers choose the same."""
    return f"{PREFIX}{secrets.token_hex(8)}.tar"


def shortened_name(name: str, left: Iterable[str]) -> str:
    """The name of the pack that replaces the pack ``name`` when only its members ``left`` stay.

    A second try after a crash chooses the same name.
    """
    text = "\n".join([name, *sorted(left)])
    digest = hashlib.sha256(text.encode()).hexdigest()
    return f"{PREFIX}{digest[:16]}.tar"


def grouped(sizes: Mapping[str, int]) -> list[list[str]]:
    """Groups of these files (path → bytes) that share a pack.

    Neighbours by name share a pack, since they are often wanted together. A file that is not small, or
    would be alone, is in no pack.
    """
    groups: list[list[str]] = []
    room = 0
    for path in sorted(path for path, size in sizes.items() if size < SMALL_BYTES):
        needed = sizes[path] + _AROUND + len(path.encode())
        if needed > room:
            groups.append([])
            room = PACK_BYTES - tarfile.RECORDSIZE
        groups[-1].append(path)
        room -= needed
    return [group for group in groups if len(group) > 1]


def write(
    target: BinaryIO, contents: Iterable[tuple[str, bytes]], executable: Collection[str] = ()
) -> Pack:
    """Write an archive of these files (path, contents); ``executable``: the paths of programs."""
    members = {}
    with tarfile.open(fileobj=target, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for path, content in contents:
            info = tarfile.TarInfo(path)
            info.size = len(content)
            info.mtime = int(time.time())
            info.mode = 0o755 if path in executable else 0o644
            archive.addfile(info, io.BytesIO(content))
            members[path] = target.tell() - -(-len(content) // _BLOCK) * _BLOCK
    return Pack(target.tell(), members)
