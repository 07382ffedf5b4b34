"""Trials side by side: any trials of any experiments, chosen in the address."""

from __future__ import annotations

import re
from typing import Annotated, Any
from urllib.parse import urlencode

from fastapi import Query, Request
from starlette.responses import Response

from determined_service.base import topics
from determined_service.base.bounds import Id
from determined_service.base.errors import BadRequest
from determined_service.base.pages import FRONT_HOME
from determined_service.front.curves import MOST_CURVES
from determined_service.front.rendering import PageRouter, page, state
from determined_service.front.side_by_side import (
    choice_of,
    chosen,
    differing,
    first_metric,
    flat,
    metric_rows,
    metrics_of,
    read_experiments,
    read_trials,
    usual,
)
from determined_service.front.stream import MOST_TOPICS
from determined_service.front.visits import Visit, Visitor

router = PageRouter()

SUGGESTED = 8
_ADDED = re.compile(r"e?[1-9]\d{0,8}", re.ASCII)


def _whole(text: str, most: int) -> int | None:
    """A number from 1 to ``most``; None: the field was left empty, or holds no such number."""
    is_number = text.isascii() and text.isdigit() and len(text) < 20
    return max(1, min(int(text), most)) if is_number else None


@router.get("/compare", include_in_schema=False)
async def compare(
    request: Request,
    visit: Visitor,
    trial: Annotated[list[Id], Query(default_factory=list, max_length=1000)],
    experiment: Annotated[list[Id], Query(default_factory=list, max_length=1000)],
    without: Annotated[list[Id], Query(default_factory=list, max_length=1000)],
    best: str = "",
    metric: str = "",
    x: str = "steps",
    scale: str = "linear",
    smooth: Annotated[float, Query(ge=0, le=0.95)] = 0,
    step: str = "",
    same: bool = False,
    add: str = "",
) -> Response:
    """Curves of the chosen trials, and a column for each: hyperparameters, metrics, times."""
    at, count = _whole(step, 2**62), _whole(best, MOST_CURVES) or 0
    suggested, problem = [], ""
    words = re.split(r"[\s,]+", add.strip())
    numbers = all(_ADDED.fullmatch(one) for one in words)
    if numbers:
        if any(one[0] == "e" for one in words) and experiment:
            # The trials that are there stay.
            count = count or usual(experiment)
        trial = [*trial, *(int(one) for one in words if one[0] != "e")]
        experiment = [*experiment, *(int(one[1:]) for one in words if one[0] == "e")]
        without = [one for one in without if str(one) not in words]
    elif add.strip():
        try:
            suggested = await _suggested(visit, add)
        except BadRequest as refusal:
            problem = refusal.message
    choice = choice_of(trial, experiment, without, count)
    ids, remarks = await chosen(visit, choice)
    found = await read_trials(visit, ids, metric, at) if ids else []
    lacking = [one for one in ids if one not in {one["id"] for one in found}]
    if lacking:
        some = ", ".join(map(str, lacking[:10])) + (" …" if len(lacking) > 10 else "")
        remarks.append(f"There is no trial {some}, or you may not see it.")
    experiments = await read_experiments(visit, found)
    metrics = metrics_of(found)
    metric = metric or first_metric(experiments, metrics)
    if metric and at is not None and found and "at" not in found[0]:
        found = await read_trials(visit, ids, metric, at)

    def address(**changed: Any) -> str:
        given = {"metric": metric, "x": x, "scale": scale, "smooth": smooth, "step": at}
        given |= {"same": "true" if same else "", **changed}
        left = {name: value for name, value in given.items() if value not in ("", None, 0)}
        return f"{FRONT_HOME}/compare?{urlencode([*choice.fields(), *left.items()])}"

    active = [one for one in experiments.values() if state(one["state"]) not in _ENDED]
    return page(
        "compare",
        request,
        visit,
        live=" ".join(topics.experiment(one["id"]) for one in active[:MOST_TOPICS]),
        command=f"det trial describe {found[0]['id']}"
        if found
        else "det experiment list-trials ID",
        trials=found,
        experiments=experiments,
        differing=list(experiments) if len(experiments) == 2 else [],
        hparams=differing(found, (flat(one["hparams"]) for one in found), same),
        # That of the curves first.
        metrics=metric_rows(found, sorted(metrics, key=lambda name: name != metric)),
        names=sorted({metric, *metrics} - {""}),
        metric=metric,
        x=x,
        scale=scale,
        smooth=smooth,
        step=at,
        same=same,
        curves=f"{FRONT_HOME}/curves/trials?{urlencode([('id', one['id']) for one in found])}",
        choice=choice,
        remarks=remarks,
        suggested=suggested,
        problem=problem,
        add="" if numbers else add.strip(),
        address=address,
        most=MOST_CURVES,
    )


_ENDED = frozenset({"COMPLETED", "CANCELED", "ERROR"})


async def _suggested(visit: Visit, query: str) -> list[dict[str, Any]]:
    """The newest experiments that the query finds. Raises BadRequest."""
    parameters = {
        "query": query,
        "light": "true",
        "limit": SUGGESTED,
        "sortBy": "SORT_BY_ID",
        "orderBy": "ORDER_BY_DESC",
    }
    return list((await visit.get("/experiments", parameters))["experiments"])
