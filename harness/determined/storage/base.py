"""The interface of a checkpoint storage."""

from __future__ import annotations

import abc
import contextlib
import dataclasses
import json
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path

from determined import errors
from determined.storage import files
from determined.storage.following import Admit, everything
from determined.storage.packs import Pack
from determined.storage.spans import Span

Selector = Callable[[str], bool]


def check_id(storage_id: str) -> None:
    """Raises CheckpointNotFound for a text that cannot be a storage id, which is one path component."""
    if not storage_id or storage_id.startswith(".") or "/" in storage_id:
        raise errors.CheckpointNotFound(f"{storage_id!r} is not the id of a checkpoint")


def is_uuid(storage_id: str) -> bool:
    """True if a name found in a storage can be that of a checkpoint which the service knows."""
    try:
        return str(uuid.UUID(storage_id)) == storage_id
    except ValueError:
        return False


@dataclasses.dataclass(frozen=True)
class Manifest:
    """The files of a checkpoint.

    ``resources``: relative path → bytes; directories end in "/" and have 0. ``checksums``: relative
    path of each file → its :func:`~determined.storage.files.checksum`; empty when the checkpoint was not
    written by a storage manager of this package. ``executable``: the files that their owner may execute, the
    only permission that a checkpoint keeps.

    The other fields describe the storage, not the checkpoint. ``packs``: object → the small files in it
    (:mod:`determined.storage.packs`). ``going``: files that are being deleted; they still exist if the
    deletion was interrupted.
    """

    resources: Mapping[str, int]
    checksums: Mapping[str, str]
    packs: Mapping[str, Pack] = dataclasses.field(default_factory=dict, compare=False)
    going: Collection[str] = dataclasses.field(default=(), compare=False)
    executable: frozenset[str] = frozenset()

    def members(self) -> dict[str, tuple[str, int]]:
        """Path of each file in a pack → the pack's name, and the offset of the contents in it."""
        return {
            path: (name, start)
            for name, pack in self.packs.items()
            for path, start in pack.members.items()
            if path in self.resources
        }

    def to_json(self) -> bytes:
        return json.dumps(dataclasses.asdict(self), default=sorted).encode()

    @classmethod
    def from_json(cls, content: bytes, where: str) -> Manifest:
        """Raises errors.CheckpointCorrupted, with ``where``, for what :meth:`to_json` did not write."""
        try:
            found = json.loads(content)
            packs = {
                name: Pack.from_json(one) for name, one in dict(found.get("packs", {})).items()
            }
            going = [str(path) for path in found.get("going", ())]
            executable = frozenset(str(path) for path in found.get("executable", ()))
            resources, checksums = dict(found["resources"]), dict(found["checksums"])
            return cls(resources, checksums, packs, going, executable)
        except (AttributeError, ValueError, KeyError, TypeError) as error:
            raise errors.CheckpointCorrupted(f"{where} is damaged: {error}") from None

    def __or__(self, other: Manifest) -> Manifest:
        return Manifest(
            {**self.resources, **other.resources},
            {**self.checksums, **other.checksums},
            {**self.packs, **other.packs},
            executable=self.executable | other.executable,
        )


@dataclasses.dataclass
class Staging:
    """A checkpoint being written: files go under ``path``; ``manifest`` is there once it is stored."""

    path: Path
    manifest: Manifest | None = None


