"""Listing, matching, hashing and syncing files."""

from __future__ import annotations

import contextlib
import errno
import functools
import hashlib
import logging
import os
import shutil
import stat
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Protocol, TypeVar

from determined import errors

logger = logging.getLogger("determined.storage")

T = TypeVar("T")

_CHUNK = 1 << 20
PLAIN = "sha256"
PIECES = "sha256-16MiB"
QUICK = "crc32-16MiB"
PIECE_BYTES = {PIECES: 16 << 20, QUICK: 16 << 20, "sha256-64MiB": 64 << 20}
"""Checksums that are made of pieces; the last is no longer used for new files."""
ALGORITHMS = (PLAIN, *PIECE_BYTES)
# What a copy within the kernel answers where it is not offered.
_NOT_SO = (None, errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP)

MANIFEST = ".determined-manifest.json"
"""The file with sizes and checksums. It lies beside the checkpoint's files but is not one of its resources.
With it every reader can verify without asking the service.
"""


@contextlib.contextmanager
def explained(action: str, path: os.PathLike[str] | str) -> Iterator[None]:
    """Turn an OSError into a StorageError that names the path and the reason."""
    try:
        yield
    except OSError as error:
        where = error.filename2 or error.filename or path
        reason = error.strerror or str(error) or type(error).__name__
        raise errors.StorageError(
            f"checkpoint storage: cannot {action} {where}: {reason}"
        ) from error


@contextlib.contextmanager
def written_below(path: Path) -> Iterator[None]:
    """Explain errors that occur while a caller's own code writes files below ``path``."""
    try:
        yield
    except Exception as error:
        if isinstance(error, OSError) and error.filename is not None:
            name = error.filename
            if isinstance(name, str | os.PathLike) and Path(name).is_relative_to(path):
                raise errors.StorageError(
                    f"checkpoint storage: cannot write {name}: {error.strerror}"
                ) from error
            raise
        # torch says "PytorchStreamWriter failed writing file" when the disk is full, and what write()
        # raises names no file.
        # Of several workers the first one removes the directory when any of them fails.
        with contextlib.suppress(OSError):
            free = shutil.disk_usage(path.parent).free
            error.add_note(f"while writing a checkpoint to {path} ({free >> 20} MiB free there)")
        raise


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    """An empty local directory for the block, inside the task's directory, which is removed with the task."""
    parent = os.environ.get("DET_RUN_DIR")
    if parent is None or not Path(parent).is_dir():
        parent = tempfile.gettempdir()
    with explained("write to", parent):
        made = tempfile.TemporaryDirectory(
            prefix="determined-checkpoint-", dir=parent, ignore_cleanup_errors=True
        )
    with made as name:
        yield Path(name)


def list_files(root: Path) -> dict[str, int]:
    """Relative path → bytes of everything below ``root``; directories end in "/" and have 0.

    The manifest of a stored checkpoint is left out. Symbolic links are followed. Raises OSError;
    StorageError for an entry that is neither file nor directory, and for a name that is not text.
    """
    found: dict[str, int] = {}

    def visit(directory: Path, prefix: str) -> None:
        with os.scandir(directory) as entries:
            for entry in sorted(entries, key=lambda entry: entry.name):
                name = prefix + entry.name
                if not _is_text(entry.name):
                    raise errors.StorageError(
                        f"checkpoint storage: {os.fsencode(entry.name)!r} in {directory} is not valid "
                        "UTF-8; rename the file, it cannot be stored under such a name"
                    )
                if entry.is_dir():
                    found[name + "/"] = 0
                    visit(directory / entry.name, name + "/")
                elif entry.is_file():
                    found[name] = entry.stat().st_size
                else:
                    raise errors.StorageError(
                        f"checkpoint storage: {directory / entry.name} is neither a file nor a "
                        "directory (a dangling link, a socket?) and cannot be stored; remove it from the "
                        "directory"
                    )

    visit(root, "")
    found.pop(MANIFEST, None)
    return found


def _is_text(name: str) -> bool:
    with contextlib.suppress(UnicodeEncodeError):
        name.encode()
        return True
    return False


def not_behind_links(root: Path, paths: Iterable[str]) -> set[str]:
    """The ``paths`` below ``root`` that are reached without a symbolic link below ``root``."""

    @functools.cache
    def linked(path: str) -> bool:
        return bool(path) and ((root / path).is_symlink() or linked(path.rpartition("/")[0]))

    return {path for path in paths if not linked(path)}


