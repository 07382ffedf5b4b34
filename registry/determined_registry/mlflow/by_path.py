"""Answers that are a file: the service gets its path, and sends the bytes itself."""

from __future__ import annotations

import os
import posixpath
import stat
from pathlib import Path
from typing import Any
from urllib.parse import quote

from determined.common.wire.mlflow import PATH_HEADER

_EXTENSION = "http.response.pathsend"
"""Of ASGI: a server that has it takes paths of files for bodies."""
_OF_BODY = (b"content-length", b"content-type")


class ByPath:
    """``send`` of one request, whose answer may be a path. Ranges, and contents without a separate file, come
    as bytes."""

    def __init__(self, send: Any) -> None:
        self._send = send
        self._start: Any = None
        self._asked = ""

    async def answer(self, app: Any, scope: Any, receive: Any) -> None:
        """Has ``app`` answer the request."""
        self._asked = scope["path"]
        extensions = {**(scope.get("extensions") or {}), _EXTENSION: {}}
        await app({**scope, "extensions": extensions}, receive, self._send_later)

    async def _send_later(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            # What follows says whether these are its headers.
            self._start = message
            return
        start, self._start = self._start, None
        if message["type"] != _EXTENSION:
            if start is not None:
                await self._send(start)
            await self._send(message)
            return
        headers = [pair for pair in start["headers"] if pair[0].lower() not in _OF_BODY]
        headers += [
            (b"content-length", b"0"),
            # In storage the file may have another name.
            (b"content-type", _type(self._asked).encode()),
            (PATH_HEADER.encode(), quote(message["path"]).encode()),
        ]
        await self._send({**start, "headers": headers})
        await self._send({"type": "http.response.body", "body": b""})


def is_private(path: Path) -> bool:
    """True if no other account can exchange the file: then it may be opened by its path."""
    try:
        found = [folder.lstat() for folder in (path, *path.parents)]
    except OSError:
        return False
    if stat.S_ISLNK(found[0].st_mode):
        return False
    # A directory that nobody else passes through protects all that is in it.
    return any(
        status.st_uid == os.geteuid()
        and not status.st_mode & 0o077
        and stat.S_ISDIR(status.st_mode)
        for status in found[1:]
    )


def _type(path: str) -> str:
    from mlflow.utils.mime_type_utils import _guess_mime_type

    found: str = _guess_mime_type(posixpath.basename(path))
    return found
