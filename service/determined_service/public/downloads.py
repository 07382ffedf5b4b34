"""Checkpoint files for clients that do not reach the storage: archives, and bytes that can be resumed."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import Annotated, Any

import orjson
from fastapi import Depends, Header, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from determined_service.access.dependencies import CheckpointReader
from determined_service.base.aside import aside
from determined_service.base.errors import response as refusal
from determined_service.base.ids import parse_uuid
from determined_service.base.json import JsonResponse
from determined_service.base.streams import Stream
from determined_service.downloads import layout
from determined_service.downloads.readers import Broken, Question, Readers, Reading
from determined_service.downloads.source import DownloadSource, find_source
from determined_service.web.router import Router
from determined_service.web.state import Db, ViewerOf

logger = logging.getLogger(__name__)

router = Router("Checkpoints")

SLOW_S = 30.0
"""Seconds after which a client is dropped that does not take a piece of 256 KiB; it may resume."""

_ARCHIVES = {
    "application/gzip": ("tgz", "tar.gz"),
    "application/x-gzip": ("tgz", "tar.gz"),
    "application/zip": ("zip", "zip"),
    "application/x-tar": ("tar", "tar"),
}
_HEADERS = {
    # A checkpoint may hold a page that a user wrote: it is never shown as one.
    "Content-Security-Policy": "default-src 'none'; sandbox",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}

RangeHeader = Annotated[
    str | None, Header(alias="Range", description="`bytes=FROM-TO`, one range", max_length=100)
]
IfRange = Annotated[
    str | None,
    Header(
        alias="If-Range",
        description="the ETag of the answer that is resumed: if the files are others now, all are sent",
        max_length=200,
    ),
]


class _Stream(Stream):
    """Sends what ``reading`` has. If that ends early the connection is closed, so that the client notices."""

    def __init__(self, reading: Reading, **more: Any) -> None:
        super().__init__(reading.pieces(), **more)
        self._reading = reading

    async def stream_response(self, send: Send) -> None:
        start = {"status": self.status_code, "headers": self.raw_headers}
        await send({"type": "http.response.start", **start})
        try:
            async for piece in self._reading.pieces():
                async with asyncio.timeout(SLOW_S):
                    await send({"type": "http.response.body", "body": piece, "more_body": True})
        except TimeoutError:
            logger.info("a download was broken off: its client took nothing for %.0f s", SLOW_S)
            return
        except Broken as error:
            logger.warning("a download was broken off: %s", error)
            return
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._reading.close()


@dataclass(frozen=True, slots=True)
class _WantedCheckpoint:
    """The files that a request asks for, and the user whose turn it is."""

    source: DownloadSource
    readers: Readers
    user: int

    async def read(self, question: Question) -> Reading:
        return await self.readers.read(question, self.user)


async def _wanted(
    request: Request, uuid: str, user: CheckpointReader, db: Db, viewer_of: ViewerOf
) -> _WantedCheckpoint:
    """The checkpoint, with the file that the address names if it names one."""
    wanted = parse_uuid(uuid, "checkpoint")
    async with db.tx() as conn:
        path = request.path_params.get("path")
        source = await find_source(conn, wanted, viewer_of(user), path)
    return _WantedCheckpoint(source, request.app.state.readers, user.user_id or 0)


WantedCheckpoint = Annotated[_WantedCheckpoint, Depends(_wanted)]


def _wanted_archive(accept: str) -> tuple[str, str, str] | None:
    kinds = [part.partition(";")[0].strip().lower() for part in accept.split(",")]
    for kind in kinds:
        if kind in _ARCHIVES:
            return (kind, *_ARCHIVES[kind])
    if not accept.strip() or {"*/*", "application/*"} & set(kinds):
        return ("application/gzip", *_ARCHIVES["application/gzip"])
    return None


@router.get("/checkpoints/{uuid}", response_class=Response)
async def download_archive(
    wanted: WantedCheckpoint,
    accept: Annotated[str, Header(description="application/gzip, zip or x-tar")] = "",
) -> Response:
    """All files in one archive: `tar.gz`, `zip` or `tar`, as `Accept` says. Each file is compared with its
    checksum on the way; if one differs the answer breaks off. It cannot be resumed."""
    kind = _wanted_archive(accept)
    if kind is None:
        known = ", ".join(dict.fromkeys(_ARCHIVES))
        return refusal(406, 3, "InvalidArgument", f"Accept: {accept[:100]!r}: expected {known}")
    media_type, form, suffix = kind
    reading = await wanted.read(wanted.source.question(form))
    name = f"{wanted.source.uuid}.{suffix}"
    return _Stream(
        reading,
        media_type=media_type,
        headers={**_HEADERS, "Content-Disposition": f'attachment; filename="{name}"'},
    )


def _listing(source: DownloadSource) -> dict[str, Any]:
    found = (source.resources, source.checksums, source.executable)
    resources, checksums, executable = map(orjson.loads, found)
    return layout.listing(resources, checksums, executable, source.version)


@router.get("/api/v1/checkpoints/{uuid}/files")
async def list_files(wanted: WantedCheckpoint) -> Response:
    """The files that can be downloaded, with sizes, checksums, whether they are executable, and where each
    begins in `/api/v1/checkpoints/{uuid}/contents`."""
    source = wanted.source
    size = len(source.resources) + len(source.checksums) + len(source.executable)
    return JsonResponse(await aside(size, _listing, source))


@router.get("/api/v1/checkpoints/{uuid}/contents", response_class=Response)
async def download_contents(
    wanted: WantedCheckpoint, range_header: RangeHeader = None, if_range: IfRange = None
) -> Response:
    """All files one after the other, in the order of `/api/v1/checkpoints/{uuid}/files`. A `Range` resumes a
    download that broke off."""
    return await _bytes(wanted, wanted.source.size, None, (range_header, if_range))


@router.get("/api/v1/checkpoints/{uuid}/files/{path:path}", response_class=Response)
async def download_file(
    wanted: WantedCheckpoint, path: str, range_header: RangeHeader = None, if_range: IfRange = None
) -> Response:
    """One file, or the `Range` of it."""
    return await _bytes(wanted, wanted.source.file_size or 0, path, (range_header, if_range))


async def _bytes(
    wanted: _WantedCheckpoint, size: int, path: str | None, asked: tuple[str | None, str | None]
) -> Response:
    range_header, if_range = asked
    etag = f'"{wanted.source.version}"'
    if if_range is not None and if_range != etag:
        range_header = None
    try:
        part = layout.read_range(range_header, size)
    except ValueError as error:
        answer = refusal(416, 3, "InvalidArgument", f"Range: {range_header!r}: {error}")
        answer.headers["Content-Range"] = f"bytes */{size}"
        return answer
    sent = part or layout.Range(0, size)
    headers = {
        **_HEADERS,
        "Accept-Ranges": "bytes",
        "Content-Length": str(len(sent)),
        "ETag": etag,
        "Content-Disposition": "attachment",
    }
    if part is not None:
        headers["Content-Range"] = f"bytes {part.start}-{part.end - 1}/{size}"
    question = wanted.source.question("bytes", path=path, start=sent.start, end=sent.end)
    reading = await wanted.read(question)
    return _Stream(
        reading,
        status_code=200 if part is None else 206,
        media_type="application/octet-stream",
        headers=headers,
    )
