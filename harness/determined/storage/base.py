"""What a checkpoint storage has to do."""

from __future__ import annotations

import abc
import contextlib
import dataclasses
import json
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path

from determined import errors
from determined.storage import files
from determined.storage.packs import Pack

Selector = Callable[[str], bool]


def check_id(storage_id: str) -> None:
    """Raises CheckpointNotFound for what cannot name a checkpoint: it is one path component."""
    if not storage_id or storage_id.startswith(".") or "/" in storage_id:
        raise errors.CheckpointNotFound(f"{storage_id!r} is not the id of a checkpoint")


@dataclasses.dataclass(frozen=True)
class Manifest:
    """What a checkpoint consists of.

    ``resources``: relative path → bytes; directories end in "/" and have 0. ``checksums``: relative
    path of each file → its :func:`~determined.storage.files.checksum`; empty when the checkpoint was not
    written by a storage manager of this package.

    The rest says nothing about what the checkpoint is. ``packs``: object → the small files in it
    (:mod:`determined.storage.packs`). ``going``: what is deleted from it, still there if that was
    interrupted.
    """

    resources: Mapping[str, int]
    checksums: Mapping[str, str]
    packs: Mapping[str, Pack] = dataclasses.field(default_factory=dict, compare=False)
    going: Collection[str] = dataclasses.field(default=(), compare=False)

    def members(self) -> dict[str, tuple[str, int]]:
        """Path of each file that lies in a pack → the pack's name, and where in it the contents begin."""
        return {
            path: (name, start)
            for name, pack in self.packs.items()
            for path, start in pack.members.items()
            if path in self.resources
        }

    def to_json(self) -> bytes:
        return json.dumps(dataclasses.asdict(self)).encode()

    @classmethod
    def from_json(cls, content: bytes, where: str) -> Manifest:
        """Raises errors.CheckpointCorrupted, with ``where``, for what :meth:`to_json` did not write."""
        try:
            found = json.loads(content)
            packs = {
                name: Pack.from_json(one) for name, one in dict(found.get("packs", {})).items()
            }
            going = [str(path) for path in found.get("going", ())]
            return cls(dict(found["resources"]), dict(found["checksums"]), packs, going)
        except (AttributeError, ValueError, KeyError, TypeError) as error:
            raise errors.CheckpointCorrupted(f"{where} is damaged: {error}") from None

    def __or__(self, other: Manifest) -> Manifest:
        return Manifest(
            {**self.resources, **other.resources},
            {**self.checksums, **other.checksums},
            {**self.packs, **other.packs},
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

    - :meth:`store` or :meth:`upload` once per id. **All or nothing**: when the block
      ends, the checkpoint is there with all its bytes, durable against a crash of the machine; when it
      ends in an exception, or the process dies anywhere in between, there is no checkpoint of this id
      and :meth:`download` says CheckpointNotFound. What a dead process left behind is invisible to
      every method here.
    - :meth:`restore_path`, :meth:`download`, :meth:`manifest` any number of times; they never change
      the checkpoint. :meth:`download` verifies size and checksum of every file it delivers.
    - :meth:`verify` before a checkpoint is relied on: it reads every byte.
    - :meth:`delete` any number of times; deleting what is not there is no error (a collector may be
      killed and run again). A crash in a complete deletion never leaves a part that looks complete.
    - :meth:`put` adds or replaces a file that belongs to no checkpoint (TensorBoard files),
      :meth:`fetch` gets such files back.

    Raises (all methods): ``errors.CheckpointNotFound``, ``errors.CheckpointCorrupted``, and
    ``errors.StorageError`` with path and reason when the storage refuses (full, read-only, away).

    :meth:`store` and :meth:`upload` consist of these steps, which several processes that share the id
    and the :attr:`owner`, on as many machines, can take together: :meth:`begin` by one, :meth:`add` by
    each with files of its own (no path twice), then, when all have returned, :meth:`finish` by one with
    the union of what ``add`` returned. Or :meth:`abort` instead, when none of them is in :meth:`add` any
    more; if that cannot be known (a process has vanished), nothing: what there is stays invisible,
    and is swept.

    What a dead process left behind is found by its :attr:`owner`: :meth:`begin` notes it with each
    unfinished checkpoint, and with each finished one until :meth:`reported`; :meth:`sweep` removes both.

    ``determined.storage.testing`` has the tests that every implementation must pass.
    """

    owner: str = ""
    """Who stores, without "/" and "@"; empty: nothing is noted, and nothing of it is swept."""

    copies: Path | None = None
    """A local directory, where :meth:`verify` leaves what it has read if reading means copying, and where
    :meth:`restore_path` and :meth:`download` look first (:mod:`determined.storage.copies`). None: nowhere."""

    @abc.abstractmethod
    def validate(self) -> None:
        """Write, read and delete a small file, in a few milliseconds where storage allows."""

    @abc.abstractmethod
    def begin(self, storage_id: str) -> None:
        """From now on files may be added to the unfinished checkpoint of this id."""

    @abc.abstractmethod
    def stage(self, storage_id: str, part: str = "0") -> contextlib.AbstractContextManager[Path]:
        """An empty directory to write the files of one process (``part``) into, there until the block's
        end."""

    @abc.abstractmethod
    def add(
        self,
        storage_id: str,
        src: Path,
        paths: Collection[str],
        extra: Mapping[str, bytes] | None = None,
    ) -> Manifest:
        """Store the ``paths`` below ``src`` and the contents of ``extra``, durable; what they consist of.

        ``src`` may be the directory of :meth:`stage`, whose files may be gone after this, or any
        other, which is not changed. Directories end in "/".
        """

    @abc.abstractmethod
    def finish(self, storage_id: str, manifest: Manifest) -> None:
        """Make what was added the checkpoint, in one step.

        Raises StorageError when not all that ``manifest`` lists is there.
        """

    @abc.abstractmethod
    def abort(self, storage_id: str) -> None:
        """Remove what was added to a checkpoint that will not be finished."""

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
        """Copy the checkpoint, or the paths ``selector`` accepts, into ``dst``; what was copied.

        ``selector`` gets relative paths, directories with a trailing "/". A selected file's
        directories are made without asking.
        """

    @abc.abstractmethod
    def manifest(self, storage_id: str) -> Manifest:
        """What the checkpoint consists of."""

    @abc.abstractmethod
    def verify(
        self,
        storage_id: str,
        expected: Manifest | None = None,
        stop: Callable[[], bool] = lambda: False,
    ) -> None:
        """Read every file and compare size and checksum with ``expected``, by default the storage's
        own list.

        Raises CheckpointNotFound or CheckpointCorrupted (with the file's path) only when the storage is
        surely there and the checkpoint surely not whole; any other StorageError says nothing about
        the checkpoint. Returns early, with nothing said, once ``stop()`` is true.
        """

    def delete(self, storage_id: str, globs: list[str] | None = None) -> dict[str, int]:
        """Remove the checkpoint, or the files matching ``globs``; the resources that remain.

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
        left = dataclasses.replace(manifest, resources=resources, checksums=checksums, going=going)
        self._delete_some(storage_id, left)
        return resources

    @abc.abstractmethod
    def _delete_all(self, storage_id: str) -> None:
        """Remove the checkpoint, which need not be there."""

    @abc.abstractmethod
    def _delete_some(self, storage_id: str, left: Manifest) -> None:
        """Store the list of what is ``left``, then remove what is ``going``, some of which may be gone.

        In this order: a file that is not listed is harmless, and removed when this is done again; one
        that is listed and gone makes the checkpoint unreadable.
        """

    @abc.abstractmethod
    def put(self, key: str, source: Path) -> None:
        """Store the file ``source`` under the relative path ``key``, replacing what is there."""

    @abc.abstractmethod
    def fetch(self, key: str, target: Path) -> list[str]:
        """Copy what was :meth:`put` below the relative path ``key`` into ``target``; the paths below it.

        A file that is in ``target`` already, of the same size, is left as it is. There may be none.
        """

    @abc.abstractmethod
    def reported(self, storage_id: str) -> None:
        """Somebody keeps a record of the finished checkpoint: :meth:`sweep` has no business with it."""

    @abc.abstractmethod
    def sweep(
        self,
        owners: str,
        known: Callable[[Collection[str]], Collection[str]],
        are_gone: Callable[[], bool] = lambda: True,
    ) -> list[str]:
        """Remove what owners whose names begin with ``owners`` have left; what was removed.

        That is checkpoints that were never finished, and finished ones that were never
        :meth:`reported` and are not among ``known(storage ids)``. Their processes must be gone:
        ``are_gone()`` is asked once it has been listed what is there, and if not, all of it stays.
        """

    @abc.abstractmethod
    def discard(self, key: str) -> None:
        """Remove what was :meth:`put` at or below the relative path ``key``; it need not be there."""

    @contextlib.contextmanager
    def store(self, storage_id: str) -> Iterator[Staging]:
        """An empty directory to write a checkpoint into; stored when the block ends well."""
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

        ``selector`` as for :meth:`download`; ``extra`` are files to add, by relative path, instead of
        those that ``src`` may have there.
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
