"""Checkpoints in an object storage."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import secrets
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path, PurePosixPath

from determined import errors
from determined.storage import contents, copies, files, packs, sending
from determined.storage.base import Manifest, Selector, StorageManager, check_id, is_uuid
from determined.storage.blobs import BlobClient, NoSuchBlob
from determined.storage.following import Admit, copy_new, everything
from determined.storage.spans import Span, is_inside

AHEAD_BYTES = 4 << 20
AHEAD = 6
"""The number and size of the parts that :meth:`ObjectStorageManager.read` requests before it needs them."""

NOTE = ".unreported-"


class ObjectStorageManager(StorageManager):
    """``<prefix>/<storage id>/<path>``: an object per file, and one with sizes and checksums, the manifest.

    The manifest is written last: with it a checkpoint is complete. An empty object
    ``<prefix>/.unreported-<id>@<owner>`` is written first, and removed when the checkpoint is
    :meth:`reported`. Files without a manifest are therefore a checkpoint of another tool (unverified) or,
    if there is such a note, the invisible remains of an unfinished or half-deleted checkpoint. An empty
    directory is an object whose name ends in "/". With ``pack_small_files`` several small files share an
    object (:mod:`determined.storage.packs`); the manifest says which.
    """

    def __init__(
        self, blobs: BlobClient, prefix: str | None = None, pack_small_files: bool = False
    ) -> None:
        self.blobs = blobs
        self._pack_small_files = pack_small_files
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
                f"checkpoint storage: a file written to {self.blobs.place} cannot be read back; "
                "check the storage"
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
        pack = self._pack_small_files
        return sending.FolderSender(self.blobs, folder, src, paths, extra or {}, pack).run()

    def finish(self, storage_id: str, manifest: Manifest) -> None:
        folder = self._folder(storage_id)
        there = self.blobs.sizes(folder)
        for name, size in contents.objects(manifest).items():
            found = there.get(folder + name)
            if found != size:
                raise errors.StorageError(
                    f"checkpoint storage: {self._where(storage_id)}{name} was written with {size} "
                    f"bytes, but now {contents.described(found)}"
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
                f"there is no checkpoint {storage_id} in {self.blobs.place}/{self._prefix}; check "
                "that checkpoint_storage is the one it was written to"
            )
        found = {key.removeprefix(folder): size for key, size in there.items()}
        found.pop("", None)
        parents = {parent for path in found for parent in PurePosixPath(path).parents}
        directories = {f"{parent}/": 0 for parent in parents if parent.name}
        return Manifest({**directories, **found}, {})

    @contextlib.contextmanager
    def restore_path(self, storage_id: str, selector: Selector | None = None) -> Iterator[Path]:
        check_id(storage_id)
        with files.scratch() as path:
            if selector is not None or not copies.take(self.copies, storage_id, path):
                self.download(storage_id, path, selector)
            yield path

    def download(
        self, storage_id: str, dst: Path, selector: Selector | None = None
    ) -> dict[str, int]:
        check_id(storage_id)
        copied = copies.read(self.copies, storage_id, dst, selector)
        if copied is not None:
            return copied
        manifest = self.manifest(storage_id)
        wanted = files.selected(dict(manifest.resources), selector)
        self._copy(storage_id, dataclasses.replace(manifest, resources=wanted), dst)
        return wanted

    def _copy(
        self,
        storage_id: str,
        manifest: Manifest,
        dst: Path,
        stop: Callable[[], bool] = lambda: False,
    ) -> None:
        """Copy the files that ``manifest`` lists into ``dst`` and compare them with it, until ``stop()`` is
        true.
        """
        for path in manifest.resources:
            if path.startswith("/") or ".." in PurePosixPath(path).parts:
                raise errors.CheckpointCorrupted(
                    f"{self._where(storage_id)}{path} is outside of the checkpoint"
                )
            directory = dst / path if path.endswith("/") else (dst / path).parent
            with files.explained("write", directory):
                directory.mkdir(parents=True, exist_ok=True)

        def write(path: str, content: contents.Parts, digest: files.Digest) -> bool:
            with files.explained("write", dst / path), (dst / path).open("wb") as file:
                for part in content:
                    if stop():
                        return False
                    file.write(part)
                    digest.update(part)
            if path in manifest.executable:
                with files.explained("write", dst / path):
                    files.make_executable(dst / path)
            return True

        try:
            self._contents(storage_id, manifest).read(write, stop)
        except errors.CheckpointCorrupted:
            for path in manifest.resources:
                if not path.endswith("/"):
                    (dst / path).unlink(missing_ok=True)
            raise

    def _contents(self, storage_id: str, manifest: Manifest) -> contents.Contents:
        where = self._where(storage_id)
        return contents.Contents(self.blobs, self._folder(storage_id), manifest, where)

    def read(self, storage_id: str, spans: Sequence[Span]) -> Iterator[bytes]:
        folder = self._folder(storage_id)
        manifest = self.manifest(storage_id)
        members = manifest.members()
        for span in spans:
            size = manifest.resources.get(span.path)
            if size is None or not is_inside(span.path):
                raise errors.CheckpointCorrupted(
                    f"{self._where(storage_id)}{span.path} is not a file of the checkpoint"
                )
            if span.end > size:
                raise errors.CheckpointCorrupted(
                    f"{self._where(storage_id)}{span.path} has {size} bytes, {span.end} are wanted"
                )

        def get(path: str, start: int, end: int) -> bytes:
            name, offset = members.get(path, (path, 0))
            try:
                found = self.blobs.get(folder + name, offset + start, offset + end)
            except NoSuchBlob as error:
                raise errors.CheckpointCorrupted(
                    f"{self._where(storage_id)}{path} is missing"
                ) from error
            if len(found) != end - start:
                raise errors.CheckpointCorrupted(
                    f"{self._where(storage_id)}{path} is shorter than when it was stored"
                )
            return found

        parts = (
            (span.path, start, min(start + AHEAD_BYTES, span.end))
            for span in spans
            for start in range(span.start, span.end, AHEAD_BYTES)
        )
        waiting: deque[Future[bytes]] = deque()
        with ThreadPoolExecutor(min(AHEAD, self.blobs.threads)) as pool:
            try:
                for part in parts:
                    waiting.append(pool.submit(get, *part))
                    if len(waiting) >= AHEAD:
                        yield waiting.popleft().result()
                while waiting:
                    yield waiting.popleft().result()
            finally:
                for call in waiting:
                    call.cancel()

    def _present(self, storage_id: str, listed: Manifest) -> dict[str, int]:
        folder = self._folder(storage_id)
        there = {key.removeprefix(folder): size for key, size in self.blobs.sizes(folder).items()}
        members = listed.members()
        found = {}
        for name, size in listed.resources.items():
            if name.endswith("/") or (name in members and members[name][0] in there):
                found[name] = size
            elif name in there:
                found[name] = there[name]
        return found

    def _require_storage(self) -> None:
        if not self.blobs.sizes(self._prefix, limit=1):
            raise errors.StorageError(
                f"checkpoint storage: {self.blobs.place}/{self._prefix} is empty; check that it "
                "is the storage that the checkpoint was written to"
            )

    def verify(
        self,
        storage_id: str,
        expected: Manifest | None = None,
        stop: Callable[[], bool] = lambda: False,
    ) -> None:
        self._require_storage()
        manifest = self.manifest(storage_id)
        known = dataclasses.replace(
            expected or manifest, packs=manifest.packs, executable=manifest.executable
        )
        if self.copies is not None and copies.has_room(self.copies, known):
            with copies.draft(self.copies) as path:
                self._copy(storage_id, known, path, stop)
                if not stop():
                    copies.keep(path, storage_id, known)
            return

        def check(path: str, content: contents.Parts, digest: files.Digest) -> bool:
            for part in content:
                if stop():
                    return False
                digest.update(part)
            return True

        self._contents(storage_id, known).read(check, stop)

    def _delete_some(self, storage_id: str, left: Manifest) -> None:
        folder = self._folder(storage_id)
        copies.drop(self.copies, storage_id)
        members = {path for pack in left.packs.values() for path in pack.members}
        packed = self._shortened(folder, left).packs
        going = sorted((set(left.going) - members) | (left.packs.keys() - packed.keys()))
        shortened = dataclasses.replace(left, packs=packed, going=going)
        self.blobs.put(folder + files.MANIFEST, shortened.to_json())
        self.blobs.delete([folder + name for name in going])

    def _shortened(self, folder: str, left: Manifest) -> Manifest:
        """``left`` with new packs instead of those that hold files it does not list. The new packs are
        stored.
        """
        found = {}
        for name, pack in left.packs.items():
            stays = {path: left.resources[path] for path in pack.members if path in left.resources}
            if len(stays) == len(pack.members):
                found[name] = pack
            elif stays:
                # Not verified: damaged contents stay damaged, and a reader notices.
                parts = contents.ranges(Manifest(stays, {}, {name: pack}))
                new = packs.shortened_name(name, stays)
                members = itertools.chain.from_iterable(
                    contents.small_files(self.blobs, folder, part, stays) for part in parts
                )
                found[new] = sending.put_pack(self.blobs, folder + new, members, left.executable)
        return dataclasses.replace(left, packs=found)

    def _delete_all(self, storage_id: str) -> None:
        folder = self._folder(storage_id)
        copies.drop(self.copies, storage_id)
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
            if owner.startswith(owners) and is_uuid(storage_id):
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

    def put(self, key: str, source: Path, *, move: bool = False) -> None:
        with files.explained("read", source):
            self.blobs.put_file(self._key(key), source)

    def fetch(self, key: str, target: Path, admit: Admit = everything) -> list[str]:
        prefix = self._key(key) + "/"
        found = {name.removeprefix(prefix): size for name, size in self.blobs.sizes(prefix).items()}

        def read(name: str, start: int, end: int) -> bytes:
            return self.blobs.get(prefix + name, start, end)

        return copy_new(found, read, target, admit, self.blobs.threads)

    def discard(self, key: str) -> None:
        found = self.blobs.sizes(self._key(key) + "/")
        self.blobs.delete([*found, self._key(key)])