def selected(paths: dict[str, int], selector: Callable[[str], bool] | None) -> dict[str, int]:
    """The paths ``selector`` accepts; all without one."""
    return {p: size for p, size in paths.items() if selector is None or selector(p)}


def matching(paths: Iterable[str], globs: Iterable[str]) -> set[str]:
    """The paths that match a glob (``**`` crosses directories), or lie in a directory that does."""
    patterns = [glob.strip("/").split("/") for glob in globs]
    found = set()
    for path in paths:
        parts = path.rstrip("/").split("/")
        heads = [parts[:count] for count in range(1, len(parts) + 1)]
        if any(_matches(head, pattern) for pattern in patterns for head in heads):
            found.add(path)
    return found


def _matches(parts: list[str], pattern: list[str]) -> bool:
    if not pattern:
        return not parts
    first, *rest = pattern
    if first == "**":
        return not rest or any(_matches(parts[skip:], rest) for skip in range(len(parts)))
    return bool(parts) and fnmatchcase(parts[0], first) and _matches(parts[1:], rest)


def copy(source: Path, target: Path) -> None:
    """Copy a file with its times and permissions, by sharing its blocks where the file system can.

    The copy has none of the bits that let a program act as another account.
    """
    with source.open("rb") as reader, target.open("wb") as writer:
        try:
            while os.copy_file_range(reader.fileno(), writer.fileno(), 1 << 30):
                pass
        except (AttributeError, OSError) as error:
            # Not on this system, or not between these two.
            if getattr(error, "errno", None) not in _NOT_SO:
                raise
            shutil.copyfileobj(reader, writer, _CHUNK)
    shutil.copystat(source, target)
    drop_privileges(target)


def drop_privileges(path: Path) -> None:
    """Take the bits from the file that let a program act as another account. Raises OSError."""
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & ~0o777:
        path.chmod(mode & 0o777)


def is_executable(path: Path) -> bool:
    """True if the owner of the file may execute it; links are followed. Raises OSError."""
    return bool(path.stat().st_mode & stat.S_IXUSR)


def make_executable(path: Path) -> None:
    """Let every account that may read the file execute it too, as Git does. Raises OSError."""
    mode = stat.S_IMODE(path.stat().st_mode)
    wanted = mode | (mode & 0o444) >> 2
    if wanted != mode:
        try:
            path.chmod(wanted)
        except PermissionError as error:
            # Of a file system without permissions (FAT, some network shares).
            logger.warning("%s cannot be made executable: %s", path, error.strerror)


def copy_tree(source: Path, paths: Iterable[str], target: Path) -> None:
    """Copy the ``paths`` below ``source``, directories end in "/". Raises OSError."""
    for path in paths:
        if path.endswith("/"):
            (target / path).mkdir(parents=True, exist_ok=True)
        else:
            (target / path).parent.mkdir(parents=True, exist_ok=True)
            copy(source / path, target / path)


def in_parallel(work: Callable[[T], object], items: Iterable[T], threads: int) -> None:
    """Call ``work`` for each item. Raises the first error, once all calls have ended."""
    with ThreadPoolExecutor(threads) as pool:
        calls = [pool.submit(work, item) for item in items]
        try:
            for call in calls:
                call.result()
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


class _Hash(Protocol):
    def update(self, data: memoryview, /) -> None: ...

    def digest(self) -> bytes: ...


class _CRC32:
    def __init__(self) -> None:
        self._value = 0

    def update(self, data: memoryview) -> None:
        self._value = zlib.crc32(data, self._value)

    def digest(self) -> bytes:
        return self._value.to_bytes(4, "big")


def _hash_of_piece(algorithm: str) -> _Hash:
    return _CRC32() if algorithm == QUICK else hashlib.sha256()


