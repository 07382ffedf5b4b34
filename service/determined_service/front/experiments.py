"""The list of experiments."""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import urlencode

from fastapi import Query, Request
from starlette.responses import Response

from determined_service.base.pages import FRONT_HOME
from determined_service.front.actions import FormAction, offer
from determined_service.front.rendering import PageRouter, page
from determined_service.front.visits import Visitor

router = PageRouter()

PIECE = 50
"""Rows of a list on one page."""
STATES = ("ACTIVE", "PAUSED", "COMPLETED", "CANCELED", "ERROR")
SORTS = {
    "id": ("ID", "SORT_BY_ID"),
    "name": ("Name", "SORT_BY_NAME"),
    "state": ("State", "SORT_BY_STATE"),
    "started": ("Started", "SORT_BY_START_TIME"),
    "trials": ("Trials", "SORT_BY_NUM_TRIALS"),
    "best": ("Best", "SORT_BY_SEARCHER_METRIC_VAL"),
    "owner": ("Owner", "SORT_BY_USER"),
}

_SAID = {
    "pause": "Experiment {id} pauses: each trial stores a checkpoint and gives its slots back.",
    "activate": "Experiment {id} goes on.",
    "cancel": "Experiment {id} is canceled: each trial stores a checkpoint and ends.",
    "kill": "Experiment {id} is killed.",
    "archive": "Experiment {id} is archived: lists leave it out.",
    "unarchive": "Experiment {id} is in lists again.",
}
offer(
    router,
    {
        f"experiment.{verb}": FormAction("POST", f"/experiments/{{id}}/{verb}", said)
        for verb, said in _SAID.items()
    },
)


@router.get("/experiments", include_in_schema=False)
async def list_experiments(
    request: Request,
    visit: Visitor,
    state: Annotated[list[str], Query(default_factory=list)],
    q: str = "",
    archived: bool = False,
    sort: str = "id",
    order: str = "desc",
    offset: Annotated[int, Query(ge=0, le=2**31 - 1)] = 0,
) -> Response:
    """Experiments in pieces; the address holds what is sought, and how it is sorted."""
    _, by = SORTS.get(sort, SORTS["id"])
    parameters: list[tuple[str, Any]] = [
        ("sortBy", by),
        ("orderBy", "ORDER_BY_ASC" if order == "asc" else "ORDER_BY_DESC"),
        ("limit", PIECE),
        ("offset", offset),
        ("name", q.strip()),
        *([] if archived else [("archived", "false")]),
        *(("states", f"STATE_{one}") for one in state if one in STATES),
    ]
    found = await visit.get("/experiments", parameters)

    def address(**changed: Any) -> str:
        given = {
            "q": q, "state": state, "sort": sort, "order": order, "offset": 0,
            "archived": "true" if archived else "",
        }  # fmt: skip
        left = {name: value for name, value in {**given, **changed}.items() if value}
        return f"{FRONT_HOME}/experiments?{urlencode(left, doseq=True)}"

    return page(
        "experiments",
        request,
        visit,
        live="cluster",
        command="det experiment list",
        found=found["experiments"],
        pagination=found["pagination"],
        q=q,
        chosen=state,
        states=STATES,
        archived=archived,
        sort=sort,
        order=order,
        sorts=SORTS,
        address=address,
    )
