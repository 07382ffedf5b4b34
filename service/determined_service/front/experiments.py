"""The list of experiments."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Annotated, Any
from urllib.parse import urlencode

from fastapi import Query, Request
from starlette.responses import Response

from determined_service.access.rules import Action
from determined_service.access.targets import Kind
from determined_service.base.errors import ApiError, BadRequest
from determined_service.base.pages import FRONT_HOME
from determined_service.front.actions import FormAction, offer
from determined_service.front.rendering import PageRouter, page
from determined_service.front.visits import Visit, Visitor

router = PageRouter()

PIECE = 50
"""Rows of a list on one page."""
STATES = ("ACTIVE", "PAUSED", "COMPLETED", "CANCELED", "ERROR")
COLUMNS = {
    "id": ("ID", "SORT_BY_ID"),
    "name": ("Name", "SORT_BY_NAME"),
    "state": ("State", "SORT_BY_STATE"),
    "started": ("Started", "SORT_BY_START_TIME"),
    "duration": ("Took", ""),
    "trials": ("Trials", "SORT_BY_NUM_TRIALS"),
    "progress": ("Progress", "SORT_BY_PROGRESS"),
    "best": ("Best", "SORT_BY_SEARCHER_METRIC_VAL"),
    "searcher": ("Searcher", ""),
    "pool": ("Pool", "SORT_BY_RESOURCE_POOL"),
    "owner": ("Owner", "SORT_BY_USER"),
    "project": ("Project", "SORT_BY_PROJECT_ID"),
    "checkpoints": ("Checkpoints", "SORT_BY_CHECKPOINT_COUNT"),
}
"""What every experiment has: the heading, and REST's name of the order (empty: there is none)."""
ALWAYS = ("id", "name")
USUAL = ("state", "started", "trials", "best", "owner", "project")
MOST_OWN = 12
"""Columns of hyperparameters and metrics."""
OFFERED = 24

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
    column: Annotated[list[str], Query(default_factory=list, max_length=100)],
    q: str = "",
    more: str = "",
    archived: bool = False,
    sort: str = "id",
    order: str = "desc",
    offset: Annotated[int, Query(ge=0, le=2**31 - 1)] = 0,
) -> Response:
    """Experiments in pieces; the address holds what is sought, which columns there are, and their order."""
    columns = _columns([*column, *more.split()])
    own = [one for one in columns if one not in COLUMNS]
    by = sort if sort in own else COLUMNS.get(sort, COLUMNS["id"])[1]
    problem, found = "", _NOTHING
    try:
        if len(own) > MOST_OWN:
            raise BadRequest(
                f"columns: {len(own)} hyperparameters and metrics, at most {MOST_OWN} are allowed"
            )
        found = await visit.get(
            "/experiments",
            [
                ("sortBy", by or "SORT_BY_ID"),
                ("orderBy", "ORDER_BY_ASC" if order == "asc" else "ORDER_BY_DESC"),
                ("limit", PIECE),
                ("offset", offset),
                ("query", q.strip()),
                ("light", "true"),
                *([] if archived else [("archived", "false")]),
                *(("states", f"STATE_{one}") for one in state if one in STATES),
                *(("columns", one) for one in own),
            ],
        )
    except BadRequest as refusal:
        # While a reader types, half a query is wrong for a moment: the rest of the page stays.
        problem = refusal.message
    rows = found["experiments"]
    ids = [one["id"] for one in rows]
    changeable, offered = await asyncio.gather(
        visit.permitted(Action.CHANGE, Kind.EXPERIMENT, ids), _offered(visit, rows, own)
    )

    def address(**changed: Any) -> str:
        given = {
            "q": q, "state": state, "sort": sort, "order": order, "offset": 0,
            "archived": "true" if archived else "", "column": [] if columns == _columns([]) else columns,
        }  # fmt: skip
        left = {name: value for name, value in {**given, **changed}.items() if value}
        return f"{FRONT_HOME}/experiments?{urlencode(left, doseq=True)}"

    query = f" --query {_quoted(q.strip())}" if q.strip() else ""
    return page(
        "experiments",
        request,
        visit,
        live="cluster",
        command=f"det experiment list{' --all' if archived else ''}{query}",
        found=rows,
        pagination=found["pagination"],
        problem=problem,
        q=q,
        chosen=state,
        states=STATES,
        archived=archived,
        sort=sort,
        order=order,
        columns=[*ALWAYS, *columns],
        known=COLUMNS,
        always=ALWAYS,
        offered=offered,
        changeable=changeable,
        address=address,
    )


_NOTHING: dict[str, Any] = {
    "experiments": [],
    "pagination": {"startIndex": 0, "endIndex": 0, "total": 0},
}


def _columns(given: Sequence[str]) -> list[str]:
    """The columns behind those that are always there."""
    wanted = [one for one in dict.fromkeys(given) if one and one not in ALWAYS]
    # A word of the reader's without a dot, that is no column of ours, is a hyperparameter's name.
    named = [one if one in COLUMNS or "." in one else f"hp.{one}" for one in wanted]
    return named or list(USUAL)


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


async def _offered(visit: Visit, rows: Sequence[dict[str, Any]], own: Sequence[str]) -> list[str]:
    """Names of columns that the reader may want: of the first trial in the list, and those that are there."""
    found = list(own)
    best = next((one["bestTrialId"] for one in rows if one["bestTrialId"]), None)
    if best is not None:
        try:
            trial = (await visit.get(f"/trials/{best}"))["trial"]
        except ApiError:
            return found
        found += [f"hp.{name}" for name in trial["hparams"]]
        report = (trial["bestValidation"] or {}).get("metrics", {}).get("avgMetrics", {})
        found += [f"validation.{name}" for name in report]
    # Names with spaces cannot be told apart in the field.
    return [one for one in dict.fromkeys(found) if len(one) < 100][:OFFERED]