class StorageManager(abc.ABC):
    """Keeps checkpoints: immutable directories of files, each under a storage id.

    The caller chooses the id (a uuid: one path component) and calls, in any order and from any
    process that can reach the storage:

    - :meth:`store` or :meth:`upload` once per id. **All or nothing**: when the block ends, the checkpoint
      is there with all its bytes, durable against a crash of the machine; when it ends in an exception, or
      the process dies anywhere in between, there is no checkpoint of this id and :meth:`download` says
      CheckpointNotFound. The remains of a dead process are invisible to every method here.
    - :meth:`restore_path`, :meth:`download`, :meth:`read`, :meth:`manifest` any number of times; they never
      change the checkpoint. :meth:`download` verifies size and checksum of every file it delivers. A file
      that its owner could execute when it was stored is executable again.
    - :meth:`verify` before a checkpoint is relied on: it reads every byte.
    - :meth:`delete` any number of times; deleting what is not there is not an error (a collector may be
      killed and run again). A crash in a complete deletion never leaves a part that looks complete.
    - :meth:`put` adds or replaces a file that belongs to no checkpoint (TensorBoard files),
      :meth:`fetch` gets such files back.

    Raises (all methods): ``errors.CheckpointNotFound``, ``errors.CheckpointCorrupted``, and
    ``errors.StorageError`` with path and reason when the storage refuses (full, read-only, away).

    :meth:`store` and :meth:`upload` consist of these steps, which several processes that share the id and the
    :attr:`owner`, on as many machines, can take together: :meth:`begin` by one, :meth:`add` by each with its
    files (no path twice), then, when all have returned, :meth:`finish` by one with the union of what ``add``
    returned. Or :meth:`abort` instead, when no process is in :meth:`add` any more. If that cannot be known (a
    process has vanished), call neither: the files stay invisible until they are swept.

    The remains of a dead process are found by its :attr:`owner`: :meth:`begin` notes the owner with each
    checkpoint, and the note stays until :meth:`reported`; :meth:`sweep` removes unfinished and unreported
    checkpoints.

    ``determined.storage.testing`` has the tests that every implementation must pass.
    """

    owner: str = ""
    """The name of the process that stores, without "/" and "@". Empty: no owner is noted, and nothing is
    swept.
    """

    copies: Path | None = None
    """A local directory for copies (:mod:`determined.storage.copies`): :meth:`verify` leaves a checkpoint
    there if it had to copy it, and :meth:`restore_path` and :meth:`download` look there first. None: no
    copies.
    """

    @abc.abstractmethod
    def validate(self) -> None:
        """Write, read and delete a small file, in a few milliseconds where storage allows."""

    @abc.abstractmethod
    def begin(self, storage_id: str) -> None:
        """Start the unfinished checkpoint of this id; files may be added from now on."""

    @abc.abstractmethod
    def stage(self, storage_id: str, part: str = "0") -> contextlib.AbstractContextManager[Path]:
        """An empty directory for the files of one process (``part``). It exists until the block's end."""

    @abc.abstractmethod
    def add(
        self,
        storage_id: str,
        src: Path,
        paths: Collection[str],
        extra: Mapping[str, bytes] | None = None,
    ) -> Manifest:
        """Store the ``paths`` below ``src`` and the contents of ``extra`` durably. Returns their manifest.

        ``src`` may be the directory of :meth:`stage`, whose files may be gone after this, or any
        other, which is not changed. Directories end in "/".
        """

    @abc.abstractmethod
    def finish(self, storage_id: str, manifest: Manifest) -> None:
        """Turn the added files into the checkpoint, in one step.

        Raises StorageError when not all that ``manifest`` lists is there.
        """

    @abc.abstractmethod
    def abort(self, storage_id: str) -> None:
        """Remove the files of a checkpoint that will not be finished."""

    @abc.abstractmethod
    def restore_path(
        self, storage_id: str, selector: Selector | None = None
    ) -> contextlib.AbstractContextManager[Path]:
        """A directory that holds the checkpoint, to be read only and only within the block.

        It holds at least what ``selector`` (as for :meth:`download`) accepts. Verifies that every one
        of these files is there with its size; contents only where they have to be copied.
        """

    @abc.abstractmethod
    def download(
        self, storage_id: str, dst: Path, selector: Selector | None = None
    ) -> dict[str, int]:
        """Copy the checkpoint, or the paths that ``selector`` accepts, into ``dst``. Returns what was
        copied.

        ``selector`` gets relative paths, directories with a trailing "/". The directories of a selected
        file are made even if ``selector`` rejects them.
        """

    @abc.abstractmethod
    def manifest(self, storage_id: str) -> Manifest:
        """Read the checkpoint's manifest."""

    @abc.abstractmethod
    def read(self, storage_id: str, spans: Sequence[Span]) -> Iterator[bytes]:
        """The bytes of ``spans``, one span after the other, in pieces of a few MiB at most.

        Holds no more than some tens of MiB, for files of any size, and compares no checksums: readers of
        whole files do. Never reads anything outside of the checkpoint: paths that lead out of it and symbolic
        links are refused. Raises CheckpointCorrupted for a file that is missing or shorter.
        """

    @abc.abstractmethod
    def verify(
        self,
        storage_id: str,
        expected: Manifest | None = None,
        stop: Callable[[], bool] = lambda: False,
    ) -> None:
        """Read every file and compare size and checksum with ``expected``, by default the storage's
        own list.

        Raises CheckpointNotFound or CheckpointCorrupted (with the file's path) only when the storage
        certainly exists and the checkpoint is certainly damaged. Any other StorageError says nothing about
        the checkpoint. Returns early, without a result, once ``stop()`` is true.
        """

    def present(self, storage_id: str) -> dict[str, int]:
        """Those resources of the checkpoint that are in the storage now, with their present sizes.

        None: it is gone, or all of its files are. Reads no contents. Raises StorageError when the storage
        itself may be away.
        """
        self._require_storage()
        try:
            listed = self.manifest(storage_id)
        except errors.CheckpointNotFound:
            return {}
        found = self._present(storage_id, listed)
        had_files = any(not name.endswith("/") for name in listed.resources)
        if had_files and all(name.endswith("/") for name in found):
            return {}
        return found

    @abc.abstractmethod
    def _require_storage(self) -> None:
        """Raises StorageError when the storage is empty, and so perhaps not mounted: a missing checkpoint
        proves nothing then.
        """

    @abc.abstractmethod
    def _present(self, storage_id: str, listed: Manifest) -> dict[str, int]:
        """The resources in ``listed`` that exist, with their present sizes."""

    def delete(self, storage_id: str, globs: list[str] | None = None) -> dict[str, int]:
        """Remove the checkpoint, or the files that match ``globs``. Returns the resources that remain.

        Globs are relative to the checkpoint (``**`` crosses directories); a directory that matches
        goes with all it holds.
        """
        check_id(storage_id)
        if globs is None:
            self._delete_all(storage_id)
            return {}
        try:
            manifest = self.manifest(storage_id)
        except errors.CheckpointNotFound:
            return {}
        gone = files.matching(manifest.resources, globs)
        if gone == set(manifest.resources):
            self._delete_all(storage_id)
            return {}
        resources = {n: size for n, size in manifest.resources.items() if n not in gone}
        checksums = {n: value for n, value in manifest.checksums.items() if n not in gone}
        going = sorted(gone.union(manifest.going))
        left = dataclasses.replace(
            manifest,
            resources=resources,
            checksums=checksums,
            going=going,
            executable=manifest.executable - gone,
        )
        self._delete_some(storage_id, left)
        return resources

    @abc.abstractmethod
    def _delete_all(self, storage_id: str) -> None:
        """Remove the checkpoint if it exists."""

    @abc.abstractmethod
    def _delete_some(self, storage_id: str, left: Manifest) -> None:
        """Store the manifest ``left``, then remove the files ``going``, some of which may be gone already.

        The order matters. A file that exists without being listed is harmless, and a second try removes it.
        A file that is listed but missing makes the checkpoint unreadable.
        """

    @abc.abstractmethod
    def put(self, key: str, source: Path, *, move: bool = False) -> None:
        """Store the file ``source`` under the relative path ``key``, replacing a file of that name.

        ``move``: nobody else needs ``source``, which may be gone afterwards.
        """

    @abc.abstractmethod
    def fetch(self, key: str, target: Path, admit: Admit = everything) -> list[str]:
        """Copy the files that were :meth:`put` below the relative path ``key`` into ``target``. Returns
        their paths.

        A file of the same size that is in ``target`` already is left as it is; of one that has grown only
        what is new is read. Files that ``admit`` refuses are left out, or stay as they were. There may be no
        files.
        """

    @abc.abstractmethod
    def reported(self, storage_id: str) -> None:
        """Mark the finished checkpoint as recorded by the service: :meth:`sweep` will not touch it."""

    @abc.abstractmethod
    def sweep(
        self,
        owners: str,
        known: Callable[[Collection[str]], Collection[str]],
        are_gone: Callable[[], bool] = lambda: True,
    ) -> list[str]:
        """Remove the remains of owners whose names begin with ``owners``. Returns what was removed.

        Remains are checkpoints that were never finished, and finished checkpoints that were never
        :meth:`reported` and are not among ``known(storage ids)``. Their processes must be gone:
        ``are_gone()`` is called once the remains are listed, and if it returns False, nothing is removed.
        Every account that writes to the storage can leave notes there: a note without a uuid is ignored.
        """

    @abc.abstractmethod
    def discard(self, key: str) -> None:
        """Remove the files that were :meth:`put` at or below the relative path ``key``, if any."""

    @contextlib.contextmanager
    def store(self, storage_id: str) -> Iterator[Staging]:
        """An empty directory for a checkpoint's files. They are stored if the block ends without an error."""
        with self._all_or_nothing(storage_id), self.stage(storage_id) as path:
            staging = Staging(path)
            yield staging
            with files.explained("read", path):
                paths = files.list_files(path)
            manifest = self.add(storage_id, path, paths)
            self.finish(storage_id, manifest)
        staging.manifest = manifest

    def upload(
        self,
        src: Path,
        storage_id: str,
        selector: Selector | None = None,
        extra: Mapping[str, bytes] | None = None,
    ) -> Manifest:
        """Store a copy of the directory ``src`` (symbolic links are followed).

        ``selector`` as for :meth:`download`; ``extra`` are files to add, by relative path; they replace
        files of ``src`` at the same paths.
        """
        with self._all_or_nothing(storage_id):
            with files.explained("read", src):
                paths = files.selected(files.list_files(src), selector)
            for path in extra or {}:
                paths.pop(path, None)
            manifest = self.add(storage_id, src, paths, extra)
            self.finish(storage_id, manifest)
        return manifest

    @contextlib.contextmanager
    def _all_or_nothing(self, storage_id: str) -> Iterator[None]:
        try:
            self.begin(storage_id)
            yield
        except BaseException:
            # The reason is the error that there is already.
            with contextlib.suppress(errors.StorageError):
                self.abort(storage_id)
            raise
