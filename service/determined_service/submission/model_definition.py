"""The model definition: the files of a submission as one deterministic archive.

Equal files give equal bytes with any times, owners and order, so they are stored once.
"""

from __future__ import annotations

import base64
import binascii
import gzip
import hashlib
import io
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import orjson

from determined.common.wire import limits
from determined.common.wire.checks import show
from determined_service.base.checks import check_text
from determined_service.base.recent import Recent
from determined_service.base.refusals import BadRequest

LIMIT_BYTES = limits.FILES_BYTES
"""The limit for all files together, before compression."""

# 1980-01-01, the earliest time a zip file can hold: tools that zip the files again do not stumble.
_TIME = 315532800
_REGULAR = {"0", "48", "\0", ""}
_DIRECTORY = {"5", "53"}


@dataclass(frozen=True, slots=True)
class ModelDefinition:
    """``hash``: SHA-256 (hex) of ``archive``, a tar.gz, or the file that holds it."""

    hash: str
    archive: bytes | Path

    def content(self) -> bytes:
        """The archive's bytes."""
        return self.archive if isinstance(self.archive, bytes) else self.archive.read_bytes()


REMEMBERED_DEFINITIONS = 16
REMEMBERED_BYTES = 128 * limits.KIB
"""The same files come with many experiments: those up to this size are packed once."""

_recent: Recent[bytes, ModelDefinition] = Recent(REMEMBERED_DEFINITIONS)


def content_size(files: Sequence[Mapping[str, Any]]) -> int:
    """Characters of the files' contents as sent."""
    contents = (file.get("content") for file in files if isinstance(file, Mapping))
    return sum(len(content) for content in contents if isinstance(content, str | bytes))


def pack(files: Sequence[Mapping[str, Any]]) -> ModelDefinition | None:
    """Packs ``modelDefinition`` of the REST API; None: no files. Raises as :func:`pack_anew`."""
    if not files:
        return None
    if content_size(files) > REMEMBERED_BYTES or len(files) > limits.FILES:
        return pack_anew(files)
    try:
        key = hashlib.sha256(orjson.dumps(files)).digest()
    except TypeError:  # what JSON cannot hold is refused below
        return pack_anew(files)
    found = _recent.get(key)
    if found is None:
        found = pack_anew(files)
        if len(found.content()) <= REMEMBERED_BYTES:
            _recent.put(key, found)
    return found


def pack_anew(files: Sequence[Mapping[str, Any]]) -> ModelDefinition:
    """Packs the files.

    Raises BadRequest for paths that lead out of the directory, for links and devices, for content
    that is not base64, and above :data:`LIMIT_BYTES`.
    """
    if len(files) > limits.FILES:
        raise BadRequest(
            f"modelDefinition: {len(files)} files found, at most {limits.FILES} are allowed: list files "
            "that the training does not need in .detignore"
        )
    members: dict[str, tuple[tarfile.TarInfo, bytes]] = {}
    total = 0
    for place, file in enumerate(files):
        info, content = _member(file, f"modelDefinition[{place}]")
        total += len(content)
        if total > LIMIT_BYTES:
            raise BadRequest(
                f"the model definition is larger than {LIMIT_BYTES // 1024**2} MiB: list files "
                "that the training does not need in .detignore"
            )
        if info.name in members:
            raise BadRequest(f"the model definition holds {info.name!r} twice")
        members[info.name] = (info, content)
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for _, (info, content) in sorted(members.items()):
            tar.addfile(info, io.BytesIO(content))
    archive = gzip.compress(raw.getvalue(), compresslevel=6, mtime=0)
    return ModelDefinition(hashlib.sha256(archive).hexdigest(), archive)


def _member(file: Any, where: str) -> tuple[tarfile.TarInfo, bytes]:
    if not isinstance(file, Mapping):
        raise BadRequest(f"{where}: expected an object with a path, found {show(file)}")
    given = str(file.get("path") or "")
    path = PurePosixPath(given)
    if not path.parts or path.is_absolute() or ".." in path.parts or "\0" in given:
        raise BadRequest(f"the model definition's path {show(given)} is not inside the directory")
    check_text(given, f"{where}.path", limits.PATH_CHARS)
    kind = str(file.get("type", "0"))
    info = tarfile.TarInfo(str(path))
    info.mtime = _TIME
    info.mode = _mode(file.get("mode"), f"{where}.mode")
    if kind in _DIRECTORY:
        info.type = tarfile.DIRTYPE
        return info, b""
    if kind not in _REGULAR:
        raise BadRequest(f"the model definition's {show(given)} is neither a file nor a directory")
    try:
        content = base64.b64decode(_text(file.get("content")), validate=True)
    except (binascii.Error, ValueError, TypeError) as error:
        raise BadRequest(f"the content of {show(given)} is not base64: {error}") from error
    info.size = len(content)
    return info, content


def _mode(given: Any, where: str) -> int:
    """The permissions of a file; clients send them as a number, or as its digits."""
    try:
        mode = int(given or 0o644)
    except (TypeError, ValueError, OverflowError) as error:
        raise BadRequest(
            f"{where}: expected a file mode such as 420, found {show(given)}"
        ) from error
    return mode & 0o777


def _text(given: Any) -> str | bytes:
    return given if isinstance(given, str | bytes) else ("" if given is None else str(given))
