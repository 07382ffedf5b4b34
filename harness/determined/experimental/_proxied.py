"""Downloading a checkpoint through the service, resumed whenever it breaks off.

The service sends the files one after the other (``/contents``), from any byte on. They are written to a
directory beside the target, ``.<name>-<uuid>.part``, which moves there once every file has its size and
checksum. What that directory holds when this process is killed, or the service does not come back, the next
download goes on from.
"""

from __future__ import annotations

import contextlib
import logging
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from determined import errors
from determined.common.api import errors as api
from determined.common.api.session import Session
from determined.common.backoff import Backoff

if TYPE_CHECKING:
    from determined.storage.files import Digest

PATIENCE_S = 120.0
"""Without a byte for so long, the download is given up."""
ATTEMPTS = 2
"""So often one file may arrive with another checksum: the network's fault the first time, perhaps."""

logger = logging.getLogger("determined.download")


@dataclass
class _File:
    """A file as the service lists it, and how much of it is here. ``offset``: in ``/contents``."""

    path: str
    size: int
    offset: int
    checksum: str | None
    executable: bool
    have: int = 0
    done: bool = False
    failures: int = 0


@dataclass
class _Listing:
    version: str
    files: list[_File]
    directories: list[str]

    @classmethod
    def ask(cls, session: Session, uuid: str) -> _Listing:
        found = session.get(f"/api/v1/checkpoints/{uuid}/files")
        try:
            every = [
                _File(
                    one["path"],
                    int(one["size"]),
                    int(one["offset"]),
                    one["checksum"],
                    bool(one.get("executable")),
                )
                for one in found["files"]
            ]
            return cls(found["version"], every, list(found["directories"]))
        except (KeyError, TypeError, ValueError) as error:
            raise errors.ProxiedDownloadFailed(
                f"the service at {session.master} does not list the files of checkpoint {uuid}"
            ) from error


