"""Pipelines: their steps as a graph, and what people decide."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import Query, Request
from starlette.responses import Response

from determined_service.access.rules import Action
from determined_service.access.targets import Kind
from determined_service.base import topics
from determined_service.base.bounds import Id
from determined_service.base.pages import FRONT_HOME
from determined_service.front.actions import FormAction, offer
from determined_service.front.experiments import PIECE
from determined_service.front.rendering import PageRouter, addresses, page
from determined_service.front.visits import Visitor

router = PageRouter()

OPEN = ("RUNNING", "WAITING_FOR_APPROVAL")
_ONE = "/pipelines/{id}"

offer(
    router,
    {
        "pipeline.approve": FormAction(
            "POST",
            f"{_ONE}/approve",
            "Your answer to step {step} is stored.",
            lambda form: {"approve": form.text("approve") == "yes", "step": form.text("step")},
        ),
        "pipeline.cancel": FormAction("POST", f"{_ONE}/cancel", "Pipeline {id} is canceled."),
        "pipeline.resume": FormAction("POST", f"{_ONE}/resume", "Pipeline {id} goes on."),
        "pipeline.again": FormAction(
            "POST", f"{_ONE}/again", "Pipeline {id} runs again, as a new one."
        ),
        "pipeline.unschedule": FormAction(
            "DELETE", f"{_ONE}/schedule", "Pipeline {id} does not run again by itself any more."
        ),
        "pipeline.delete": FormAction(
            "DELETE", _ONE, "Pipeline {id} is deleted.", after=f"{FRONT_HOME}/pipelines"
        ),
    },
)


@router.get("/pipelines", include_in_schema=False)
async def list_pipelines(
    request: Request,
    visit: Visitor,
    offset: Annotated[int, Query(ge=0, le=2**31 - 1)] = 0,
) -> Response:
    """Pipelines in pieces, the latest first."""
    found = await visit.get("/pipelines", {"limit": PIECE, "offset": offset})

    return page(
        "pipelines",
        request,
        visit,
        live="cluster",
        command="det pipeline list",
        found=found["pipelines"],
        pagination=found["pagination"],
        address=addresses(f"{FRONT_HOME}/pipelines"),
    )


@router.get("/pipelines/{pipeline_id}", include_in_schema=False)
async def one_pipeline(request: Request, visit: Visitor, pipeline_id: Id) -> Response:
    """A pipeline: the graph, each step with its experiments, and its approval."""
    pipeline = (await visit.get(f"/pipelines/{pipeline_id}"))["pipeline"]
    may = await visit.permitted(Action.CHANGE, Kind.PIPELINE, [pipeline_id])
    is_open = pipeline["state"] in OPEN
    return page(
        "pipeline",
        request,
        visit,
        live=topics.pipeline(pipeline_id) if is_open else "",
        command=f"det pipeline describe {pipeline_id}",
        pipeline=pipeline,
        graph=layout(pipeline["steps"]),
        is_open=is_open,
        may_change=bool(may),
    )


BOX = (150, 46)
"""Width and height of a step's box."""
_GAP = (50, 18)


@dataclass(frozen=True)
class Box:
    """A step in the graph, with its place."""

    step: dict[str, Any]
    x: int
    y: int


@dataclass(frozen=True)
class Graph:
    """The picture of the steps: boxes, and lines from the right side of one to the left side of another."""

    width: int
    height: int
    boxes: list[Box]
    lines: list[tuple[int, int, int, int]]


def layout(steps: list[dict[str, Any]]) -> Graph:
    """A step stands one column right of the last step that it needs. Steps come after those they need."""
    column: dict[str, int] = {}
    filled: dict[int, int] = {}
    boxes: dict[str, Box] = {}
    for step in steps:
        place = max((column[one] + 1 for one in step["needs"] if one in column), default=0)
        column[step["name"]] = place
        row = filled.get(place, 0)
        filled[place] = row + 1
        x, y = 4 + place * (BOX[0] + _GAP[0]), 4 + row * (BOX[1] + _GAP[1])
        boxes[step["name"]] = Box(step, x, y)
    lines = [
        (boxes[one].x + BOX[0], boxes[one].y + BOX[1] // 2, box.x, box.y + BOX[1] // 2)
        for box in boxes.values()
        for one in box.step["needs"]
        if one in boxes
    ]
    return Graph(
        width=8 + (max(filled, default=0) + 1) * (BOX[0] + _GAP[0]) - _GAP[0],
        height=8 + max(filled.values(), default=1) * (BOX[1] + _GAP[1]) - _GAP[1],
        boxes=list(boxes.values()),
        lines=lines,
    )
