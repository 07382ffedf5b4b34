"""Checkpoints in a directory that every process can reach under the same path."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
import stat
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from determined import errors
from determined.storage import beneath, files, removal
from determined.storage import spans as reading
from determined.storage.base import Manifest, Selector, StorageManager, check_id, is_uuid
from determined.storage.following import Admit, copy_new, everything
from determined.storage.owners import insist
from determined.storage.spans import Span
from determined.storage.writeback import written_early

INCOMPLETE = ".incomplete-"
UNREPORTED = ".unreported-"
FILES = "files"
THREADS = 8


class DirectoryStorageManager(StorageManager):
    """A checkpoint is ``<root>/<storage id>/``, made by renaming a finished, synced directory.

    A rename is atomic: a directory of that name is a complete checkpoint. Unfinished ones are in
    ``.incomplete-<id>@<owner>/files``, beside the directories that processes write their files into;
    half-deleted ones are called ``.deleting-<id>``. Both may be removed at any time when their processes
    are gone. An empty file ``.unreported-<id>@<owner>`` is written before a checkpoint is finished.
    """

    trusted: Path | None = None
    """:attr:`root` or a directory above it that only accounts like the reader's can replace. Set it for a
    reader with more rights than the writers. :meth:`read` and :meth:`fetch` then follow no link below it, and
    read only files of the account that the directory around them belongs to (an account may link another's
    file into it)."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @classmethod
    def from_config(
        cls, config: dict[str, Any], container_path: str | None = None
    ) -> DirectoryStorageManager:
        """``{"type": "directory", "container_path": "/absolute"}``; raises errors.StorageError."""
        return cls(_absolute(config, "container_path"))

    def _path(self, storage_id: str) -> Path:
        check_id(storage_id)
        return self.root / storage_id

    def validate(self) -> None:
        probe = self.root / f".probe-{secrets.token_hex(8)}"
        with files.explained("write", probe):
            self.root.mkdir(parents=True, exist_ok=True)
            with probe.open("x+b", buffering=0) as file:
                # The file has no name from now on, so a killed process leaves nothing behind.
                probe.unlink()
                file.write(b"determined")
                os.fsync(file.fileno())
                file.seek(0)
                content = file.read()
        if content != b"determined":
            raise errors.StorageError(
                f"checkpoint storage: the test file written to {probe} cannot be read back; check the "
                "file system"
            )

    def _draft(self, storage_id: str) -> Path:
        return self.root / f"{INCOMPLETE}{self._path(storage_id).name}@{self.owner}"

    def begin(self, storage_id: str) -> None:
        path = self._draft(storage_id)
        with files.explained("write", path):
            self.root.mkdir(parents=True, exist_ok=True)
            with beneath.opened(self.root) as root:
                # Left by a process that was killed.
                beneath.remove(root, path.name)
            # Fails if another process has just made it.
            path.mkdir()
            (path / FILES).mkdir()

    @contextlib.contextmanager
    def stage(self, storage_id: str, part: str = "0") -> Iterator[Path]:
        path = self._draft(storage_id) / f"part-{part}"
        with files.explained("write", path):
            path.mkdir(parents=True)
        try:
            with files.written_below(path), written_early(path):
                yield path
        finally:
            shutil.rmtree(path, ignore_errors=True)

    def add(
        self,
        storage_id: str,
        src: Path,
        paths: Collection[str],
        extra: Mapping[str, bytes] | None = None,
    ) -> Manifest:
        draft = self._draft(storage_id)
        target = draft / FILES
        staged = src.is_relative_to(draft)
        directories = [path for path in paths if path.endswith("/")]
        names = [path for path in paths if not path.endswith("/")]
        parents = [Path(path).parents for path in [*paths, *(extra or {})]]
        made = {target / parent for found in parents for parent in found}
        made.update(target / path for path in directories)
        with files.explained("write", target):
            for directory in made:
                directory.mkdir(parents=True, exist_ok=True)
            for path, content in (extra or {}).items():
                (target / path).write_bytes(content)
        checksums: dict[str, str] = {}

        def settle(step: tuple[str, str]) -> None:
            kind, path = step
            if kind == "copy":
                with files.explained("write", target / path):
                    files.copy(src / path, target / path)
            elif kind == "hash":
                checksums[path] = files.checksum(target / path, large=files.QUICK)
            else:
                files.sync(target / path)

        # A rename would take what lies behind a link away from where it belongs.
        moved = files.not_behind_links(src, names) if staged else set()
        with files.explained("write", target):
            # Copies first: a link may lead to a file that is moved.
            copied = [path for path in names if path not in moved]
            files.in_parallel(settle, [("copy", path) for path in copied], THREADS)
            for path in moved:
                (src / path).rename(target / path)
                files.drop_privileges(target / path)
            names += extra or {}
            # The disk is busy with one thing while the processor is with the other.
            steps = [(kind, path) for path in names for kind in ("sync", "hash")]
            files.in_parallel(settle, steps, THREADS)
            # Contents before names before the one name that makes them a checkpoint.
            for directory in made:
                files.sync(directory)
            resources = {path: (target / path).stat().st_size for path in names}
            executable = frozenset(path for path in names if files.is_executable(target / path))
        everything = {**resources, **dict.fromkeys(directories, 0)}
        return Manifest(everything, checksums, executable=executable)

    def finish(self, storage_id: str, manifest: Manifest) -> None:
        draft, final = self._draft(storage_id), self._path(storage_id)
        path = draft / FILES
        for name, size in manifest.resources.items():
            try:
                _verify_size(storage_id, path / name, size)
            except errors.CheckpointCorrupted as error:
                raise errors.StorageError(
                    f"{error}: check that {self.root} is the same directory for all workers"
                ) from None
        with files.explained("write", draft):
            with beneath.opened(path) as folder:
                beneath.write(folder, files.MANIFEST, manifest.to_json())
                os.fsync(folder)
            if self.owner:
                self._unreported(storage_id).touch()
            path.rename(final)
            files.sync(self.root)
        shutil.rmtree(draft, ignore_errors=True)

    def abort(self, storage_id: str) -> None:
        self._remove(self._draft(storage_id).name)

    def _unreported(self, storage_id: str) -> Path:
        return self.root / f"{UNREPORTED}{storage_id}@{self.owner}"

    def reported(self, storage_id: str) -> None:
        path = self._unreported(storage_id)
        with files.explained("delete", path):
            path.unlink(missing_ok=True)

    def _remove(self, path: str) -> None:
        """Remove the file or tree ``path`` below :attr:`root`, if it exists."""
        insist(self.root, self.root / path, lambda: self._remove_once(path))

    def _remove_once(self, path: str) -> None:
        with (
            files.explained("delete", self.root / path),
            contextlib.suppress(FileNotFoundError),
            beneath.opened(self.root) as root,
        ):
            beneath.remove(root, path)

    def manifest(self, storage_id: str) -> Manifest:
        path = self._path(storage_id)
        with files.explained("read", path):
            if not path.is_dir():
                raise errors.CheckpointNotFound(
                    f"there is no checkpoint {storage_id} in {self.root}; check that "
                    "checkpoint_storage is the one it was written to"
                )
            try:
                content = (path / files.MANIFEST).read_bytes()
            except FileNotFoundError:  # written by another tool: nothing to verify against
                return Manifest(files.list_files(path), {})
        return Manifest.from_json(content, f"checkpoint {storage_id}: {path / files.MANIFEST}")

    def read(self, storage_id: str, spans: Sequence[Span]) -> Iterator[bytes]:
        folder = self._path(storage_id)
        with self._read_only(folder):
            for span in spans:
                with self._of_owner(storage_id, span.path) as descriptor:
                    yield from reading.pieces(storage_id, folder / span.path, descriptor, span)

    @contextlib.contextmanager
    def _of_owner(self, storage_id: str, path: str) -> Iterator[int]:
        """The checkpoint's file, opened. Raises StorageError for another account's, if this storage is read
        with more rights than it is written.
        """
        folder = self._path(storage_id)
        top = self.root if self.trusted is None else self.trusted
        with beneath.opened(top, str(folder.relative_to(top))) as descriptor:
            owner = os.fstat(descriptor).st_uid
        with self._opened(storage_id, top, path) as descriptor:
            if self.trusted is not None and os.fstat(descriptor).st_uid != owner:
                raise errors.StorageError(
                    f"checkpoint {storage_id}: {folder / path} belongs to another account of the machine "
                    "than the checkpoint's directory, so it is not read"
                )
            yield descriptor

    @contextlib.contextmanager
    def _opened(self, storage_id: str, top: Path, path: str) -> Iterator[int]:
        folder = self._path(storage_id)
        if not reading.is_inside(path):
            raise errors.CheckpointCorrupted(
                f"checkpoint {storage_id}: {path!r} is outside of the checkpoint"
            )
        with contextlib.ExitStack() as stack:
            try:
                descriptor = stack.enter_context(
                    beneath.opened(top, str(folder.relative_to(top)), path)
                )
            except FileNotFoundError:
                raise errors.CheckpointCorrupted(
                    f"checkpoint {storage_id}: {folder / path} is missing"
                ) from None
            except OSError as error:
                if not beneath.is_link(error):
                    raise
                raise errors.StorageError(
                    f"checkpoint {storage_id}: {folder / path} is a symbolic link or behind one; links are "
                    "not followed here"
                ) from None
            yield descriptor

    @contextlib.contextmanager
    def _read_only(self, folder: Path) -> Iterator[None]:
        """Explains why the checkpoint's directory cannot be opened."""
        with files.explained("read", folder):
            try:
                yield
            except FileNotFoundError:
                raise errors.CheckpointNotFound(
                    f"there is no checkpoint {folder.name} in {self.root}; check that "
                    "checkpoint_storage is the one it was written to"
                ) from None
            except OSError as error:
                if not beneath.is_link(error):
                    raise
                raise errors.StorageError(
                    f"checkpoint {folder.name}: {folder} is a symbolic link or behind one; links are not "
                    "followed here"
                ) from None

    def verify(
        self,
        storage_id: str,
        expected: Manifest | None = None,
        stop: Callable[[], bool] = lambda: False,
    ) -> None:
        path = self._path(storage_id)
        self._require_storage()
        manifest = self.manifest(storage_id)
        if expected is not None:
            manifest = expected
        for name, size in manifest.resources.items():
            if stop():
                return
            _verify_size(storage_id, path / name, size)
            checksum = manifest.checksums.get(name)
            if checksum is None:
                continue
            with files.explained("read", path / name):
                found = files.checksum_unless(path / name, stop, checksum)
            if found is not None and found != checksum:
                raise _changed(storage_id, path / name, checksum, found)

    def _present(self, storage_id: str, listed: Manifest) -> dict[str, int]:
        path = self._path(storage_id)
        with files.explained("read", path):
            there = files.list_files(path)
        return {name: there[name] for name in listed.resources if name in there}

    def _require_storage(self) -> None:
        with files.explained("read", self.root):
            empty = not any(self.root.iterdir())
        if empty:
            raise errors.StorageError(
                f"checkpoint storage: {self.root} is empty; check that the storage is mounted there"
            )

    @contextlib.contextmanager
    def restore_path(self, storage_id: str, selector: Selector | None = None) -> Iterator[Path]:
        path = self._path(storage_id)
        for name, size in self.manifest(storage_id).resources.items():
            _verify_size(storage_id, path / name, size)
        yield path

    def download(
        self, storage_id: str, dst: Path, selector: Selector | None = None
    ) -> dict[str, int]:
        manifest = self.manifest(storage_id)
        source = self._path(storage_id)
        wanted = files.selected(dict(manifest.resources), selector)
        for name, size in wanted.items():
            target = dst / name
            with files.explained("write", target):
                if name.endswith("/"):
                    target.mkdir(parents=True, exist_ok=True)
                    continue
                target.parent.mkdir(parents=True, exist_ok=True)
            _verify_size(storage_id, source / name, size)
            expected = manifest.checksums.get(name)
            with files.explained("copy to", target):
                found = files.copy_with_checksum(source / name, target, expected)
            if expected is not None and found != expected:
                target.unlink()
                raise _changed(storage_id, source / name, expected, found)
            with files.explained("copy to", target):
                # As the file itself says: older lists, and those of other tools, do not tell.
                if files.is_executable(source / name):
                    files.make_executable(target)
        return wanted

    def present(self, storage_id: str) -> dict[str, int]:
        look = super().present
        return insist(self.root, self._path(storage_id), lambda: look(storage_id))

    def delete(self, storage_id: str, globs: list[str] | None = None) -> dict[str, int]:
        delete = super().delete
        return insist(self.root, self._path(storage_id), lambda: delete(storage_id, globs))

    def _delete_some(self, storage_id: str, left: Manifest) -> None:
        removal.remove_some(self._path(storage_id), storage_id, left)

    def _delete_all(self, storage_id: str) -> None:
        path = self._path(storage_id)
        with files.explained("delete", path):
            exists = self.root.is_dir()
        if exists:
            removal.remove_all(path, storage_id)

    def sweep(
        self,
        owners: str,
        known: Callable[[Collection[str]], Collection[str]],
        are_gone: Callable[[], bool] = lambda: True,
    ) -> list[str]:
        unreported: dict[str, str] = {}
        removed = []
        left = [
            (rest, f"{rest}@{owner}")
            for rest, at, owner in (name.partition("@") for name in self._names())
            if at and owner.startswith(owners)
        ]
        if not left or not are_gone():
            return []
        for rest, name in left:
            if name.startswith(INCOMPLETE):
                self._remove(name)
                removed.append(name)
            elif name.startswith(UNREPORTED) and is_uuid(rest.removeprefix(UNREPORTED)):
                unreported[rest.removeprefix(UNREPORTED)] = name
        kept = set(known(list(unreported))) if unreported else set()
        for storage_id, name in unreported.items():
            if storage_id not in kept and self._have_one_owner(name, storage_id):
                self.delete(storage_id)
                removed.append(storage_id)
            self._remove(name)
        return removed

    def _names(self) -> list[str]:
        """The names in :attr:`root`, which may be missing."""

        def read() -> list[str]:
            with files.explained("read", self.root), contextlib.suppress(FileNotFoundError):
                return [path.name for path in self.root.iterdir()]
            return []

        return insist(self.root, self.root, read)

    def _have_one_owner(self, note: str, storage_id: str) -> bool:
        def look() -> bool:
            with files.explained("read", self.root), beneath.opened(self.root) as root:
                return removal.has_one_owner(root, note, storage_id)

        return insist(self.root, self.root, look)

    def discard(self, key: str) -> None:
        self._inside(key)
        self._remove(key)

    def _inside(self, key: str) -> Path:
        target = self.root / key
        if not reading.is_inside(key):
            raise errors.StorageError(f"checkpoint storage: {key} is outside of {self.root}")
        return target

    def put(self, key: str, source: Path, *, move: bool = False) -> None:
        target = self._inside(key)
        with files.explained("write", target):
            self.root.mkdir(parents=True, exist_ok=True)
            try:
                with beneath.opened(self.root) as root, beneath.made(root, key) as (folder, name):
                    if not (move and _moved(source, folder, name)):
                        self._replace(folder, name, source)
            except OSError as error:
                # Leave out the name of this attempt's file, so that a repeated failure has the same text.
                unread = error.filename2 is None and str(error.filename) == str(source)
                where = source if unread else target
                raise OSError(error.errno, error.strerror, str(where)) from error

    @staticmethod
    def _replace(folder: int, name: str, source: Path) -> None:
        new = f".{name}-{secrets.token_hex(4)}"
        try:
            with source.open("rb") as reader, beneath.created(folder, new) as writer:
                shutil.copyfileobj(reader, writer, reading.PIECE_BYTES)
            os.replace(new, name, src_dir_fd=folder, dst_dir_fd=folder)
        except OSError:
            # What is left of it would keep a full disk full.
            with contextlib.suppress(OSError):
                os.unlink(new, dir_fd=folder)
            raise

    def fetch(self, key: str, target: Path, admit: Admit = everything) -> list[str]:
        folder = self._inside(key)
        top = self.root if self.trusted is None else self.trusted
        inner = str(folder.relative_to(top))
        with files.explained("read", self.root):
            if not self.root.is_dir():
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(self.root))
        found: dict[str, os.stat_result] = {}
        with (
            files.explained("read", folder),
            contextlib.suppress(FileNotFoundError, NotADirectoryError),
            beneath.opened(top, inner) as descriptor,
        ):
            for name, status, owner in beneath.regular_files(descriptor):
                # Hidden: a file that is being replaced.
                is_hidden = name.rpartition("/")[2].startswith(".")
                if not is_hidden and (self.trusted is None or status.st_uid == owner):
                    found[name] = status

        def read(name: str, start: int, end: int) -> bytes:
            with files.explained("read", folder / name), beneath.opened(top, inner, name) as file:
                status = os.fstat(file)
                if not stat.S_ISREG(status.st_mode) or status.st_uid != found[name].st_uid:
                    raise OSError(
                        errno.EAGAIN, "was exchanged while it was read", str(folder / name)
                    )
                return os.pread(file, end - start, start)

        return copy_new({name: one.st_size for name, one in found.items()}, read, target, admit)


