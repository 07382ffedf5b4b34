"""Actions on the experiments that a reader has chosen in a list."""

# Without `from __future__ import annotations`: FastAPI reads the annotations of `act` as they are.

from collections.abc import Sequence
from typing import Annotated, Any
from urllib.parse import quote, urlencode

from fastapi import Query, Request
from starlette.responses import Response

from determined_service.base.bounds import Id
from determined_service.base.errors import ApiError
from determined_service.base.pages import FRONT_HOME
from determined_service.front.forms import Form, read_form
from determined_service.front.rendering import PageRouter, back, page
from determined_service.front.visits import Visit, Visitor

router = PageRouter()

MOST = 200
"""Experiments of one action; a list shows fewer."""
_MANY = {
    "pause": "paused",
    "activate": "activated",
    "cancel": "canceled",
    "kill": "killed",
    "archive": "archived",
    "unarchive": "brought back from the archive",
}
"""The actions with a route for many experiments, and what has happened to these."""
_SHOWN_REFUSALS = 8
MOST_PROJECTS = 500


@router.post("/actions/experiments.chosen", include_in_schema=False)
async def act(request: Request, visit: Visitor) -> Response:
    """Does what the pressed button says to the chosen experiments, or leads to their comparison."""
    form = await read_form(visit)
    ids = list(dict.fromkeys(form.numbers("id")))
    to, verb = form.text("to", ""), form.text("do", "")
    if not ids:
        return back(request, to, "No experiment is chosen: tick the boxes in the first column.")
    if len(ids) > MOST:
        return back(request, to, f"{len(ids)} experiments are chosen, at most {MOST} at a time.")
    project = form.text("project", "")
    if verb == "move" and not project:
        named = urlencode([("id", one) for one in ids])
        return back(request, f"{FRONT_HOME}/experiments-move?{named}")
    if verb == "compare":
        chosen = urlencode([("experiment", one) for one in ids])
        return back(request, f"{FRONT_HOME}/compare?{chosen}")
    try:
        done, refused = await _do(visit, form, verb, ids)
    except ApiError as refusal:
        return back(request, to, refusal.message)
    return back(request, to, _said(done, len(ids), refused))


@router.get("/experiments-move", include_in_schema=False)
async def choose_project(
    request: Request,
    visit: Visitor,
    id: Annotated[list[Id], Query(default_factory=list, max_length=MOST)],
) -> Response:
    """The projects to which the chosen experiments may be moved."""
    found = await visit.get("/workspaces/0/projects", {"archived": "false", "limit": MOST_PROJECTS})
    return page(
        "experiments_move",
        request,
        visit,
        ids=id,
        projects=found["projects"],
        total=found["pagination"]["total"],
        command="det experiment move ID PROJECT",
    )


async def _do(
    visit: Visit, form: Form, verb: str, ids: Sequence[int]
) -> tuple[str, dict[int, str]]:
    """What happened to those for which it worked, and why it did not by experiment. Raises ApiError."""
    if verb in _MANY:
        found = await visit.send("POST", f"/experiments/{verb}", {"experimentIds": ids})
        return _MANY[verb], {one["id"]: one["error"] for one in found["results"] if one["error"]}
    if verb == "delete":
        return "being deleted", await _each(visit, ids, "DELETE", "/experiments/{}")
    if verb in ("label", "unlabel"):
        label = form.text("label", "").strip()
        if not label:
            return "changed", dict.fromkeys(ids, "the label is empty: type one first")
        method, done = ("PUT", "labeled") if verb == "label" else ("DELETE", "without the label")
        path = f"/experiments/{{}}/labels/{quote(label, safe='')}"
        return done, await _each(visit, ids, method, path)
    if verb == "move":
        body = {"destinationProjectId": form.numbers("project")[-1]}
        return "moved", await _each(visit, ids, "POST", "/experiments/{}/move", body)
    return "changed", dict.fromkeys(ids, "the button's action is not known: load the page again")


async def _each(
    visit: Visit, ids: Sequence[int], method: str, path: str, body: Any = None
) -> dict[int, str]:
    """The refusals of one request for each experiment."""
    refused = {}
    for one in ids:
        try:
            await visit.send(method, path.format(one), body)
        except ApiError as refusal:
            refused[one] = refusal.message
    return refused


def _said(done: str, count: int, refused: dict[int, str]) -> str:
    """What happened, with a line for each refusal."""
    worked = count - len(refused)
    lines = (
        [f"{worked} of {count} chosen experiments: {done}."] if worked else ["Nothing was changed."]
    )
    lines += [f"Experiment {one}: {why}" for one, why in list(refused.items())[:_SHOWN_REFUSALS]]
    if len(refused) > _SHOWN_REFUSALS:
        lines.append(f"{len(refused) - _SHOWN_REFUSALS} more were refused.")
    return "\n".join(lines)
