"""A terminal beside a task that runs, in its page: what `det attach` opens, through the same door.

The page is given a ticket for each terminal, and connects to the proxy, whose rules, counts and limits of
connections to tasks apply. No byte of a terminal passes here.
"""

from __future__ import annotations

from typing import Annotated
from urllib.parse import quote

from fastapi import Query, Request
from starlette.responses import Response

from determined_service.access.rules import Action
from determined_service.access.targets import Kind
from determined_service.base.errors import ApiError, Conflict
from determined_service.base.json import JsonResponse
from determined_service.front.forms import read_form
from determined_service.front.rendering import PageRouter, page, state
from determined_service.front.tasks import BASE
from determined_service.front.visits import Visit, Visitor

router = PageRouter()

_LOST = (
    "The connection was cut: the service was started again, the network was away, or nothing was typed and "
    "printed for an hour. What ran in this terminal has ended."
)


async def _task(visit: Visit, task_id: str) -> dict[str, object]:
    """The task, which the visitor may enter and which has not ended. Raises NotFound, Forbidden, Conflict."""
    await visit.require(Action.ENTER, Kind.TASK, task_id, "enter")
    task: dict[str, object] = (await visit.get(f"/tasks/{quote(task_id, safe='')}"))["task"]
    if task["endTime"]:
        ended = state(str(task["state"])).lower()
        raise Conflict(f"task {task_id} has ended ({ended}): there is nothing to enter")
    return task


@router.get("/tasks/{task_id}/terminal", include_in_schema=False)
async def show(
    request: Request,
    visit: Visitor,
    task_id: str,
    node: Annotated[int, Query(ge=0, le=10_000)] = 0,
) -> Response:
    """The page; its script opens the terminal. ``node``: which of a trial's machines."""
    task = await _task(visit, task_id)
    trial = task["trialId"]
    more = f" --node {node}" if node else ""
    return page(
        "terminal",
        request,
        visit,
        command=f"det attach {trial or task_id}{more}",
        task=task,
        node=node,
        base=f"{BASE}/{quote(task_id, safe='')}",
    )


@router.post("/tasks/{task_id}/terminal", include_in_schema=False)
async def open_terminal(visit: Visitor, task_id: str) -> Response:
    """What the page's script needs to connect once: ``address``, ``protocols``, and the door's ``secret``.

    A refusal is JSON with the words ``said``.
    """
    try:
        form = await read_form(visit)
        node = (form.numbers("node") or [0])[0]
        given = {"node": node, "again": form.text("again", "") == "1", "page": True}
        made = await visit.send("POST", f"/tasks/{quote(task_id, safe='')}/doors", given)
    except ApiError as refusal:
        return JsonResponse({"said": refusal.message}, refusal.status)
    return JsonResponse(
        {
            **made["page"],
            "secret": made["secret"],
            "where": f"agent {made['agentId']}"
            + (f", node {node} of {made['nodes']}" if made["nodes"] > 1 else ""),
        }
    )


@router.get("/tasks/{task_id}/terminal/state", include_in_schema=False)
async def why_it_ended(visit: Visitor, task_id: str) -> Response:
    """``said``: why a connection of the page has ended."""
    try:
        await _task(visit, task_id)
    except ApiError as refusal:
        words = f"The terminal was closed: {refusal.message}"
        return JsonResponse({"said": words}, refusal.status)
    return JsonResponse({"said": _LOST})
