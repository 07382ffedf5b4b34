"""What a checkpoint storage has to do."""

from __future__ import annotations

import abc
import contextlib
import dataclasses
import shutil
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

from determined.storage import files

Selector = Callable[[str], bool]


@dataclasses.dataclass(frozen=True)
class Manifest:
    """What a checkpoint consists of.

    ``resources``: relative path → bytes; directories end in "/" and have 0. ``checksums``: relative
    path of each file → ``"sha256:<hex>"``; empty when the checkpoint was not written by a storage
    manager of this package.
    """

    resources: Mapping[str, int]
    checksums: Mapping[str, str]


@dataclasses.dataclass
class Staging:
    """A checkpoint being written: files go under ``path``; ``manifest`` is there once it is stored."""

    path: Path
    manifest: Manifest | None = None


class StorageManager(abc.ABC):
    """Keeps checkpoints: immutable directories of files, each under a storage id.

    The caller chooses the id (a uuid: one path component) and calls, in any order and from any
    process that can reach the storage:

    - :meth:`store` (or :meth:`upload`, built on it) once per id. **All or nothing**: when the block
      ends, the checkpoint is there with all its bytes, durable against a crash of the machine; when it
      ends in an exception, or the process dies anywhere in between, there is no checkpoint of this id
      and :meth:`download` says CheckpointNotFound. What a dead process left behind is invisible to
      every method here.
    - :meth:`restore_path`, :meth:`download`, :meth:`manifest` any number of times; they never change
      the checkpoint. :meth:`download` verifies size and checksum of every file it delivers.
    - :meth:`verify` before a checkpoint is relied on: it reads every byte.
    - :meth:`delete` any number of times; deleting what is not there is no error (a collector may be
      killed and run again). A crash in a complete deletion never leaves a part that looks complete.
    - :meth:`put` adds or replaces a file that belongs to no checkpoint (TensorBoard files).

    Raises (all methods): ``errors.CheckpointNotFound``, ``errors.CheckpointCorrupted``, and
    ``errors.StorageError`` with path and reason when the storage refuses (full, read-only, away).

    What a dead process left behind is found by its :attr:`owner`: :meth:`store` notes it with each
    unfinished checkpoint, and with each finished one until :meth:`reported`; :meth:`sweep` removes both.

    ``determined.storage.testing`` has the tests that every implementation must pass.
    """

    owner: str = ""
    """Who stores, without "/" and "@"; empty: nothing is noted, and nothing of it is swept."""

    @abc.abstractmethod
    def validate(self) -> None:
        """Write, read and delete a small file, in a few milliseconds where storage allows."""

    @abc.abstractmethod
    def store(self, storage_id: str) -> contextlib.AbstractContextManager[Staging]:
        """An empty directory to write a checkpoint into; stored when the block ends well."""

    @abc.abstractmethod
    def restore_path(self, storage_id: str) -> contextlib.AbstractContextManager[Path]:
        """A directory that holds the checkpoint, to be read only and only within the block.

        Verifies that every file is there with its size; contents are not read.
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

    @abc.abstractmethod
    def delete(self, storage_id: str, globs: list[str] | None = None) -> dict[str, int]:
        """Remove the checkpoint, or the files matching ``globs``; the resources that remain.

        Globs are relative to the checkpoint (``**`` crosses directories); a directory that matches
        goes with all it holds.
        """

    @abc.abstractmethod
    def put(self, key: str, source: Path) -> None:
        """Store the file ``source`` under the relative path ``key``, replacing what is there."""

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

    def upload(
        self,
        src: Path,
        storage_id: str,
        selector: Selector | None = None,
        extra: Mapping[str, bytes] | None = None,
    ) -> Manifest:
        """Store a copy of the directory ``src`` (symbolic links are followed).

        ``selector`` as for :meth:`download`; ``extra`` are files to add, by relative path.
        """
        with self.store(storage_id) as staging:
            with files.explained("read", src):
                paths = files.selected(files.list_files(src), selector)
            for path in paths:
                target = staging.path / path
                with files.explained("write", target):
                    if path.endswith("/"):
                        target.mkdir(parents=True, exist_ok=True)
                    else:
                        target.parent.mkdir(parents=True, exist_ok=True)
                        shutil.copy2(src / path, target)
            for path, content in (extra or {}).items():
                with files.explained("write", staging.path / path):
                    (staging.path / path).write_bytes(content)
        assert staging.manifest is not None
        return staging.manifest
