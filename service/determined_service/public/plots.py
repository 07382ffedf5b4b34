"""The plot of a search, for users who are logged in and for holders of its link."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Request
from fastapi.responses import HTMLResponse
from starlette.responses import Response

from determined_service.access.dependencies import ExperimentReader
from determined_service.base.bounds import Id
from determined_service.base.errors import Forbidden
from determined_service.plots import links
from determined_service.plots.render import Renderer
from determined_service.views.experiments import require_experiment
from determined_service.web.router import Router
from determined_service.web.state import Db, SettingsOf

router = Router("Experiments")

# The page has a policy for its scripts itself; a header would not travel with a saved file.
HEADERS = {
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


async def _renderer(request: Request) -> Renderer:
    state = request.app.state
    if not hasattr(state, "renderer"):
        state.renderer = Renderer(state.settings)
    found: Renderer = state.renderer
    return found


RendererOf = Annotated[Renderer, Depends(_renderer)]


@router.get("/api/v1/experiments/{experiment_id}/plot", response_class=HTMLResponse)
async def plot_experiment(
    experiment_id: Id, user: ExperimentReader, db: Db, renderer: RendererOf
) -> HTMLResponse:
    """One HTML page that needs no network: curves, best metric, hyperparameters, rungs."""
    async with db.tx() as conn:
        await require_experiment(conn, experiment_id)
    return HTMLResponse(await renderer.page(experiment_id), headers=HEADERS)


@router.get("/api/v1/experiments/{experiment_id}/analysis")
async def analyse_experiment(
    experiment_id: Id, user: ExperimentReader, db: Db, renderer: RendererOf
) -> Response:
    """The importance of hyperparameters (PED-ANOVA), and how many trials reached each rung, as numbers.

    A separate process computes them, in about a second.
    """
    async with db.tx() as conn:
        await require_experiment(conn, experiment_id)
    return Response(await renderer.numbers(experiment_id), media_type="application/json")


@router.get(links.PATH, response_class=HTMLResponse)
async def open_plot(
    experiment_id: Id, key: str, settings: SettingsOf, renderer: RendererOf
) -> HTMLResponse:
    """The same page by its signed link, which the experiment's run in Prefect shows: no login."""
    if not links.is_key(settings, experiment_id, key):
        raise Forbidden("this link does not open a plot of this cluster: ask for a new one")
    return HTMLResponse(await renderer.page(experiment_id), headers=HEADERS)
