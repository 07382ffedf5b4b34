"""The one workspace that there is: Determined's clients ask for its name whenever they list tasks."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from determined.common.wire import workspace
from determined_registry.database.tables import experiments
from determined_service.access.dependencies import ExperimentReader
from determined_service.base.bounds import Id, Name
from determined_service.base.errors import NotFound
from determined_service.views.paging import Limit, Offset, pagination, window
from determined_service.web.router import Router
from determined_service.web.state import Db

router = Router("Cluster", "/api/v1")


async def _one(db: Db) -> dict[str, Any]:
    async with db.tx() as conn:
        count = await conn.scalar(sa.select(sa.func.count()).select_from(experiments))
    return {
        "id": workspace.ID,
        "name": workspace.NAME,
        "archived": False,
        "immutable": True,
        "pinned": False,
        "numProjects": 1,
        "numExperiments": count,
        "userId": 1,
        "username": "admin",
        "state": "WORKSPACE_STATE_UNSPECIFIED",
        "errorMessage": "",
    }


@router.get("/workspaces")
async def list_workspaces(
    user: ExperimentReader, db: Db, name: Name = "", offset: Offset = 0, limit: Limit = 0
) -> dict[str, Any]:
    """The one workspace, to which everything belongs."""
    found = [await _one(db)] if name.lower() in workspace.NAME.lower() else []
    start, end = window(len(found), offset, limit)
    return {"workspaces": found[start:end], "pagination": pagination(len(found), offset, limit)}


@router.get("/workspaces/{workspace_id}")
async def read_workspace(workspace_id: Id, user: ExperimentReader, db: Db) -> dict[str, Any]:
    """The workspace."""
    if workspace_id != workspace.ID:
        raise NotFound(
            f"workspace {workspace_id} does not exist: there is one, number {workspace.ID}"
        )
    return {"workspace": await _one(db)}
