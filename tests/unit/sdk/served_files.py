"""A checkpoint's files as the service hands them out, with faults on the way."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from typing import Any

import httpx


class _Stream(httpx.SyncByteStream):
    """Some bytes, as they come from a socket. ``breaks``: then it ends in an error."""

    def __init__(self, content: bytes, breaks: bool) -> None:
        self._content, self._breaks = content, breaks

    def __iter__(self) -> Iterator[bytes]:
        for start in range(0, len(self._content), 64):
            yield self._content[start : start + 64]
        if self._breaks:
            raise httpx.ReadError("connection reset")


class ServedFiles:
    """``/files`` and ``/contents`` of one checkpoint.

    ``breaks``: the numbers of bytes after which the next answers break off, one after the other.
    ``refusals``: statuses of the next answers. ``ranges``: the requested ranges.
    """

    def __init__(self, files: dict[str, bytes], directories: list[str] | None = None) -> None:
        self.files = dict(sorted(files.items()))
        self.directories = directories or []
        self.checksums = {path: _sum(data) for path, data in self.files.items()}
        self.version = "v1"
        self.breaks: list[int] = []
        self.refusals: list[int] = []
        self.ranges: list[tuple[int, int]] = []

    @property
    def whole(self) -> bytes:
        return b"".join(self.files.values())

    def listing(self) -> dict[str, Any]:
        found = []
        offset = 0
        for path, data in self.files.items():
            sizes = {"size": str(len(data)), "offset": str(offset)}
            found.append({"path": path, **sizes, "checksum": self.checksums.get(path)})
            offset += len(data)
        return {"version": self.version, "files": found, "directories": self.directories}

    def handle(self, request: httpx.Request) -> httpx.Response:
        """The transport's answer."""
        if request.url.path.endswith("/files"):
            return httpx.Response(200, json=self.listing())
        if self.refusals:
            return httpx.Response(self.refusals.pop(0), json={"message": "not now"})
        found = re.fullmatch(r"bytes=(\d+)-(\d+)", request.headers["Range"])
        assert found is not None
        start, end = int(found[1]), int(found[2]) + 1
        self.ranges.append((start, end))
        content = self.whole[start:end]
        headers = {"ETag": f'"{self.version}"'}
        if request.headers["If-Range"] != f'"{self.version}"':
            return httpx.Response(200, headers=headers, stream=_Stream(self.whole, False))
        breaks = bool(self.breaks)
        if breaks:
            content = content[: self.breaks.pop(0)]
        return httpx.Response(206, headers=headers, stream=_Stream(content, breaks))


def _sum(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()
