"""Workspaces and projects."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from fastapi import Query, Request
from starlette.responses import Response

from determined_service.access.rules import Action
from determined_service.access.targets import Kind
from determined_service.base.bounds import Id
from determined_service.base.pages import FRONT_HOME
from determined_service.front.actions import FormAction, offer
from determined_service.front.experiments import PIECE
from determined_service.front.forms import Form
from determined_service.front.rendering import PageRouter, addresses, page
from determined_service.front.visits import Visitor

router = PageRouter()

_W, _P = "/workspaces/{id}", "/projects/{id}"


def _project(form: Form) -> dict[str, Any]:
    found = {"name": form.text("name"), "description": form.text("description", "")}
    key = form.text("key", "").strip()
    return found | ({"key": key} if key else {})


def _named(form: Form) -> dict[str, str]:
    return {"name": form.text("name")}


offer(
    router,
    {
        "workspace.create": FormAction(
            "POST", "/workspaces", "There is a workspace {name} now.", _named
        ),
        "workspace.rename": FormAction("PATCH", _W, "The workspace is called {name} now.", _named),
        "workspace.archive": FormAction("POST", f"{_W}/archive", "The workspace is archived."),
        "workspace.unarchive": FormAction(
            "POST", f"{_W}/unarchive", "The workspace is open again."
        ),
        "workspace.pin": FormAction("POST", f"{_W}/pin", "The workspace is pinned, for you alone."),
        "workspace.unpin": FormAction("POST", f"{_W}/unpin", "The workspace is pinned no more."),
        "workspace.delete": FormAction(
            "DELETE", _W, "The workspace is being deleted.", after=f"{FRONT_HOME}/workspaces"
        ),
        "project.create": FormAction(
            "POST", f"{_W}/projects", "There is a project {name} now.", _project
        ),
        "project.change": FormAction("PATCH", _P, "The project is changed.", _project),
        "project.archive": FormAction("POST", f"{_P}/archive", "The project is archived."),
        "project.unarchive": FormAction("POST", f"{_P}/unarchive", "The project is open again."),
        "project.delete": FormAction(
            "DELETE", _P, "The project is being deleted.", after=f"{FRONT_HOME}/workspaces"
        ),
        "project.note": FormAction(
            "POST",
            f"{_P}/notes",
            "The note {name} is stored.",
            lambda form: {"name": form.text("name"), "contents": form.text("contents")},
        ),
    },
)


Offset = Annotated[int, Query(ge=0, le=2**31 - 1)]


@router.get("/workspaces", include_in_schema=False)
async def list_workspaces(
    request: Request, visit: Visitor, q: str = "", offset: Offset = 0
) -> Response:
    """Workspaces in pieces, the pinned ones first."""
    found = await visit.get(
        "/workspaces",
        {"name": q.strip(), "sortBy": "SORT_BY_NAME", "limit": PIECE, "offset": offset},
    )
    return page(
        "workspaces",
        request,
        visit,
        command="det workspace list",
        found=sorted(found["workspaces"], key=lambda one: not one["pinned"]),
        pagination=found["pagination"],
        may_create=visit.may(Action.CREATE, Kind.WORKSPACE),
        q=q,
        address=addresses(f"{FRONT_HOME}/workspaces"),
    )


@router.get("/workspaces/{workspace_id}", include_in_schema=False)
async def one_workspace(
    request: Request, visit: Visitor, workspace_id: Id, offset: Offset = 0
) -> Response:
    """A workspace: its projects, models and pools, who has a role in it, and what a deletion takes."""
    path = f"/workspaces/{workspace_id}"
    found, projects, pools, contents, models, people = await asyncio.gather(
        visit.get(path),
        visit.get(f"{path}/projects", {"limit": PIECE, "offset": offset, "sortBy": "SORT_BY_NAME"}),
        visit.maybe(f"{path}/available-resource-pools"),
        visit.maybe(f"{path}/contents"),
        visit.get("/models", {"workspaceIds": workspace_id, "limit": 20, "archived": "false"}),
        visit.maybe(f"/roles/workspace/{workspace_id}"),
    )
    workspace = found["workspace"]
    may = await visit.permitted(Action.CHANGE, Kind.WORKSPACE, [workspace_id])
    return page(
        "workspace",
        request,
        visit,
        command=f"det workspace describe {workspace['name']}",
        workspace=workspace,
        projects=projects["projects"],
        pagination=projects["pagination"],
        pools=(pools or {}).get("resourcePools", []),
        contents=(contents or {}).get("contents", {}),
        models=models["models"],
        people=people or {},
        may_change=bool(may) and not workspace["immutable"],
        may_make_projects=visit.may(Action.CREATE, Kind.PROJECT),
        address=addresses(f"{FRONT_HOME}/workspaces/{workspace_id}"),
    )


@router.get("/projects/{project_id}", include_in_schema=False)
async def one_project(
    request: Request, visit: Visitor, project_id: Id, offset: Offset = 0
) -> Response:
    """A project: its experiments and notes."""
    found, experiments, contents = await asyncio.gather(
        visit.get(f"/projects/{project_id}"),
        visit.get(
            "/experiments",
            {
                "projectId": project_id,
                "sortBy": "SORT_BY_ID",
                "orderBy": "ORDER_BY_DESC",
                "limit": PIECE,
                "offset": offset,
            },
        ),
        visit.maybe(f"/projects/{project_id}/contents"),
    )
    project = found["project"]
    may = await visit.permitted(Action.CHANGE, Kind.PROJECT, [project_id])
    return page(
        "project",
        request,
        visit,
        live="cluster",
        command=f"det project list-experiments {project['workspaceName']} {project['name']}",
        project=project,
        found=experiments["experiments"],
        pagination=experiments["pagination"],
        contents=(contents or {}).get("contents", {}),
        may_change=bool(may) and not project["immutable"],
        may_note=bool(may),
        address=addresses(f"{FRONT_HOME}/projects/{project_id}"),
    )
