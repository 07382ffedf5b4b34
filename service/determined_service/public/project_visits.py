"""Which projects a user has looked at last, as pages report it."""

# Fields are named as in the API.
# ruff: noqa: N815
from __future__ import annotations

from typing import Annotated, Literal

from fastapi import Query
from pydantic import BaseModel
from starlette.responses import Response

from determined_registry.database.tables import project_visits, projects
from determined_service.access.dependencies import ProjectReader, may
from determined_service.access.principal import Principal
from determined_service.access.rules import Action
from determined_service.access.targets import Kind
from determined_service.base.bounds import Id
from determined_service.base.db import as_asker
from determined_service.base.json import JsonResponse
from determined_service.lifecycle import workspaces as keeping
from determined_service.views.workspaces import get_project, project_json, select_projects
from determined_service.web.router import Router
from determined_service.web.state import Db

router = Router("Users", "/api/v1")

v = project_visits.c
Visitor = Annotated[Principal, may(Action.CHANGE, Kind.SETTING)]
Most = Annotated[int, Query(ge=0, le=100, description="0: 5.")]


class Activity(BaseModel):
    """``v1PostUserActivityRequest``."""

    activityType: Literal["ACTIVITY_TYPE_GET"]
    entityType: Literal["ENTITY_TYPE_PROJECT"]
    entityId: Id


@router.post("/users/activity")
async def note_activity(given: Activity, user: Visitor, db: Db) -> Response:
    """Notes that the sender looks at a project now."""
    async with db.tx() as conn:
        async with as_asker(conn):
            await get_project(conn, user, projects.c.id == given.entityId, given.entityId)
        await keeping.note_visit(conn, given.entityId, user.user_id)
    return JsonResponse({})


@router.get("/user/projects/activity")
async def read_activity(user: ProjectReader, db: Db, limit: Most = 0) -> Response:
    """The projects that the sender has looked at, the latest first."""
    statement = (
        select_projects(user)
        .join(project_visits, v.project_id == projects.c.id)
        .where(v.user_id == user.user_id)
        .order_by(v.visited_at.desc(), projects.c.id)
        .limit(limit or 5)
    )
    async with db.tx() as conn:
        rows = (await conn.execute(statement)).all()
    return JsonResponse({"projects": [project_json(row) for row in rows]})
