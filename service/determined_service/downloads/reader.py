"""``python -m determined_service.downloads.reader``: reads a checkpoint's files from its storage, for
:mod:`determined_service.downloads.readers`.

Reads questions from stdin, each a length (four bytes, big-endian) and JSON (:func:`answer`). Writes frames: a
letter, a length (four bytes) and that number of bytes. ``D``: data; ``E``: the end of an answer; ``X``: why
there is no (more) answer, JSON ``{"status": …, "message": …}``, also an end.

A storage may hang, a library may take memory: this process may be killed at any time, and may take
MEMORY_BYTES.
"""

from __future__ import annotations

import contextlib
import fcntl
import gzip
import io
import os
import resource
import sys
import tarfile
import time
import zipfile
from typing import Any, BinaryIO

import orjson

from determined import errors, storage
from determined.storage import files as contents
from determined.storage.directory import DirectoryStorageManager
from determined.storage.spans import Span, is_inside
from determined_service.base.refusals import ApiError, BadRequest, Conflict, Forbidden, NotFound
from determined_service.downloads import layout
from determined_service.downloads.permitted import require_permitted

MEMORY_BYTES = 1 << 30
FRAME_BYTES = 1 << 18
"""The most bytes in a frame of data."""
PIPE_BYTES = 1 << 20


class _Frames(io.RawIOBase):
    """A file that writes its data as frames to a pipe; it cannot be sought."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        for start in range(0, len(view), FRAME_BYTES):
            self.frame(b"D", view[start : start + FRAME_BYTES])
        return len(view)

    def frame(self, kind: bytes, data: bytes | memoryview = b"") -> None:
        head = kind + len(data).to_bytes(4, "big")
        written = os.writev(self._descriptor, [head, data])
        rest = memoryview(head + bytes(data))[written:] if written < len(head) else None
        if rest is None:
            rest = memoryview(data)[written - len(head) :]
        while rest:
            rest = rest[os.write(self._descriptor, rest) :]


class _Contents(io.RawIOBase):
    """The contents of a checkpoint's files, one after the other, each compared with its checksum."""

    def __init__(
        self, manager: storage.StorageManager, uuid: str, every: list[layout.PlacedFile]
    ) -> None:
        self._uuid = uuid
        self._pieces = manager.read(uuid, [Span(file.path, 0, file.size) for file in every])
        self._piece = memoryview(b"")
        self._left = 0

    def begin(self, file: layout.PlacedFile) -> None:
        """Begin the next file: data read from now on is this file's."""
        self._file = file
        self._left = file.size
        self._digest = contents.Digest(contents.algorithm_for(file.size, file.checksum))

    def read(self, size: int = -1) -> bytes:
        """Exactly this number of bytes, fewer only at the file's end."""
        wanted = self._left if size < 0 else min(size, self._left)
        found: list[memoryview] = []
        while wanted:
            if not self._piece:
                self._piece = memoryview(next(self._pieces))
            part = self._piece[:wanted]
            self._piece = self._piece[len(part) :]
            wanted -= len(part)
            self._left -= len(part)
            if self._file.checksum is not None:
                self._digest.update(part)
            found.append(part)
        return b"".join(found)

    def require_unchanged(self) -> None:
        """At the file's end. Raises errors.CheckpointCorrupted."""
        if self._file.checksum is not None and self._digest.value() != self._file.checksum:
            raise errors.CheckpointCorrupted(
                f"checkpoint {self._uuid}: {self._file.path} differs from the stored file (checksum mismatch)"
            )


def _manager(question: dict[str, Any]) -> storage.StorageManager:
    section, own = question["storage"], question["own"]
    require_permitted(section, own, f"checkpoint {question['uuid']}")
    manager = storage.build(section)
    if isinstance(manager, DirectoryStorageManager):
        trusted = storage.build(own)
        assert isinstance(trusted, DirectoryStorageManager)
        if not manager.root.is_relative_to(trusted.root):
            raise Forbidden(f"{manager.root} is not in the cluster's own checkpoint storage")
        manager.trusted = trusted.root
    return manager


