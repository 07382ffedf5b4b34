"""Checkpoints in an object storage."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath

from determined import errors
from determined.storage import files
from determined.storage.base import Manifest, Selector, StorageManager, check_id
from determined.storage.blobs import BlobClient, NoSuchBlob

NOTE = ".unreported-"
PART_BYTES = 8 << 20
"""How much is read at once of an object."""


class ObjectStorageManager(StorageManager):
    """``<prefix>/<storage id>/<path>``: an object per file, and one with sizes and checksums, the manifest.

    The manifest is written last: with it a checkpoint is complete. An empty object
    ``<prefix>/.unreported-<id>@<owner>`` is written first, and removed when the checkpoint is
    :meth:`reported`. So without a manifest there is a checkpoint of another tool (unverified), or, with such
    a note, the remains of an unfinished or half-deleted one, which nobody sees. An empty directory is an
    object whose name ends in "/".
    """

    def __init__(self, blobs: BlobClient, prefix: str | None = None) -> None:
        self.blobs = blobs
        parts = [part for part in (prefix or "").split("/") if part]
        self._prefix = "".join(part + "/" for part in parts)

    def _folder(self, storage_id: str) -> str:
        check_id(storage_id)
        return f"{self._prefix}{storage_id}/"

    def _notes(self, storage_id: str) -> str:
        return f"{self._prefix}{NOTE}{storage_id}@"

    def _where(self, storage_id: str) -> str:
        return f"checkpoint {storage_id}: {self.blobs.place}/{self._folder(storage_id)}"

    def validate(self) -> None:
        key = f"{self._prefix}.probe-{secrets.token_hex(8)}"
        self.blobs.put(key, b"determined")
        content = self.blobs.get(key)
        self.blobs.delete([key])
        if content != b"determined":
            raise errors.StorageError(
                f"checkpoint storage: {self.blobs.place} does not keep what is written"
            )

    def begin(self, storage_id: str) -> None:
        self._folder(storage_id)
        self.blobs.put(self._notes(storage_id) + self.owner, b"")

    @contextlib.contextmanager
    def stage(self, storage_id: str, part: str = "0") -> Iterator[Path]:
        with files.scratch() as path, files.written_below(path):
            yield path

    def add(
        self,
        storage_id: str,
        src: Path,
        paths: Collection[str],
        extra: Mapping[str, bytes] | None = None,
    ) -> Manifest:
        folder = self._folder(storage_id)
        extra = extra or {}
        with files.explained("read", src):
            sizes = {path: (src / path).stat().st_size for path in paths if path[-1] != "/"}
        sizes |= {path: len(content) for path, content in extra.items()}
        inner = {
            f"{parent}/" for path in [*paths, *extra] for parent in PurePosixPath(path).parents
        }
        directories = [path for path in paths if path.endswith("/")]
        checksums: dict[str, str] = {}

        def step(job: tuple[str, str]) -> None:
            kind, path = job
            with files.explained("read", src / path):
                if kind == "mark":
                    self.blobs.put(folder + path, b"")
                elif kind == "hash":
                    checksums[path] = files.checksum(src / path)
                elif kind == "send":
                    self.blobs.put_file(folder + path, src / path)
                else:
                    content = extra[path] if path in extra else (src / path).read_bytes()
                    digest = files.Digest(files.algorithm_for(len(content)))
                    digest.update(content)
                    checksums[path] = digest.value()
                    self.blobs.put(folder + path, content)

        # Largest first; their checksums are made while they travel.
        jobs = []
        for path in sorted(sizes, key=sizes.__getitem__, reverse=True):
            large = sizes[path] > PART_BYTES and path not in extra
            jobs += [("send", path), ("hash", path)] if large else [("whole", path)]
        jobs += [("mark", path) for path in directories if path not in inner]
        files.in_parallel(step, jobs, self.blobs.threads)
        return Manifest({**sizes, **dict.fromkeys(directories, 0)}, checksums)

    def finish(self, storage_id: str, manifest: Manifest) -> None:
        folder = self._folder(storage_id)
        there = self.blobs.sizes(folder)
        for path, size in manifest.resources.items():
            if not path.endswith("/") and there.get(folder + path) != size:
                raise errors.StorageError(
                    f"checkpoint storage: {self._where(storage_id)}{path} was written with {size} bytes, "
                    f"and now {_found(there.get(folder + path))}"
                )
        self.blobs.put(folder + files.MANIFEST, manifest.to_json())
        if not self.owner:
            self.reported(storage_id)

    def abort(self, storage_id: str) -> None:
        self.delete(storage_id)

    def reported(self, storage_id: str) -> None:
        self.blobs.delete([self._notes(storage_id) + self.owner])

    def manifest(self, storage_id: str) -> Manifest:
        key = self._folder(storage_id) + files.MANIFEST
        try:
            return Manifest.from_json(
                self.blobs.get(key), f"checkpoint {storage_id}: {self.blobs.place}/{key}"
            )
        except NoSuchBlob:
            return self._of_another_tool(storage_id)

    def _of_another_tool(self, storage_id: str) -> Manifest:
        folder = self._folder(storage_id)
        there = self.blobs.sizes(folder)
        if not there or self.blobs.sizes(self._notes(storage_id), limit=1):
            raise errors.CheckpointNotFound(
                f"no checkpoint {storage_id} in {self.blobs.place}/{self._prefix}; is "
                "checkpoint_storage the one that it was written to?"
            )
        found = {key.removeprefix(folder): size for key, size in there.items()}
        found.pop("", None)
        parents = {parent for path in found for parent in PurePosixPath(path).parents}
        directories = {f"{parent}/": 0 for parent in parents if parent.name}
        return Manifest({**directories, **found}, {})

    @contextlib.contextmanager
    def restore_path(self, storage_id: str, selector: Selector | None = None) -> Iterator[Path]:
        with files.scratch() as path:
            self.download(storage_id, path, selector)
            yield path

    def download(
        self, storage_id: str, dst: Path, selector: Selector | None = None
    ) -> dict[str, int]:
        manifest = self.manifest(storage_id)
        wanted = files.selected(dict(manifest.resources), selector)
        for path in wanted:
            if path.startswith("/") or ".." in PurePosixPath(path).parts:
                raise errors.CheckpointCorrupted(
                    f"{self._where(storage_id)}{path} does not lie in the checkpoint"
                )
            directory = dst / path if path.endswith("/") else (dst / path).parent
            with files.explained("write", directory):
                directory.mkdir(parents=True, exist_ok=True)

        def write(path: str, content: Iterator[bytes], digest: files.Digest) -> bool:
            with files.explained("write", dst / path), (dst / path).open("wb") as file:
                for part in content:
                    file.write(part)
                    digest.update(part)
            return True

        part = Manifest(wanted, manifest.checksums)
        try:
            self._read(storage_id, part, write)
        except errors.CheckpointCorrupted:
            for path in wanted:
                if not path.endswith("/"):
                    (dst / path).unlink(missing_ok=True)
            raise
        return wanted

    def verify(
        self,
        storage_id: str,
        expected: Manifest | None = None,
        stop: Callable[[], bool] = lambda: False,
    ) -> None:
        if not self.blobs.sizes(self._prefix, limit=1):
            raise errors.StorageError(
                f"checkpoint storage: {self.blobs.place}/{self._prefix} is empty; is it the storage "
                "that was written to?"
            )
        manifest = self.manifest(storage_id)

        def check(path: str, content: Iterator[bytes], digest: files.Digest) -> bool:
            for part in content:
                if stop():
                    return False
                digest.update(part)
            return True

        if not stop():
            self._read(storage_id, expected or manifest, check)

    def _read(
        self,
        storage_id: str,
        manifest: Manifest,
        consume: Callable[[str, Iterator[bytes], files.Digest], bool],
    ) -> None:
        """Have ``consume`` take each file's contents, in parallel, and compare sizes and checksums. It
        returns whether it has taken all."""
        folder = self._folder(storage_id)
        there = self.blobs.sizes(folder)
        sizes = {path: size for path, size in manifest.resources.items() if path[-1] != "/"}
        for path, size in sizes.items():
            found = there.get(folder + path)
            if found != size:
                raise errors.CheckpointCorrupted(
                    f"{self._where(storage_id)}{path} {_found(found)}, {size} were stored"
                )

        def take(path: str, content: Iterator[bytes]) -> None:
            expected = manifest.checksums.get(path)
            digest = files.Digest(files.algorithm_for(sizes[path], expected))
            if not consume(path, content, digest) or expected is None:
                return
            found = digest.value()
            if found != expected:
                raise errors.CheckpointCorrupted(
                    f"{self._where(storage_id)}{path}: the contents have changed since it was stored "
                    f"({expected} then, {found} now)"
                )

        small = [path for path in sizes if sizes[path] <= PART_BYTES]
        files.in_parallel(
            lambda path: take(path, self._parts(folder + path, sizes[path])),
            small,
            self.blobs.threads,
        )
        with ThreadPoolExecutor(self.blobs.threads) as pool:
            for path in sizes.keys() - set(small):
                take(path, self._parts(folder + path, sizes[path], pool))

    def _parts(
        self, key: str, size: int, pool: ThreadPoolExecutor | None = None
    ) -> Iterator[bytes]:
        """An object's contents in order, by ``pool`` several parts at once."""
        starts = range(0, size, PART_BYTES)
        if pool is None:
            for start in starts:
                yield self.blobs.get(key, start, min(start + PART_BYTES, size))
            return
        waiting = []
        try:
            for start in starts:
                end = min(start + PART_BYTES, size)
                waiting.append(pool.submit(self.blobs.get, key, start, end))
                if len(waiting) >= self.blobs.threads:
                    yield waiting.pop(0).result()
            while waiting:
                yield waiting.pop(0).result()
        finally:
            for call in waiting:
                call.cancel()

    def _delete_some(self, storage_id: str, gone: Collection[str], left: Manifest) -> None:
        folder = self._folder(storage_id)
        self.blobs.put(folder + files.MANIFEST, left.to_json())
        self.blobs.delete([folder + path for path in sorted(gone)])

    def _delete_all(self, storage_id: str) -> None:
        folder = self._folder(storage_id)
        objects = self.blobs.sizes(folder)
        notes = self.blobs.sizes(self._notes(storage_id))
        if objects:
            if not notes:
                # What is left when this is killed must not look like a checkpoint of another tool.
                notes = {self._notes(storage_id) + self.owner: 0}
                self.blobs.put(self._notes(storage_id) + self.owner, b"")
            if folder + files.MANIFEST in objects:
                self.blobs.delete([folder + files.MANIFEST])
            self.blobs.delete(objects)
        self.blobs.abandon(folder)
        if notes:
            self.blobs.delete(notes)

    def sweep(
        self,
        owners: str,
        known: Callable[[Collection[str]], Collection[str]],
        are_gone: Callable[[], bool] = lambda: True,
    ) -> list[str]:
        start = self._prefix + NOTE
        notes = {}
        for key in self.blobs.sizes(start):
            storage_id, _, owner = key.removeprefix(start).partition("@")
            if owner.startswith(owners):
                notes[storage_id] = key
        if not notes or not are_gone():
            return []
        finished = [
            storage_id
            for storage_id in notes
            if self.blobs.sizes(self._folder(storage_id) + files.MANIFEST, limit=1)
        ]
        kept = set(known(finished)) if finished else set()
        removed = []
        for storage_id, key in notes.items():
            if storage_id not in kept:
                self._delete_all(storage_id)
                removed.append(storage_id)
            self.blobs.delete([key])
        return removed

    def _key(self, key: str) -> str:
        if not key or key.startswith("/") or ".." in PurePosixPath(key).parts:
            raise errors.StorageError(
                f"checkpoint storage: {key!r} is outside of {self.blobs.place}/{self._prefix}"
            )
        return self._prefix + key.rstrip("/")

    def put(self, key: str, source: Path) -> None:
        with files.explained("read", source):
            self.blobs.put_file(self._key(key), source)

    def fetch(self, key: str, target: Path) -> list[str]:
        prefix = self._key(key) + "/"
        found = {name.removeprefix(prefix): size for name, size in self.blobs.sizes(prefix).items()}

        def copy(name: str) -> None:
            path = target / name
            if path.is_file() and path.stat().st_size == found[name]:
                return
            with files.explained("write", path):
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(self.blobs.get(prefix + name))

        with ThreadPoolExecutor(self.blobs.threads) as pool:
            list(pool.map(copy, found))
        return sorted(found)

    def discard(self, key: str) -> None:
        found = self.blobs.sizes(self._key(key) + "/")
        self.blobs.delete([*found, self._key(key)])


def _found(size: int | None) -> str:
    return "is missing" if size is None else f"has {size} bytes"
