"""An object storage in memory that can be watched and killed."""

from __future__ import annotations

import itertools
from collections.abc import Collection
from pathlib import Path

from determined.storage import Manifest
from determined.storage.blobs import BlobClient, NoSuchBlob
from determined.storage.objects import ObjectStorageManager


class Killed(BaseException):
    """The process ends here."""


class Memory(BlobClient):
    """Objects in memory. ``dies_at``: which of the next writes and deletions is the last thing that is not
    done any more; ``reads`` and ``writes``: the requests received."""

    place = "memory"
    threads = 4

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.dies_at: int | None = None
        self.reads: list[tuple[str, int]] = []
        self.writes: list[str] = []

    def _change(self) -> None:
        if self.dies_at is not None:
            self.dies_at -= 1
            if self.dies_at < 0:
                raise Killed

    def put(self, key: str, content: bytes) -> None:
        self._change()
        self.writes.append(key)
        self.objects[key] = bytes(content)

    def put_file(self, key: str, source: Path) -> None:
        self.put(key, source.read_bytes())

    def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        if key not in self.objects:
            raise NoSuchBlob(key)
        found = self.objects[key][start:end]
        self.reads.append((key, len(found)))
        return found

    def sizes(self, prefix: str, limit: int | None = None) -> dict[str, int]:
        found = {
            key: len(self.objects[key]) for key in sorted(self.objects) if key.startswith(prefix)
        }
        return dict(itertools.islice(found.items(), limit))

    def delete(self, keys: Collection[str]) -> None:
        for key in keys:
            self._change()
            self.objects.pop(key, None)


def store(manager: ObjectStorageManager, name: str, content: dict[str, bytes]) -> Manifest:
    with manager.store(name) as staging:
        for path, data in content.items():
            (staging.path / path).parent.mkdir(parents=True, exist_ok=True)
            (staging.path / path).write_bytes(data)
    assert staging.manifest is not None
    return staging.manifest


def contents_of(manager: ObjectStorageManager, name: str, target: Path) -> dict[str, bytes]:
    found = manager.download(name, target)
    return {path: (target / path).read_bytes() for path in found if path[-1] != "/"}
