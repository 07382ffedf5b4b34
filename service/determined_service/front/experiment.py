"""One experiment: what it found, its trials. Its other tabs: modules beside this one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from fastapi import Query, Request
from starlette.responses import Response

from determined_service.access.rules import Action
from determined_service.access.targets import Kind
from determined_service.base import topics
from determined_service.base.bounds import Id
from determined_service.base.pages import FRONT_HOME
from determined_service.front.experiments import PIECE
from determined_service.front.rendering import PageRouter, addresses, page, state
from determined_service.front.visits import Visit, Visitor

router = PageRouter()

TABS = [
    ("", "Overview"),
    ("trials", "Trials"),
    ("analysis", "Analysis"),
    ("logs", "Logs"),
    ("checkpoints", "Checkpoints"),
    ("code", "Code"),
    ("configuration", "Configuration"),
    ("about", "About"),
]
ENDED = frozenset({"COMPLETED", "CANCELED", "ERROR"})
SORTS = {
    "id": ("Trial", "SORT_BY_ID"),
    "state": ("State", "SORT_BY_STATE"),
    "best": ("Best", "SORT_BY_BEST_VALIDATION_METRIC"),
    "latest": ("Latest", "SORT_BY_LATEST_VALIDATION_METRIC"),
    "steps": ("Steps", "SORT_BY_BATCHES_PROCESSED"),
    "time": ("Time", "SORT_BY_DURATION"),
    "restarts": ("Restarts", "SORT_BY_RESTARTS"),
}
_ALLOWED_IN: dict[str, Callable[[str, bool], bool]] = {
    "pause": lambda now, archived: now not in ENDED and now != "PAUSED",
    "activate": lambda now, archived: now == "PAUSED",
    "cancel": lambda now, archived: now not in ENDED,
    "kill": lambda now, archived: now not in ENDED,
    "archive": lambda now, archived: now in ENDED and not archived,
    "unarchive": lambda now, archived: archived,
}


async def head(visit: Visit, experiment_id: int) -> dict[str, Any]:
    """What the head of each of the experiment's pages shows: the experiment, and what its reader may do."""
    found = (await visit.get(f"/experiments/{experiment_id}"))["experiment"]
    may = await visit.permitted(Action.CHANGE, Kind.EXPERIMENT, [experiment_id])
    now = state(found["state"])
    actions = [
        verb
        for verb, allows in _ALLOWED_IN.items()
        if may and not found["unmanaged"] and allows(now, found["archived"])
    ]
    return {
        "experiment": found,
        "actions": actions,
        "may_change": bool(may),
        "may_fork": not found["unmanaged"] and visit.may(Action.SUBMIT, Kind.EXPERIMENT),
        "may_continue": bool(may) and not found["unmanaged"] and now in ENDED,
        "tabs_shown": TABS,
        "base": f"{FRONT_HOME}/experiments/{experiment_id}",
        "live": "" if now in ENDED else topics.experiment(experiment_id),
        "command": f"det experiment describe {experiment_id}",
    }


@router.get("/experiments/{experiment_id}", include_in_schema=False)
async def overview(request: Request, visit: Visitor, experiment_id: Id) -> Response:
    """The best trial, the learning curves, the best trials."""
    shown = await head(visit, experiment_id)
    trials = await visit.get(
        f"/experiments/{experiment_id}/trials",
        {"sortBy": "SORT_BY_BEST_VALIDATION_METRIC", "orderBy": best_first(shown), "limit": 10},
    )
    return page(
        "experiment",
        request,
        visit,
        tab="",
        trials=trials["trials"],
        count=trials["pagination"]["total"],
        **shown,
    )


def best_first(shown: dict[str, Any]) -> str:
    """The order of metrics in which the best comes first, of :func:`head`'s experiment."""
    searcher = shown["experiment"]["config"].get("searcher", {})
    return "ORDER_BY_ASC" if searcher.get("smaller_is_better", True) else "ORDER_BY_DESC"


@router.get("/experiments/{experiment_id}/trials", include_in_schema=False)
async def trials_page(
    request: Request,
    visit: Visitor,
    experiment_id: Id,
    sort: str = "best",
    order: str = "",
    offset: Annotated[int, Query(ge=0, le=2**31 - 1)] = 0,
) -> Response:
    """The trials in pieces."""
    shown = await head(visit, experiment_id)
    first = "asc" if best_first(shown) == "ORDER_BY_ASC" else "desc"
    order = order or first
    _, by = SORTS.get(sort, SORTS["id"])
    found = await visit.get(
        f"/experiments/{experiment_id}/trials",
        {
            "sortBy": by,
            "orderBy": "ORDER_BY_ASC" if order == "asc" else "ORDER_BY_DESC",
            "limit": PIECE,
            "offset": offset,
        },
    )

    return page(
        "experiment_trials",
        request,
        visit,
        tab="trials",
        trials=found["trials"],
        pagination=found["pagination"],
        sort=sort,
        order=order,
        sorts=SORTS,
        address=addresses(f"{shown['base']}/trials", sort=sort, order=order),
        **shown,
    )