class Digest:
    """Computes the checksum of :func:`checksum` from bytes that arrive one after the other.

    ``algorithm``: see :func:`algorithm_for`. Raises errors.StorageError for one that is not known here.
    """

    def __init__(self, algorithm: str) -> None:
        if algorithm not in ALGORITHMS:
            raise errors.StorageError(
                f"checksums of the kind {algorithm!r} are not known to this release; known are "
                f"{', '.join(ALGORITHMS)}"
            )
        self._algorithm = algorithm
        self._whole = hashlib.sha256()
        self._piece = _hash_of_piece(algorithm)
        self._room = self._piece_bytes = PIECE_BYTES.get(algorithm, 0)

    def update(self, data: bytes | memoryview) -> None:
        if self._algorithm == PLAIN:
            self._whole.update(data)
            return
        rest = memoryview(data)
        while rest:
            self._piece.update(rest[: self._room])
            taken = min(self._room, len(rest))
            rest, self._room = rest[taken:], self._room - taken
            if not self._room:
                self.add_piece(self._piece.digest())
                self._piece, self._room = _hash_of_piece(self._algorithm), self._piece_bytes

    def add_piece(self, digest: bytes) -> None:
        """Instead of the bytes of the next piece."""
        self._whole.update(digest)

    def value(self) -> str:
        """At the end."""
        if self._room < self._piece_bytes:
            self.add_piece(self._piece.digest())
            self._room = self._piece_bytes
        return f"{self._algorithm}:{self._whole.hexdigest()}"


def algorithm_for(size: int, expected: str | None = None, large: str = PIECES) -> str:
    """The algorithm of the checksum ``expected``, or without it the algorithm for a new file: ``large``
    files are hashed in pieces, by several processors at once.
    """
    if expected is not None:
        return expected.partition(":")[0]
    return PLAIN if size <= PIECE_BYTES[large] else large


def checksum_of(pieces: list[bytes]) -> str:
    """The checksum of a new file, from the SHA-256 of its pieces in order."""
    if len(pieces) == 1:
        return f"{PLAIN}:{pieces[0].hex()}"
    digest = Digest(PIECES)
    for piece in pieces:
        digest.add_piece(piece)
    return digest.value()


def checksum(path: Path, expected: str | None = None, large: str = PIECES) -> str:
    """``"<algorithm>:<hex>"`` of a file, to be compared with ``expected``.

    ``sha256``, or, over 16 MiB, ``large``: ``sha256-16MiB``, the SHA-256 of the SHA-256 of its pieces of
    that size, or ``crc32-16MiB``, the SHA-256 of the CRC32 of those pieces (four bytes each, the highest
    first). ``crc32-16MiB`` takes half the time; it detects damage but cannot tell files apart.
    """
    found = checksum_unless(path, lambda: False, expected, large)
    assert found is not None
    return found


def checksum_unless(
    path: Path, stop: Callable[[], bool], expected: str | None = None, large: str = PIECES
) -> str | None:
    """As :func:`checksum`; None when ``stop()`` became true before the file's end."""
    size = path.stat().st_size
    algorithm = algorithm_for(size, expected, large)
    digest = Digest(algorithm)
    with path.open("rb", buffering=0) as file:
        if algorithm == PLAIN:
            for part in _read(file.fileno(), 0, size, stop):
                digest.update(part)
        else:
            pieces: dict[int, bytes] = {}
            length = PIECE_BYTES[algorithm]

            def hash_piece(start: int) -> None:
                piece = _hash_of_piece(algorithm)
                for part in _read(file.fileno(), start, min(start + length, size), stop):
                    piece.update(part)
                pieces[start] = piece.digest()

            in_parallel(hash_piece, range(0, size, length), os.cpu_count() or 1)
            for start in sorted(pieces):
                digest.add_piece(pieces[start])
    return None if stop() else digest.value()


def _read(descriptor: int, start: int, end: int, stop: Callable[[], bool]) -> Iterator[memoryview]:
    """Yields the bytes from ``start`` to ``end``. Each part is valid until the next one is asked for."""
    buffer = memoryview(bytearray(min(_CHUNK, max(end - start, 1))))
    while start < end and not stop():
        size = os.preadv(descriptor, [buffer[: end - start]], start)
        if not size:
            return
        yield buffer[:size]
        start += size


def copy_with_checksum(source: Path, target: Path, expected: str | None = None) -> str:
    """Copy a file. Returns the checksum of the copied bytes, to be compared with ``expected``."""
    with source.open("rb") as reader, target.open("wb") as writer:
        digest = Digest(algorithm_for(os.fstat(reader.fileno()).st_size, expected))
        while chunk := reader.read(_CHUNK):
            digest.update(chunk)
            writer.write(chunk)
    return digest.value()


def sync(path: Path) -> None:
    """Flush a file's bytes, or a directory's entries, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