def fetch_through_service(
    session: Session,
    uuid: str,
    target: Path,
    *,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Downloads checkpoint ``uuid`` to ``target``, completely or not at all.

    Other files in ``target`` are left alone. Raises errors.ProxiedDownloadFailed when the service refuses or
    stays away, errors.CheckpointCorrupted, errors.StorageError when ``target`` cannot be written.
    """
    from determined.experimental._local_files import is_there, move_into
    from determined.storage.files import make_executable

    try:
        listing = _Listing.ask(session, uuid)
        sizes = {file.path: file.size for file in listing.files} | dict.fromkeys(
            listing.directories, 0
        )
        _require_inside(uuid, sizes)
        sums = {file.path: file.checksum for file in listing.files if file.checksum is not None}
        if is_there(target, sizes, sums):
            return
        with _part(target, uuid) as folder:
            _Download(session, uuid, listing, folder, sleep, clock).run()
            with _written(target):
                for file in listing.files:
                    if file.executable:
                        make_executable(folder / file.path)
                move_into(folder, target)
    except api.NotFoundException as error:
        raise errors.ProxiedDownloadFailed(
            f"the service has no files of checkpoint {uuid} to download: {error.message}"
        ) from error
    except api.APIException as error:
        raise errors.ProxiedDownloadFailed(error.message) from error


def _require_inside(uuid: str, paths: dict[str, int]) -> None:
    from determined.storage.spans import is_inside

    for path in paths:
        if not is_inside(path):
            raise errors.CheckpointCorrupted(
                f"checkpoint {uuid}: the path {path!r} leads out of the checkpoint"
            )


@contextlib.contextmanager
def _written(path: Path) -> Iterator[None]:
    from determined.storage import files

    with files.explained("download to", path):
        yield


@contextlib.contextmanager
def _part(target: Path, uuid: str) -> Iterator[Path]:
    """The directory of an unfinished download, for this process alone; gone when the block ends well."""
    from filelock import FileLock, Timeout

    part = target.parent / f".{target.name}-{uuid}.part"
    with _written(part):
        (part / "files").mkdir(parents=True, exist_ok=True)
        lock = FileLock(part / "lock")
        try:
            lock.acquire(timeout=0)
        except Timeout:
            raise errors.ProxiedDownloadFailed(
                f"another process downloads checkpoint {uuid} to {target} just now"
            ) from None
    try:
        yield part / "files"
        shutil.rmtree(part, ignore_errors=True)
    finally:
        lock.release()


class _Download:
    """One download into ``folder``; :meth:`run` returns when every file is there."""

    def __init__(
        self,
        session: Session,
        uuid: str,
        listing: _Listing,
        folder: Path,
        sleep: Callable[[float], None],
        clock: Callable[[], float],
    ) -> None:
        self._session, self._uuid, self._listing, self._folder = session, uuid, listing, folder
        self._sleep, self._clock = sleep, clock

    def run(self) -> None:
        with _written(self._folder):
            self._remove_others()
            for path in self._listing.directories:
                (self._folder / path).mkdir(parents=True, exist_ok=True)
            for file in self._listing.files:
                self._look(file)
            self._require_room()
        backoff = Backoff(0.1, 5.0)
        heard = self._clock()
        said = False
        while wanted := self._next_run():
            have = self._bytes_here()
            try:
                self._receive(wanted)
            except api.MasterNotFoundException as error:
                if self._bytes_here() > have:
                    heard = self._clock()
                    backoff.reset()
                    said = False
                if self._clock() - heard >= PATIENCE_S:
                    raise errors.ProxiedDownloadFailed(
                        f"{error.message}. {self._bytes_here()} bytes of checkpoint {self._uuid} are here: "
                        "download it again to go on from there"
                    ) from error
                if not said:
                    logger.warning(
                        "%s: the download of checkpoint %s goes on when the service answers again",
                        error.message,
                        self._uuid,
                    )
                    said = True
                self._sleep(backoff.next_delay())
            else:
                heard = self._clock()

    def _bytes_here(self) -> int:
        return sum(file.have for file in self._listing.files)

    def _remove_others(self) -> None:
        """What an earlier download has left of files that are not in the checkpoint any more."""
        from determined.storage import files

        wanted = {*self._listing.directories, *(file.path for file in self._listing.files)}
        parents = {f"{parent}/" for path in wanted for parent in Path(path).parents}
        for path in sorted(files.list_files(self._folder), reverse=True):
            if path not in wanted | parents:
                found = self._folder / path
                if path.endswith("/"):
                    found.rmdir()
                else:
                    found.unlink()

    def _look(self, file: _File) -> None:
        """The part of the file that an earlier download has written."""
        path = self._folder / file.path
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.is_file() or path.is_symlink():
            path.unlink(missing_ok=True)
            path.touch()
        file.have = path.stat().st_size
        if file.have == file.size and self._is_right(file):
            file.done = True
        elif file.have >= file.size:
            self._drop(file)
            # An empty file is there, and right, when it is empty.
            file.done = file.size == 0

    def _is_right(self, file: _File) -> bool:
        from determined.storage import files

        if file.checksum is None:
            return True
        return files.checksum(self._folder / file.path, file.checksum) == file.checksum

    def _drop(self, file: _File) -> None:
        (self._folder / file.path).write_bytes(b"")
        file.have = 0

    def _require_room(self) -> None:
        needed = sum(file.size - file.have for file in self._listing.files)
        free = shutil.disk_usage(self._folder).free
        if needed > free:
            raise errors.StorageError(
                f"checkpoint {self._uuid} does not fit: {needed} bytes are to be downloaded to "
                f"{self._folder}, where {free} are free"
            )

    def _next_run(self) -> list[_File]:
        """Files that are missing, one after the other; of the first one something may be here."""
        found: list[_File] = []
        for file in self._listing.files:
            if not file.done:
                if found and file.have:
                    self._drop(file)
                found.append(file)
            elif found and file.size:
                break
        return found

    def _receive(self, wanted: list[_File]) -> None:
        first, last = wanted[0], wanted[-1]
        start, end = first.offset + first.have, last.offset + last.size
        etag = f'"{self._listing.version}"'
        headers = {"Range": f"bytes={start}-{end - 1}", "If-Range": etag}
        path = f"/api/v1/checkpoints/{self._uuid}/contents"
        with self._session.open(path, headers=headers) as response:
            if response.headers.get("ETag") != etag:
                raise errors.ProxiedDownloadFailed(
                    f"the files of checkpoint {self._uuid} have changed since its download began: some were "
                    "deleted, perhaps; download it again"
                )
            if response.status_code != 206:
                raise errors.ProxiedDownloadFailed(
                    f"{self._session.master} sends no parts of files (HTTP {response.status_code}); is "
                    "another program in between?"
                )
            chunks: Iterator[bytes] = response.iter_bytes()
            rest = b""
            for file in wanted:
                rest = self._receive_file(file, rest, chunks)

    def _receive_file(self, file: _File, rest: bytes, chunks: Iterator[bytes]) -> bytes:
        """Writes the file from ``rest`` and ``chunks``; what is left of the last chunk."""
        path = self._folder / file.path
        with _written(path), path.open("r+b") as target:
            digest = self._digest_of_what_is_here(file, target)
            while file.have < file.size:
                data = rest or next(chunks, b"")
                if not data:
                    raise api.MasterNotFoundException("the service's answer broke off")
                part = data[: file.size - file.have]
                rest = data[len(part) :]
                target.write(part)
                digest.update(part)
                file.have += len(part)
        if file.checksum is not None and digest.value() != file.checksum:
            file.failures += 1
            self._drop(file)
            if file.failures >= ATTEMPTS:
                raise errors.CheckpointCorrupted(
                    f"checkpoint {self._uuid}: {file.path} is not what was written (its checksum differs)"
                )
        else:
            file.done = True
        return rest

    def _digest_of_what_is_here(self, file: _File, target: BinaryIO) -> Digest:
        from determined.storage import files

        digest = files.Digest(files.algorithm_for(file.size, file.checksum))
        left = file.have
        while left:
            data: Any = target.read(min(left, 1 << 20))
            digest.update(data)
            left -= len(data)
        return digest