def _moved(source: Path, folder: int, name: str) -> bool:
    """Move ``source`` to the file ``name`` of the open directory. False if they are on different file
    systems."""
    try:
        os.replace(source, name, dst_dir_fd=folder)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        return False
    return True


def _absolute(config: dict[str, Any], key: str) -> Path:
    value = config.get(key)
    if not isinstance(value, str) or not os.path.isabs(value):  # noqa: PTH117
        raise errors.StorageError(
            f"checkpoint_storage.{key} must be an absolute path, found {value!r}"
        )
    return Path(value)


def _verify_size(storage_id: str, path: Path, size: int) -> None:
    with files.explained("read", path):
        try:
            found = path.stat()
        except FileNotFoundError:
            raise errors.CheckpointCorrupted(
                f"checkpoint {storage_id}: {path} is missing"
            ) from None
    if path.is_file() and found.st_size != size:
        raise errors.CheckpointCorrupted(
            f"checkpoint {storage_id}: {path} has {found.st_size} bytes, but {size} were stored"
        )


def _changed(storage_id: str, path: Path, then: str, now: str) -> errors.CheckpointCorrupted:
    return errors.CheckpointCorrupted(
        f"checkpoint {storage_id}: the contents of {path} have changed since the file was "
        f"stored (checksum {then} then, {now} now)"
    )
