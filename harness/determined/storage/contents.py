"""Reads the files of a checkpoint from the objects that contain them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor

from determined import errors
from determined.storage import files
from determined.storage.base import Manifest
from determined.storage.blobs import BlobClient

PART_BYTES = 8 << 20
"""Bytes of an object that are read at once."""

GAP_BYTES = 128 << 10
"""Members of a pack with at most this many bytes between them are read together: the bytes cost less than a
request.
"""

NAMED = 5
"""The most files of a pack that an error message names."""

Parts = Iterator[bytes]
Consume = Callable[[str, Parts, files.Digest], bool]


@dataclasses.dataclass
class PackedRange:
    """Bytes of the object ``name``, and the files in them: path → where it begins in the object."""

    name: str
    start: int
    end: int
    paths: dict[str, int]


def objects(manifest: Manifest) -> dict[str, int]:
    """The objects of the checkpoint, by name below its prefix, and their sizes in bytes.

    Objects of empty directories are left out.
    """
    members = manifest.members()
    plain = {
        path: size
        for path, size in manifest.resources.items()
        if path[-1] != "/" and path not in members
    }
    return plain | {name: manifest.packs[name].size for name, _ in members.values()}


def ranges(manifest: Manifest) -> list[PackedRange]:
    """The ranges to read: neighbouring files together up to PART_BYTES, a larger file by itself."""
    members = manifest.members()
    sizes = {path: size for path, size in manifest.resources.items() if path[-1] != "/"}
    found: list[PackedRange] = []
    for (name, start), path in sorted((members.get(path, (path, 0)), path) for path in sizes):
        end = start + sizes[path]
        last = found[-1] if found else None
        if (
            last is not None
            and last.name == name
            and start - last.end <= GAP_BYTES
            and end - last.start <= PART_BYTES
        ):
            last.end = max(last.end, end)
            last.paths[path] = start
        else:
            found.append(PackedRange(name, start, end, {path: start}))
    return found


def small_files(
    blobs: BlobClient, folder: str, part: PackedRange, sizes: Mapping[str, int]
) -> Iterator[tuple[str, bytes]]:
    """The files of a range (path, contents), read at once. Fewer bytes when the object is shorter."""
    content = b""
    if part.end > part.start:
        content = blobs.get(folder + part.name, part.start, part.end)
    for path, start in part.paths.items():
        at = start - part.start
        yield path, content[at : at + sizes[path]]


class Contents:
    """The files of the checkpoint that ``manifest`` lists, in the objects below ``folder``.

    ``where``: the beginning of error messages.
    """

    def __init__(self, blobs: BlobClient, folder: str, manifest: Manifest, where: str) -> None:
        self._blobs = blobs
        self._folder = folder
        self._manifest = manifest
        self._where = where

    def read(self, consume: Consume, stop: Callable[[], bool] = lambda: False) -> None:
        """Pass each file's contents to ``consume``, in parallel, and compare sizes and checksums.

        ``consume`` returns whether it has taken all of the contents. It is not called any more once
        ``stop()`` is true. Raises errors.CheckpointCorrupted, errors.StorageError.
        """
        if stop():
            return
        self._compare_sizes()
        every = ranges(self._manifest)
        large = [part for part in every if part.end - part.start > PART_BYTES]

        def take_small(part: PackedRange) -> None:
            if stop():
                return
            found = small_files(self._blobs, self._folder, part, self._manifest.resources)
            for path, content in found:
                self._take(path, iter([content]), consume)

        small = [part for part in every if part.end - part.start <= PART_BYTES]
        files.in_parallel(take_small, small, self._blobs.threads)
        with ThreadPoolExecutor(self._blobs.threads) as pool:
            for part in large:
                if not stop():
                    (path,) = part.paths
                    self._take(path, self._parts(part, pool), consume)

    def _compare_sizes(self) -> None:
        there = self._blobs.sizes(self._folder)
        for name, size in objects(self._manifest).items():
            found = there.get(self._folder + name)
            if found != size:
                raise errors.CheckpointCorrupted(
                    f"{self._where}{name} {described(found)}, {size} were stored{self._lying_in(name)}"
                )

    def _lying_in(self, pack: str) -> str:
        found = [path for path, (name, _) in self._manifest.members().items() if name == pack]
        more = f" and {len(found) - NAMED} more" if len(found) > NAMED else ""
        return f"; in it lie {', '.join(sorted(found)[:NAMED])}{more}" if found else ""

    def _take(self, path: str, content: Parts, consume: Consume) -> None:
        expected = self._manifest.checksums.get(path)
        digest = files.Digest(files.algorithm_for(self._manifest.resources[path], expected))
        if not consume(path, content, digest) or expected is None:
            return
        found = digest.value()
        if found != expected:
            raise errors.CheckpointCorrupted(
                f"{self._where}{path}: the contents have changed since the file was stored "
                f"(checksum {expected} then, {found} now)"
            )

    def _parts(self, part: PackedRange, pool: ThreadPoolExecutor) -> Parts:
        """An object's contents in order, by ``pool`` several parts at once."""
        key = self._folder + part.name
        waiting = []
        try:
            for start in range(part.start, part.end, PART_BYTES):
                end = min(start + PART_BYTES, part.end)
                waiting.append(pool.submit(self._blobs.get, key, start, end))
                if len(waiting) >= self._blobs.threads:
                    yield waiting.pop(0).result()
            while waiting:
                yield waiting.pop(0).result()
        finally:
            for call in waiting:
                call.cancel()


def described(size: int | None) -> str:
    """Describe the size found of an object, in words."""
    return "is missing" if size is None else f"has {size} bytes"
