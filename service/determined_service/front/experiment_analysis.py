"""What an experiment's search has found about its hyperparameters."""

from __future__ import annotations

from fastapi import Request
from starlette.responses import Response

from determined_service.base.aside import aside
from determined_service.base.bounds import Id
from determined_service.front.curves import MOST_CURVES
from determined_service.front.experiment import best_first, head
from determined_service.front.parallel import parallel
from determined_service.front.rendering import PageRouter, page
from determined_service.front.visits import Visitor

router = PageRouter()


@router.get("/experiments/{experiment_id}/analysis", include_in_schema=False)
async def analysis(
    request: Request, visit: Visitor, experiment_id: Id, figures: bool = False
) -> Response:
    """Parallel coordinates. ``figures``: with the importance of hyperparameters and the rungs, which take a
    second; the page's script asks for them once the page is there."""
    shown = await head(visit, experiment_id)
    experiment = shown["experiment"]
    found = await visit.get(
        f"/experiments/{experiment_id}/trials",
        {
            "sortBy": "SORT_BY_BEST_VALIDATION_METRIC",
            "orderBy": best_first(shown),
            "limit": MOST_CURVES,
        },
    )
    trials = found["trials"]
    drawing = await aside(
        len(trials) * 500,
        parallel,
        trials,
        experiment["hyperparameters"],
        experiment["searcherMetric"] or "metric",
    )
    numbers = await visit.get(f"/experiments/{experiment_id}/analysis") if figures else None
    return page(
        "experiment_analysis",
        request,
        visit,
        tab="analysis",
        drawing=drawing,
        drawn=len(drawing.lines),
        count=found["pagination"]["total"],
        most=MOST_CURVES,
        numbers=numbers,
        **(shown | {"command": f"det experiment plot {experiment_id}"}),
    )
