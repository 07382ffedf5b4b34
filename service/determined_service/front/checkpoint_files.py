"""Files of checkpoints, for a browser to store."""

from __future__ import annotations

from typing import Literal

from starlette.responses import Response

from determined_service.base.ids import parse_uuid
from determined_service.front.passage import Passage
from determined_service.front.rendering import PageRouter
from determined_service.front.visits import Visitor

router = PageRouter()

_TYPES = {"zip": "application/zip", "tar.gz": "application/gzip"}


@router.get("/checkpoints/{uuid}/download", include_in_schema=False)
async def archive(visit: Visitor, uuid: str, form: Literal["zip", "tar.gz"] = "zip") -> Response:
    """All files of a checkpoint in one."""
    found = parse_uuid(uuid, "checkpoint")
    return Passage(visit, f"/checkpoints/{found}", accept=_TYPES[form])


@router.get("/checkpoints/{uuid}/files/{file_path:path}", include_in_schema=False)
async def file(visit: Visitor, uuid: str, file_path: str) -> Response:
    """One file; a browser may go on where it broke off."""
    found = parse_uuid(uuid, "checkpoint")
    name = file_path.rpartition("/")[2]
    plain = "".join(
        one if one.isascii() and (one.isalnum() or one in "-._") else "_" for one in name
    )
    return Passage(
        visit, f"/api/v1/checkpoints/{found}/files/{file_path}", file_name=plain or "file"
    )
