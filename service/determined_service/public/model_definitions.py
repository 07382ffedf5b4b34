"""The code that an experiment was submitted with."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import shutil
import tarfile
import tempfile
from collections.abc import AsyncIterator
from pathlib import PurePosixPath
from typing import IO, Any

import sqlalchemy as sa
from pydantic import BaseModel
from starlette.responses import Response

from determined_registry.database.tables import experiments
from determined_service.access.dependencies import ExperimentReader
from determined_service.base.bounds import Id, Text
from determined_service.base.errors import NotFound
from determined_service.views.archives import PIECE_BYTES, Archive, base64_json, find_archive
from determined_service.views.experiments import require_experiment
from determined_service.views.values import moment
from determined_service.web.router import Router
from determined_service.web.state import Db

router = Router("Experiments", "/api/v1/experiments/{experiment_id}")


async def _archive(db: Db, experiment_id: int) -> Archive:
    async with db.tx() as conn:
        await require_experiment(conn, experiment_id)
    wanted = sa.select(experiments.c.model_def_hash).where(experiments.c.id == experiment_id)
    archive = await find_archive(db, wanted.scalar_subquery())
    if archive is None:
        raise NotFound(f"experiment {experiment_id} was submitted without a model definition")
    return archive


@contextlib.asynccontextmanager
async def _opened(db: Db, experiment_id: int) -> AsyncIterator[IO[bytes]]:
    """The archive as a file without a name, or in memory while it is small."""
    archive = await _archive(db, experiment_id)
    with tempfile.SpooledTemporaryFile(PIECE_BYTES) as file:
        await archive.save(db, file)
        yield file


@router.get("/model_def")
async def get_model_definition(experiment_id: Id, user: ExperimentReader, db: Db) -> Response:
    """A tar.gz of the model directory, base64."""
    archive = await _archive(db, experiment_id)
    return base64_json("b64Tgz", archive.size, archive.pieces(db))


def _tree(archive: IO[bytes]) -> list[dict[str, Any]]:
    root: list[dict[str, Any]] = []
    folders: dict[PurePosixPath, list[dict[str, Any]]] = {PurePosixPath("."): root}

    def folder(path: PurePosixPath) -> list[dict[str, Any]]:
        if path not in folders:
            children: list[dict[str, Any]] = []
            folder(path.parent).append(
                {"path": str(path), "name": path.name, "isDir": True, "files": children}
            )
            folders[path] = children
        return folders[path]

    with tarfile.open(fileobj=archive) as tar:
        for member in tar:
            path = PurePosixPath(member.name)
            if member.isdir():
                folder(path)
            elif member.isfile():
                folder(path.parent).append(_file(path, member))
    return root


def _file(path: PurePosixPath, member: tarfile.TarInfo) -> dict[str, Any]:
    return {
        "path": str(path),
        "name": path.name,
        "isDir": False,
        "contentLength": member.size,
        "modifiedTime": moment(datetime.datetime.fromtimestamp(member.mtime, datetime.UTC)),
        "files": [],
    }


@router.get("/file_tree")
async def get_file_tree(experiment_id: Id, user: ExperimentReader, db: Db) -> dict[str, Any]:
    """The files of the model directory."""
    async with _opened(db, experiment_id) as archive:
        return {"files": await asyncio.to_thread(_tree, archive)}


class FileWanted(BaseModel):
    """``path`` as the tree has it."""

    path: Text


@router.post("/file")
async def get_file(
    experiment_id: Id, wanted: FileWanted, user: ExperimentReader, db: Db
) -> Response:
    """One file of the model directory, base64."""
    # Its content outlives this function: it is sent in pieces.
    content = tempfile.SpooledTemporaryFile(PIECE_BYTES)  # noqa: SIM115
    try:
        async with _opened(db, experiment_id) as archive:
            size = await asyncio.to_thread(_copy, archive, wanted.path, content)
        if size is None:
            raise NotFound(f"the model definition holds no file {wanted.path!r}")
        return base64_json("file", size, _pieces(content))
    except BaseException:
        content.close()
        raise


def _copy(archive: IO[bytes], path: str, content: IO[bytes]) -> int | None:
    """Copies the file at ``path``; its bytes, or None without such a file."""
    with tarfile.open(fileobj=archive) as tar:
        for member in tar:
            if member.isfile() and PurePosixPath(member.name) == PurePosixPath(path):
                file = tar.extractfile(member)
                if file is None:
                    return None
                shutil.copyfileobj(file, content, PIECE_BYTES)
                content.seek(0)
                return member.size
    return None


async def _pieces(content: IO[bytes]) -> AsyncIterator[bytes]:
    with content:
        while piece := content.read(PIECE_BYTES):
            yield piece
