"""The notes, labels, place, relations and cost of an experiment, and its deletion."""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import Request
from starlette.responses import Response

from determined_service.access.rules import Action
from determined_service.access.targets import Kind
from determined_service.base.bounds import Id
from determined_service.base.pages import FRONT_HOME
from determined_service.front import markdown
from determined_service.front.actions import FormAction, offer
from determined_service.front.experiment import head
from determined_service.front.forms import Form, read_form
from determined_service.front.rendering import PageRouter, back, page
from determined_service.front.visits import Visit, Visitor

router = PageRouter()

MOST_PROJECTS = 200
"""Projects that the list of places offers."""
DELETABLE = frozenset({"STATE_COMPLETED", "STATE_CANCELED", "STATE_ERROR", "STATE_DELETE_FAILED"})


def _description(form: Form) -> dict[str, str]:
    return {"name": form.text("name"), "description": form.text("description")}


def _notes(form: Form) -> dict[str, str]:
    # Browsers send line ends as CR LF.
    return {"notes": form.text("notes").replace("\r\n", "\n")}


_ONE = "/experiments/{id}"
offer(
    router,
    {
        "experiment.describe": FormAction(
            "PATCH", _ONE, "Experiment {id} is described.", _description
        ),
        "experiment.note": FormAction("PATCH", _ONE, "The notes are stored.", _notes),
        "experiment.label": FormAction(
            "PUT", f"{_ONE}/labels/{{label}}", "It has the label {label}."
        ),
        "experiment.unlabel": FormAction(
            "DELETE", f"{_ONE}/labels/{{label}}", "It has the label {label} no more."
        ),
        "experiment.move": FormAction(
            "POST",
            f"{_ONE}/move",
            "Experiment {id} is moved.",
            lambda form: {"destinationProjectId": form.numbers("project")[-1:][0]},
        ),
        "experiment.delete": FormAction(
            "DELETE",
            _ONE,
            "Experiment {id} is being deleted, with its checkpoints and logs.",
            after=f"{FRONT_HOME}/experiments",
        ),
    },
)


async def list_projects(visit: Visit) -> list[dict[str, Any]]:
    """The projects in which experiments may be made, as far as the list goes."""
    wanted = {"limit": MOST_PROJECTS, "archived": "false", "brief": "true"}
    found = await visit.maybe("/workspaces/0/projects", wanted)
    return [] if found is None else list(found["projects"])


@router.get("/experiments/{experiment_id}/about", include_in_schema=False)
async def about(
    request: Request, visit: Visitor, experiment_id: Id, edit: bool = False
) -> Response:
    """``edit``: the notes are in a form."""
    shown = await head(visit, experiment_id)
    experiment = shown["experiment"]
    lineage, may_delete, notes, projects = await asyncio.gather(
        visit.get(f"/experiments/{experiment_id}/lineage"),
        visit.permitted(Action.DELETE, Kind.EXPERIMENT, [experiment_id]),
        markdown.html(experiment["notes"] or ""),
        list_projects(visit),
    )
    return page(
        "experiment_about",
        request,
        visit,
        tab="about",
        notes=notes,
        edit=edit and shown["may_change"],
        lineage=lineage,
        slot_hours=lineage["slotSeconds"] / 3600,
        projects=projects,
        most_projects=MOST_PROJECTS,
        may_delete=bool(may_delete) and experiment["state"] in DELETABLE,
        may_open=not experiment["unmanaged"] and visit.may(Action.CREATE, Kind.TASK),
        **(shown | {"live": ""}),
    )


@router.post("/experiments/{experiment_id}/tensorboard", include_in_schema=False)
async def open_tensorboard(request: Request, visit: Visitor, experiment_id: Id) -> Response:
    """Starts a TensorBoard on the experiment, and leads to the page of its task."""
    await read_form(visit)
    made = await visit.send("POST", "/tensorboards", {"experimentIds": [experiment_id]})
    task_id = made["tensorboard"]["id"]
    said = f"A TensorBoard on experiment {experiment_id} waits for its place, and then starts."
    return back(request, f"{FRONT_HOME}/tasks/{task_id}", said)
