"""Tasks: commands, notebooks, shells, TensorBoards and generic tasks, and one task of any kind."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Annotated, Any
from urllib.parse import quote

import orjson
import yaml
from fastapi import Query, Request
from starlette.responses import RedirectResponse, Response

from determined.common.wire.kinds import GENERIC, TaskKind
from determined.expconf import ConfigError, load_yaml
from determined.expconf.tasks import merged_above
from determined_service.access.rules import Action
from determined_service.access.targets import Kind
from determined_service.base import topics
from determined_service.base.aside import aside
from determined_service.base.errors import ApiError, BadRequest, Conflict
from determined_service.base.pages import FRONT_HOME
from determined_service.front.actions import FormAction, offer
from determined_service.front.experiments import PIECE
from determined_service.front.forms import Form, read_form
from determined_service.front.rendering import PageRouter, addresses, back, page, state
from determined_service.front.visits import Visit, Visitor

router = PageRouter()

BASE = f"{FRONT_HOME}/tasks"
KINDS = {kind.value: kind for kind in TaskKind}
ENDED = frozenset({"COMPLETED", "CANCELED", "ERROR", "TERMINATED"})
_OF_EACH = 15
"""How many tasks of each kind the list of all kinds begins with."""

offer(
    router,
    {
        "task.kill": FormAction("POST", "/tasks/{id}/kill", "Task {id} is killed."),
        "task.pause": FormAction(
            "POST", "/tasks/{id}/pause", "Task {id} is paused: it gives its slots back."
        ),
        "task.unpause": FormAction(
            "POST", "/tasks/{id}/unpause", "Task {id} waits for slots, and begins anew."
        ),
    },
)


@router.get("/tasks", include_in_schema=False)
async def list_tasks(
    request: Request,
    visit: Visitor,
    kind: str = "",
    offset: Annotated[int, Query(ge=0, le=2**31 - 1)] = 0,
) -> Response:
    """The latest of each kind, or all of one ``kind`` in pieces."""
    pagination = None
    if kind in KINDS:
        plural = KINDS[kind].plural
        found = await visit.get(f"/{plural}", {"limit": PIECE, "offset": offset})
        rows, pagination = [_launched(one, kind) for one in found[plural]], found["pagination"]
    elif kind == GENERIC:
        rows = await _generic(visit, PIECE, offset)
    else:
        kinds = await asyncio.gather(
            *(_latest(visit, one) for one in KINDS.values()), _generic(visit, _OF_EACH)
        )
        rows = sorted((one for some in kinds for one in some), key=_began, reverse=True)
    allowed = await visit.permitted(
        Action.CHANGE, Kind.TASK, [one["id"] for one in rows if one["lives"]]
    )

    return page(
        "tasks",
        request,
        visit,
        live="cluster",
        command=f"det {kind} list" if kind in KINDS else "det task list",
        tasks=rows,
        allowed=allowed,
        kinds=[*KINDS, GENERIC],
        kind=kind,
        pagination=pagination,
        offset=offset,
        piece=PIECE,
        address=addresses(BASE, kind=kind),
        may_launch=visit.may(Action.CREATE, Kind.TASK),
    )


async def _latest(visit: Visit, kind: TaskKind) -> list[dict[str, Any]]:
    found = await visit.get(f"/{kind.plural}", {"limit": _OF_EACH})
    return [_launched(one, kind.value) for one in found[kind.plural]]


async def _generic(visit: Visit, limit: int, offset: int = 0) -> list[dict[str, Any]]:
    asked = {
        "taskTypes": "TASK_TYPE_GENERIC",
        "limit": limit,
        "offset": offset,
        "excludeAllocations": "true",
    }
    found = await visit.get("/tasks", asked)
    return [
        {
            "id": one["taskId"],
            "kind": GENERIC,
            "name": one["name"],
            "state": one["state"],
            "reason": one["reason"] or "",
            "username": one["username"],
            "pool": "",
            "slots": None,
            "startTime": one["startTime"],
            "endTime": one["endTime"],
            "opens": False,
            "lives": state(one["state"]) not in ENDED,
        }
        for one in found["tasks"]
    ]


def _launched(one: Mapping[str, Any], kind: str) -> dict[str, Any]:
    lives = state(one["taskState"]) not in ENDED
    return {
        "id": one["id"],
        "kind": kind,
        "name": one["description"],
        # How it ended says more than that it did.
        "state": one["state"] if lives else one["taskState"],
        "reason": one["exitStatus"] or "",
        "username": one["username"],
        "pool": one["resourcePool"],
        "slots": one["slots"],
        "startTime": one["startTime"],
        "endTime": one["endTime"],
        "opens": bool(one.get("serviceAddress")) and state(one["state"]) == "RUNNING",
        "lives": lives,
    }


def _began(one: Mapping[str, Any]) -> str:
    return one["startTime"] or ""


@router.get("/tasks/new", include_in_schema=False)
async def new_task(
    request: Request,
    visit: Visitor,
    kind: str = TaskKind.NOTEBOOK.value,
    experiments: str = "",
    trials: str = "",
) -> Response:
    """The form to launch a task. ``experiments``, ``trials``: what a TensorBoard shows."""
    if kind not in KINDS:
        raise BadRequest(f"kind: choose one of {', '.join(KINDS)}")
    return await _form(request, visit, kind, {"experiments": experiments, "trials": trials})


async def _form(
    request: Request,
    visit: Visit,
    kind: str,
    given: Mapping[str, str],
    refusal: str = "",
) -> Response:
    pools, workspaces = await asyncio.gather(
        visit.get("/resource-pools"), visit.get("/workspaces", {"limit": 200, "archived": "false"})
    )
    return page(
        "task_new",
        request,
        visit,
        status=400 if refusal else 200,
        command=KINDS[kind].command,
        kind=kind,
        kinds=list(KINDS),
        pools=[one["name"] for one in pools["resourcePools"]],
        workspaces=workspaces["workspaces"],
        given={name: given.get(name, "") for name in _FIELDS},
        refusal=refusal,
    )


_FIELDS = (
    "description",
    "entrypoint",
    "pool",
    "slots",
    "workspace",
    "experiments",
    "trials",
    "config",
)


@router.post("/tasks/new", include_in_schema=False)
async def launch(request: Request, visit: Visitor) -> Response:
    """Launches it, and leads to its page; a refusal leaves the form as it was filled in."""
    form = await read_form(visit)
    kind = form.text("kind")
    if kind not in KINDS:
        raise BadRequest(f"kind: choose one of {', '.join(KINDS)}")
    try:
        body = await _body(form, kind)
        answer = await visit.send("POST", f"/{KINDS[kind].plural}", body)
    except ApiError as error:
        given = {name: form.text(name, "") for name in _FIELDS}
        return await _form(request, visit, kind, given, error.message)
    task_id = answer[kind]["id"]
    said = "\n".join([f"{kind.capitalize()} {task_id} is launched.", *answer.get("remarks", ())])
    return back(request, f"{BASE}/{quote(task_id, safe='')}", said)


async def _body(form: Form, kind: str) -> dict[str, Any]:
    resources: dict[str, Any] = {}
    if pool := form.text("pool", ""):
        resources["resource_pool"] = pool
    if slots := form.text("slots", "").strip():
        resources["slots"] = _whole(slots, "slots")
    config: dict[str, Any] = {"resources": resources} if resources else {}
    if description := form.text("description", "").strip():
        config["description"] = description
    if kind == "command":
        entrypoint = form.text("entrypoint", "").strip()
        if not entrypoint:
            raise BadRequest("command: write the program to run, as in a shell")
        config["entrypoint"] = entrypoint
    if text := form.text("config", "").strip():
        try:
            more = await aside(len(text), load_yaml, text)
        except ConfigError as error:
            raise BadRequest(str(error)) from error
        config = merged_above(config, more.data)
    body: dict[str, Any] = {"config": config}
    if workspace := form.text("workspace", ""):
        body["workspaceId"] = _whole(workspace, "workspace")
    if kind == "tensorboard":
        body["experimentIds"] = _ids(form.text("experiments", ""), "experiments")
        body["trialIds"] = _ids(form.text("trials", ""), "trials")
    return body


def _whole(text: str, name: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise BadRequest(f"{name}: give a whole number, not {text[:40]!r}")
    return int(text)


def _ids(text: str, name: str) -> list[int]:
    return [_whole(one, name) for one in text.replace(",", " ").split()]


@router.get("/tasks/{task_id}", include_in_schema=False)
async def one_task(request: Request, visit: Visitor, task_id: str) -> Response:
    """State, reasons, allocations and configuration of a task of any kind."""
    path = f"/tasks/{quote(task_id, safe='')}"
    task = (await visit.get(path))["task"]
    kind = task["taskType"].removeprefix("TASK_TYPE_").lower()
    lives = state(task["state"]) not in ENDED
    waits = lives and any(state(one["state"]) == "QUEUED" for one in task["allocations"])
    job = str(task_id) if kind in (*KINDS, GENERIC) else task_id.partition(".")[0]
    runs = any(state(one["state"]) == "RUNNING" for one in task["allocations"])
    launched, explanation, allowed, may_enter = await asyncio.gather(
        _of_kind(visit, kind, task_id),
        _explanation(visit, job if waits else ""),
        visit.permitted(Action.CHANGE, Kind.TASK, [task_id]),
        visit.permitted(Action.ENTER, Kind.TASK, [task_id] if runs else []),
    )
    config = task["config"]
    shown = "" if config is None else await aside(len(config), _as_yaml, config)
    live = topics.trial(task["trialId"]) if task["trialId"] else topics.task(task_id)
    return page(
        "task",
        request,
        visit,
        live=live if lives else "",
        command=_command(kind, task_id),
        task=task,
        kind=kind,
        launched=None if launched is None else _launched(launched, kind),
        config=shown,
        lives=lives,
        waiting=(explanation or {}).get("waiting") or [],
        may_change=bool(allowed),
        may_enter=bool(may_enter),
        is_launched=kind in KINDS,
        is_generic=kind == GENERIC,
        experiment=task_id.partition(".")[0] if task["trialId"] else "",
        base=f"{BASE}/{quote(task_id, safe='')}",
    )


def _command(kind: str, task_id: str) -> str:
    return f"det {kind} config {task_id}" if kind in KINDS else f"det task config {task_id}"


async def _of_kind(visit: Visit, kind: str, task_id: str) -> Any:
    if kind not in KINDS:
        return None
    found = await visit.get(f"/{KINDS[kind].plural}/{quote(task_id, safe='')}")
    return found[kind]


async def _explanation(visit: Visit, job: str) -> Any:
    return await visit.maybe(f"/job-queues/{quote(job, safe='')}/explanation") if job else None


def _as_yaml(config: str) -> str:
    return yaml.dump(
        orjson.loads(config),
        Dumper=getattr(yaml, "CSafeDumper", yaml.SafeDumper),
        sort_keys=False,
        allow_unicode=True,
        width=100,
    )


@router.get("/tasks/{task_id}/open", include_in_schema=False)
async def open_task(request: Request, visit: Visitor, task_id: str) -> Response:
    """Leads to the task's own pages, at its host name, where the browser is logged in then."""
    path = f"/tasks/{quote(task_id, safe='')}"
    kind = (await visit.get(path))["task"]["taskType"].removeprefix("TASK_TYPE_").lower()
    launched = await _of_kind(visit, kind, task_id)
    where = None if launched is None else launched.get("serviceAddress")
    if not where:
        raise Conflict(f"task {task_id} has no pages: its log says what it does")
    if state(launched["state"]) != "RUNNING":
        raise Conflict(
            f"task {task_id} does not answer yet, or has ended: its page says when it can be opened"
        )
    made = await visit.send("POST", f"{path}/visits", {"path": where})
    return RedirectResponse(made["url"], 303, {"Cache-Control": "no-store"})
