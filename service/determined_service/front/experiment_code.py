"""The code of an experiment: its files, one of them, and the difference to another experiment's code."""

from __future__ import annotations

import base64
import binascii
import io
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Annotated, Any

from fastapi import Query, Request
from starlette.responses import Response

from determined.common.wire import limits
from determined_service.base.aside import aside
from determined_service.base.bounds import Id, Text
from determined_service.base.errors import BadRequest, NotFound
from determined_service.front.diffs import Diff, diff
from determined_service.front.experiment import head
from determined_service.front.rendering import PageRouter, page
from determined_service.front.visits import Visit, Visitor

router = PageRouter()

FILE_BYTES = 512 * 1024
"""Larger files are not shown."""
MOST_LINES = 5000
"""Lines of one file on its page."""
MOST_FILES = 1000
"""Files and folders of one tree on its page."""
COMPARED_BYTES = 1024 * 1024
"""Files of an experiment that are compared all at once; of larger code only a chosen file is."""


@dataclass(frozen=True, slots=True)
class File:
    """A file or folder of the code. ``depth``: the number of folders around it."""

    path: str
    name: str
    depth: int
    is_folder: bool
    size: int


@dataclass(frozen=True, slots=True)
class Change:
    """A file that is not the same in both experiments; ``diff`` None: it is no text, or too large."""

    path: str
    what: str
    diff: Diff | None


async def _files(visit: Visit, experiment_id: int) -> list[File] | None:
    """The tree from top to bottom; None: the experiment was submitted without code. Raises NotFound."""
    try:
        found = await visit.get(f"/experiments/{experiment_id}/file_tree")
    except NotFound:
        return None
    return list(_below(found["files"], 0))


def _below(entries: list[dict[str, Any]], depth: int) -> Iterator[File]:
    for one in sorted(entries, key=lambda entry: (not entry["isDir"], entry["name"])):
        size = int(one.get("contentLength") or 0)
        yield File(one["path"], one["name"], depth, one["isDir"], size)
        yield from _below(one["files"], depth + 1)


def _text(content: bytes) -> str | None:
    """The content as text; None: it is none."""
    if b"\0" in content:
        return None
    try:
        return content.decode()
    except UnicodeDecodeError:
        return None


async def _read(visit: Visit, experiment_id: int, path: str) -> str | None:
    """The text of a file; None: it is no text. Raises NotFound."""
    found = await visit.send("POST", f"/experiments/{experiment_id}/file", {"path": path})
    return _text(base64.b64decode(found["file"]))


async def _all(visit: Visit, experiment_id: int) -> dict[str, bytes]:
    """The files of an experiment, which are :data:`COMPARED_BYTES` at most, by path."""
    found = (await visit.get(f"/experiments/{experiment_id}/model_def"))["b64Tgz"]
    return await aside(len(found), _unpacked, found)


def _unpacked(archive: str) -> dict[str, bytes]:
    found = {}
    try:
        with tarfile.open(fileobj=io.BytesIO(base64.b64decode(archive)), mode="r:gz") as tar:
            for member in tar:
                file = tar.extractfile(member) if member.isfile() else None
                if file is not None:
                    found[str(PurePosixPath(member.name))] = file.read(COMPARED_BYTES)
    except (tarfile.TarError, binascii.Error, OSError) as error:
        raise BadRequest("the stored code cannot be unpacked") from error
    return found


async def _changes(before: dict[str, bytes], after: dict[str, bytes]) -> list[Change]:
    """Of each file that is not the same; ``before`` is the other experiment's code."""
    found = []
    for path in sorted(before.keys() | after.keys()):
        old, new = before.get(path), after.get(path)
        if old == new:
            continue
        what = "only there" if new is None else "only here" if old is None else "changed"
        texts = [_text(one or b"") for one in (old, new)]
        compared = None
        if texts[0] is not None and texts[1] is not None:
            compared = await diff(texts[0], texts[1], (path, path))
        found.append(Change(path, what, compared))
    return found


async def _compared(
    visit: Visit, experiment_id: int, here: list[File], against: int, path: str
) -> tuple[list[Change], str]:
    """The files that differ, and a sentence about what was not compared. Raises NotFound."""
    await visit.get(f"/experiments/{against}")
    there = await _files(visit, against)
    if there is None:
        raise NotFound(f"experiment {against} was submitted without code: compare with another one")
    small = all(sum(one.size for one in tree) <= COMPARED_BYTES for tree in (here, there))
    if small:
        return await _changes(await _all(visit, against), await _all(visit, experiment_id)), ""
    both = [
        {one.path: one for one in tree if not one.is_folder and one.size <= FILE_BYTES}
        for tree in (there, here)
    ]
    if not path or not all(path in tree for tree in both):
        return [], (
            "The code is too large to be compared as a whole. Choose a file (of "
            f"{FILE_BYTES // 1024} KiB at most) that both experiments have: it is compared alone."
        )
    old, new = await _read(visit, against, path), await _read(visit, experiment_id, path)
    if old is None or new is None:
        return [], f"{path} is not a text, so its lines cannot be compared."
    if old == new:
        return [], f"{path} is the same in both. Other files were not compared: choose one."
    found = Change(path, "changed", await diff(old, new, (path, path)))
    return [found], "Only this file was compared, because the code is large."


@router.get("/experiments/{experiment_id}/code", include_in_schema=False)
async def code(
    request: Request,
    visit: Visitor,
    experiment_id: Id,
    path: Text = "",
    against: Annotated[str, Query(pattern=r"^[0-9]{0,9}$")] = "",
) -> Response:
    """The files, and the one at ``path``. ``against``: an experiment with whose code this one is compared."""
    if len(path) > limits.PATH_CHARS:
        raise BadRequest(f"path: at most {limits.PATH_CHARS} characters are allowed")
    shown = await head(visit, experiment_id)
    files = await _files(visit, experiment_id)
    chosen = next((one for one in files or [] if one.path == path and not one.is_folder), None)
    if path and chosen is None:
        raise NotFound(f"experiment {experiment_id} has no file {path!r} in its code")
    lines: list[str] = []
    refusal = ""
    if chosen is not None and chosen.size > FILE_BYTES:
        refusal = f"The file has more than {FILE_BYTES // 1024} KiB, and is not shown here."
    elif chosen is not None:
        text = await _read(visit, experiment_id, path)
        if text is None:
            refusal = "The file is not a text, and is not shown here."
        else:
            lines = text.splitlines()
    changes: list[Change] = []
    note = ""
    if against and files is not None:
        changes, note = await _compared(visit, experiment_id, files, int(against), path)
    return page(
        "experiment_code",
        request,
        visit,
        tab="code",
        files=None if files is None else files[:MOST_FILES],
        more_files=max(len(files or []) - MOST_FILES, 0),
        chosen=chosen,
        lines=lines[:MOST_LINES],
        more_lines=max(len(lines) - MOST_LINES, 0),
        refusal=refusal,
        against=against,
        changes=changes,
        note=note,
        **(shown | {"live": "", "command": f"det experiment download-model-def {experiment_id}"}),
    )
