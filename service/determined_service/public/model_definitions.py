"""The code that an experiment was submitted with."""

from __future__ import annotations

import asyncio
import base64
import datetime
import io
import tarfile
from pathlib import PurePosixPath
from typing import Any

import sqlalchemy as sa
from fastapi import APIRouter
from pydantic import BaseModel

from determined_registry.database.tables import experiments, model_definitions
from determined_service.access.dependencies import ExperimentReader
from determined_service.base.bounds import Id, Text
from determined_service.base.errors import NotFound
from determined_service.views.experiments import require_experiment
from determined_service.views.values import moment
from determined_service.web.state import Db

router = APIRouter(prefix="/api/v1/experiments/{experiment_id}", tags=["Experiments"])


async def _archive(db: Db, experiment_id: int) -> bytes:
    async with db.tx() as conn:
        await require_experiment(conn, experiment_id)
        archive = (
            await conn.execute(
                sa.select(model_definitions.c.archive)
                .join(experiments, experiments.c.model_def_hash == model_definitions.c.hash)
                .where(experiments.c.id == experiment_id)
            )
        ).scalar_one_or_none()
    if archive is None:
        raise NotFound(f"experiment {experiment_id} was submitted without a model definition")
    return bytes(archive)


@router.get("/model_def")
async def get_model_definition(experiment_id: Id, user: ExperimentReader, db: Db) -> dict[str, Any]:
    """A tar.gz of the model directory, base64."""
    archive = await _archive(db, experiment_id)
    return {"b64Tgz": await asyncio.to_thread(lambda: base64.b64encode(archive).decode())}


def _tree(archive: bytes) -> list[dict[str, Any]]:
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

    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
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
    archive = await _archive(db, experiment_id)
    return {"files": await asyncio.to_thread(_tree, archive)}


class FileWanted(BaseModel):
    """``path`` as the tree has it."""

    path: Text


@router.post("/file")
async def get_file(
    experiment_id: Id, wanted: FileWanted, user: ExperimentReader, db: Db
) -> dict[str, Any]:
    """One file of the model directory, base64."""
    archive = await _archive(db, experiment_id)
    content = await asyncio.to_thread(_read, archive, wanted.path)
    if content is None:
        raise NotFound(f"the model definition holds no file {wanted.path!r}")
    return {"file": base64.b64encode(content).decode()}


def _read(archive: bytes, path: str) -> bytes | None:
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        for member in tar:
            if member.isfile() and PurePosixPath(member.name) == PurePosixPath(path):
                file = tar.extractfile(member)
                return file.read() if file is not None else None
    return None