def answer(question: dict[str, Any], frames: _Frames) -> None:
    """Writes the data that ``question`` asks for.

    Its fields: ``storage`` and ``own`` (sections, see :mod:`~determined_service.downloads.permitted`),
    ``uuid``, ``resources``, ``checksums`` and ``executable`` (JSON in JSON), ``format``: ``bytes`` (with
    ``path`` for one file, ``start`` and ``end``), ``tar``, ``tgz`` or ``zip``. Raises ApiError,
    errors.StorageError.
    """
    uuid = question["uuid"]
    resources = orjson.loads(question["resources"])
    checksums, executable = (orjson.loads(question[key]) for key in ("checksums", "executable"))
    every = layout.files(resources, checksums, executable)
    for path in resources:
        if not is_inside(path):
            raise Conflict(f"checkpoint {uuid}: the path {path!r} leads out of the checkpoint")
    manager = _manager(question)
    if question["format"] == "bytes":
        wanted = layout.Range(question["start"], question["end"])
        if question["path"] is not None:
            every = [file._replace(offset=0) for file in every if file.path == question["path"]]
        spans = [Span(*span) for span in layout.spans(every, wanted)]
        for piece in manager.read(uuid, spans):
            frames.write(piece)
        return
    # Before the first byte: if the files are gone, the client gets an error, not half an archive.
    list(manager.read(uuid, [Span(file.path, 0, min(file.size, 1)) for file in every[:1]]))
    write = _zip if question["format"] == "zip" else _tar
    source = _Contents(manager, uuid, every)
    if question["format"] == "tgz":
        # Not compressed: weights hardly shrink, and it would take 20 times the processor time.
        with gzip.GzipFile(fileobj=frames, mode="wb", compresslevel=0) as packed:
            write(packed, resources, every, source)
    else:
        write(frames, resources, every, source)


def _mode(file: layout.PlacedFile) -> int:
    return 0o755 if file.executable else 0o644


def _tar(
    target: Any, resources: dict[str, int], every: list[layout.PlacedFile], source: _Contents
) -> None:
    now = int(time.time())
    with tarfile.open(
        fileobj=target, mode="w|", format=tarfile.PAX_FORMAT, bufsize=FRAME_BYTES
    ) as archive:
        # Not an argument in typeshed's stubs.
        archive.copybufsize = FRAME_BYTES  # type: ignore[attr-defined]
        for path in layout.directories(resources):
            info = tarfile.TarInfo(path.rstrip("/"))
            info.type, info.mode, info.mtime = tarfile.DIRTYPE, 0o755, now
            archive.addfile(info)
        for file in every:
            source.begin(file)
            info = tarfile.TarInfo(file.path)
            info.size, info.mtime, info.mode = file.size, now, _mode(file)
            archive.addfile(info, source)
            source.require_unchanged()


def _zip(
    target: Any, resources: dict[str, int], every: list[layout.PlacedFile], source: _Contents
) -> None:
    now = time.localtime()[:6]
    with zipfile.ZipFile(target, "w", zipfile.ZIP_STORED) as archive:
        for path in layout.directories(resources):
            info = zipfile.ZipInfo(path, now)
            info.external_attr = (0o40755 << 16) | 0x10
            archive.writestr(info, b"")
        for file in every:
            source.begin(file)
            info = zipfile.ZipInfo(file.path, now)
            info.external_attr = (0o100000 | _mode(file)) << 16
            info.file_size = file.size
            with archive.open(info, "w", force_zip64=True) as member:
                while piece := source.read(FRAME_BYTES):
                    member.write(piece)
            source.require_unchanged()


def _refusal(error: Exception) -> ApiError:
    if isinstance(error, ApiError):
        return error
    if isinstance(error, errors.CheckpointNotFound):
        return NotFound(str(error))
    if isinstance(error, errors.StorageError):
        return Conflict(str(error))
    if isinstance(error, MemoryError):
        return Conflict("the storage's answers take too much memory")
    return BadRequest(f"the files cannot be read: {type(error).__name__}: {error}")


def serve(questions: BinaryIO, answers: int) -> None:
    """Answers at the descriptor ``answers`` until ``questions`` ends."""
    frames = _Frames(answers)
    while len(head := questions.read(4)) == 4:
        question = orjson.loads(questions.read(int.from_bytes(head, "big")))
        try:
            answer(question, frames)
        except BrokenPipeError:
            return
        except Exception as error:
            found = _refusal(error)
            text = found.message.encode("utf-8", "backslashreplace").decode()
            frames.frame(b"X", orjson.dumps({"status": found.status, "message": text}))
        else:
            frames.frame(b"E")


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))
    # A core file would hold keys of storages.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(OSError, AttributeError):
        # Fewer turns for as many bytes. Not everywhere, and not beyond a user's limit.
        fcntl.fcntl(sys.stdout.fileno(), fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    with contextlib.suppress(BrokenPipeError):
        serve(sys.stdin.buffer, sys.stdout.fileno())
