"""The checkpoints of an experiment."""

from __future__ import annotations

from typing import Annotated, Any
from uuid import UUID

from fastapi import Query, Request
from starlette.responses import Response

from determined_service.access.rules import Action
from determined_service.access.targets import Kind
from determined_service.base.aside import aside
from determined_service.base.bounds import Id
from determined_service.front.actions import FormAction, offer
from determined_service.front.experiment import head
from determined_service.front.experiments import PIECE
from determined_service.front.rendering import PageRouter, addresses, page
from determined_service.front.visits import Visitor

router = PageRouter()

MOST_RANKED = 1000
"""Checkpoints that are sorted by their metric unless it is asked for: their reports have to be read."""
SORTS = {
    "best": ("Metric", "SORT_BY_SEARCHER_METRIC"),
    "trial": ("Trial", "SORT_BY_TRIAL_ID"),
    "steps": ("Steps", "SORT_BY_BATCH_NUMBER"),
    "state": ("State", "SORT_BY_STATE"),
    "time": ("Stored", "SORT_BY_END_TIME"),
}
offer(
    router,
    {
        "checkpoint.delete": FormAction(
            "DELETE",
            "/checkpoints",
            "The files of checkpoint {uuid} are being deleted.",
            body=lambda form: {"checkpointUuids": [form.text("uuid")]},
        )
    },
)


def _sizes(checkpoints: list[dict[str, Any]]) -> list[int]:
    """The bytes of each checkpoint, which may have a hundred thousand files."""
    return [sum(map(int, one["resources"].values())) for one in checkpoints]


@router.get("/experiments/{experiment_id}/checkpoints", include_in_schema=False)
async def checkpoints(
    request: Request,
    visit: Visitor,
    experiment_id: Id,
    sort: str = "",
    order: str = "",
    offset: Annotated[int, Query(ge=0, le=2**31 - 1)] = 0,
) -> Response:
    """The checkpoints in pieces: the best first, of very many the newest, unless an order is chosen."""
    shown = await head(visit, experiment_id)
    if sort not in SORTS:
        many = shown["experiment"]["checkpointCount"] > MOST_RANKED
        sort, order = ("time", "desc") if many else ("best", "")
    orders = {"asc": "ORDER_BY_ASC", "desc": "ORDER_BY_DESC"}
    parameters = {"sortByAttr": SORTS[sort][1], "limit": PIECE, "offset": offset}
    if order in orders:
        parameters["orderBy"] = orders[order]
    found = await visit.get(f"/experiments/{experiment_id}/checkpoints", parameters)
    listed = found["checkpoints"]
    files = sum(len(one["resources"]) for one in listed)
    sizes = await aside(files, _sizes, listed)
    may = await visit.permitted(
        Action.DELETE, Kind.CHECKPOINT, [UUID(one["uuid"]) for one in listed]
    )

    return page(
        "experiment_checkpoints",
        request,
        visit,
        tab="checkpoints",
        checkpoints=[
            {**one, "size": size, "may_delete": UUID(one["uuid"]) in may}
            for one, size in zip(listed, sizes, strict=True)
        ],
        pagination=found["pagination"],
        sort=sort,
        order=order,
        sorts=SORTS,
        address=addresses(f"{shown['base']}/checkpoints", sort=sort, order=order),
        **(shown | {"command": f"det experiment list-checkpoints {experiment_id}"}),
    )
