"""Sending the files of a checkpoint to an object storage."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path, PurePosixPath

from determined.storage import files, packs
from determined.storage.base import Manifest
from determined.storage.blobs import BlobClient

LARGE_BYTES = 8 << 20
"""Files of more bytes are hashed while they are sent, not in memory."""


class FolderSender:
    """Sends the ``paths`` below ``src`` and the contents of ``extra`` to ``folder``.

    Directories end in "/". ``pack``: whether small files go together (:mod:`determined.storage.packs`).
    """

    def __init__(
        self,
        blobs: BlobClient,
        folder: str,
        src: Path,
        paths: Collection[str],
        extra: Mapping[str, bytes],
        pack: bool,
    ) -> None:
        self._blobs = blobs
        self._folder = folder
        self._src = src
        self._extra = extra
        self._directories = [path for path in paths if path.endswith("/")]
        names = [path for path in paths if path[-1] != "/"]
        with files.explained("read", src):
            self._sizes = {path: (src / path).stat().st_size for path in names}
            self._executable = frozenset(p for p in names if files.is_executable(src / p))
        self._sizes |= {path: len(content) for path, content in extra.items()}
        self._groups = packs.grouped(self._sizes) if pack else []
        self._checksums: dict[str, str] = {}
        self._packs: dict[str, packs.Pack] = {}

    def run(self) -> Manifest:
        """Returns when all is stored. Raises errors.StorageError."""
        files.in_parallel(lambda job: job(), self._jobs(), self._blobs.threads)
        resources = {**self._sizes, **dict.fromkeys(self._directories, 0)}
        return Manifest(resources, self._checksums, self._packs, executable=self._executable)

    def _jobs(self) -> list[Callable[[], None]]:
        """Largest files first; their checksums are computed while they are sent."""
        jobs: list[Callable[[], None]] = []
        members = {path for group in self._groups for path in group}
        large = [self._send] if self._blobs.hashes_files else [self._send, self._hash]
        for path in sorted(self._sizes.keys() - members, key=self._sizes.__getitem__, reverse=True):
            is_large = self._sizes[path] > LARGE_BYTES and path not in self._extra
            steps = large if is_large else [self._send_whole]
            jobs += [functools.partial(step, path) for step in steps]
        jobs += [functools.partial(self._send_pack, group) for group in self._groups]
        # Directories with files exist through the files' names.
        inner = {
            f"{parent}/"
            for path in [*self._sizes, *self._directories]
            for parent in PurePosixPath(path).parents
        }
        for path in self._directories:
            if path not in inner:
                jobs.append(functools.partial(self._blobs.put, self._folder + path, b""))
        return jobs

    def _read(self, path: str) -> bytes:
        with files.explained("read", self._src / path):
            content = self._extra[path] if path in self._extra else (self._src / path).read_bytes()
        digest = files.Digest(files.algorithm_for(len(content)))
        digest.update(content)
        self._sizes[path], self._checksums[path] = len(content), digest.value()
        return content

    def _send_whole(self, path: str) -> None:
        self._blobs.put(self._folder + path, self._read(path))

    def _send_pack(self, paths: list[str]) -> None:
        name = packs.new_name()
        members = ((path, self._read(path)) for path in paths)
        self._packs[name] = put_pack(self._blobs, self._folder + name, members, self._executable)

    def _send(self, path: str) -> None:
        with files.explained("read", self._src / path):
            known = self._blobs.put_file(self._folder + path, self._src / path)
        if known is not None:
            self._checksums[path] = known

    def _hash(self, path: str) -> None:
        with files.explained("read", self._src / path):
            self._checksums[path] = files.checksum(self._src / path)


def put_pack(
    blobs: BlobClient, key: str, members: Iterable[tuple[str, bytes]], executable: Collection[str]
) -> packs.Pack:
    """Store these files (path, contents) as one object. Raises errors.StorageError."""
    with files.scratch() as path:
        local = path / "pack.tar"
        with files.explained("write", local), local.open("wb") as file:
            made = packs.write(file, members, executable)
        with files.explained("read", local):
            blobs.put_file(key, local)
    return made
