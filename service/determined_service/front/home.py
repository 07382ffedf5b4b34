"""The first page, and the palette that finds things by what is typed."""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import Request
from starlette.responses import RedirectResponse, Response

from determined_service.base.json import JsonResponse
from determined_service.base.pages import FRONT_HOME
from determined_service.front.rendering import PageRouter, page
from determined_service.front.visits import Visit, Visitor

router = PageRouter()

_SHOWN = 8
_PLACES = {
    "Home": "",
    "Experiments": "experiments",
    "Compare trials": "compare",
    "Models": "models",
    "Pipelines": "pipelines",
    "Tasks: commands, notebooks, shells, TensorBoards": "tasks",
    "Cluster: pools, agents, queue": "cluster",
    "Workspaces and projects": "workspaces",
    "People: users, groups, roles, tokens": "admin",
    "My settings": "settings",
    "New experiment": "experiments/new",
}


@router.get("", include_in_schema=False)
async def without_slash() -> Response:
    """The first page's address ends with a slash."""
    return RedirectResponse(f"{FRONT_HOME}/", 307)


@router.get("/", include_in_schema=False)
async def home(request: Request, visit: Visitor) -> Response:
    """What runs, what waits and why, the agents' slots, and what needs the visitor."""
    active, ended, jobs, agents, pools, needs = await asyncio.gather(
        _experiments(visit, states="STATE_ACTIVE", limit=20),
        _experiments(visit, states="STATE_COMPLETED", limit=5),
        _waiting(visit),
        visit.get("/agents"),
        visit.get("/resource-pools"),
        _needs(visit),
    )
    return page(
        "home",
        request,
        visit,
        live="cluster",
        command="det experiment list",
        active=active,
        ended=ended,
        waiting=jobs,
        agents=agents["agents"],
        pools=pools["resourcePools"],
        needs=needs,
    )


async def _experiments(visit: Visit, **given: Any) -> list[dict[str, Any]]:
    parameters = {"sortBy": "SORT_BY_ID", "orderBy": "ORDER_BY_DESC", "archived": "false", **given}
    parameters["light"] = "true"
    found = await visit.get("/experiments", parameters)
    return list(found["experiments"])


async def _waiting(visit: Visit) -> list[dict[str, Any]]:
    """The jobs that wait, each with its reason."""
    given = {"states": "STATE_QUEUED", "limit": _SHOWN, "reasons": "true"}
    return list((await visit.get("/job-queues", given))["jobs"])


async def _needs(visit: Visit) -> list[dict[str, str]]:
    """What waits for the visitor: failed and paused experiments, and steps that wait for approval."""
    mine = {"userIds": visit.subject.user_id}
    failed, paused, pipelines = await asyncio.gather(
        _experiments(visit, states="STATE_ERROR", limit=5, **mine),
        _experiments(visit, states="STATE_PAUSED", limit=5, **mine),
        visit.get("/pipelines"),
    )
    found = [
        {
            "address": f"experiments/{one['id']}",
            "title": f"experiment {one['id']} {one['name']}",
            "state": one["state"],
            "reason": one["reason"] or "",
        }
        for one in [*failed, *paused]
    ]
    for one in pipelines["pipelines"][:50]:
        if "WAITING" in str(one.get("state")) or one.get("awaitsApproval"):
            found.append(
                {
                    "address": f"pipelines/{one['id']}",
                    "title": f"pipeline {one['id']} {one.get('name', '')}",
                    "state": "WAITING",
                    "reason": "a step waits for approval",
                }
            )
    return found


@router.get("/find", include_in_schema=False)
async def find(visit: Visitor, q: str = "") -> Response:
    """What the palette shows: pages, experiments, trials and models that match ``q``."""
    sought = q.strip()[:200]
    words = sought.lower()
    found = [
        _found("page", title, f"{FRONT_HOME}/{name}")
        for title, name in _PLACES.items()
        if words in title.lower()
    ]
    if not sought:
        return JsonResponse(found)
    asked = [
        _experiments(visit, name=sought, limit=_SHOWN),
        visit.maybe("/models", {"name": sought, "limit": _SHOWN}),
    ]
    if sought.isascii() and sought.isdigit() and len(sought) < 10:
        asked += [visit.maybe(f"/experiments/{sought}"), visit.maybe(f"/trials/{sought}")]
    experiments, models, *by_id = await asyncio.gather(*asked)
    if by_id and by_id[0]:
        experiments = [by_id[0]["experiment"], *experiments]
    if len(by_id) > 1 and by_id[1]:
        title = f"{sought} of experiment {by_id[1]['trial']['experimentId']}"
        found.insert(0, _found("trial", title, f"{FRONT_HOME}/trials/{sought}"))
    found = [
        *(
            _found(
                "experiment", f"{one['id']} {one['name']}", f"{FRONT_HOME}/experiments/{one['id']}"
            )
            for one in experiments
        ),
        *(
            _found("model", one["name"], f"{FRONT_HOME}/models/{one['id']}")
            for one in (models or {}).get("models", [])
        ),
        *found,
    ]
    return JsonResponse(found[:20])


def _found(kind: str, title: str, address: str) -> dict[str, str]:
    return {"kind": kind, "title": title, "address": address}
