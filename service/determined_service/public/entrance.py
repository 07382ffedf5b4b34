"""The address of the service: browsers are led to its pages, and programs get the ways into the cluster."""

from __future__ import annotations

from fastapi import Request
from starlette.responses import RedirectResponse, Response

from determined.__version__ import __version__
from determined_service.base.json import JsonResponse
from determined_service.base.pages import FRONT_HOME, PREFECT_HOME, has_mlflow
from determined_service.base.settings import Settings
from determined_service.web.router import Router
from determined_service.web.state import SettingsOf

router = Router("Cluster")

HEADERS = {
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "Vary": "Accept",
    "X-Content-Type-Options": "nosniff",
}


def links(settings: Settings) -> dict[str, str]:
    """The ways into this cluster, by name: from its settings alone, and without secrets."""
    found = {"pages": f"{FRONT_HOME}/", "api": "/docs", "openapi": "/openapi.json"}
    if settings.prefect_api_url is not None:
        found["prefect"] = f"{PREFECT_HOME}/"
    if has_mlflow():
        found["mlflow"] = "/mlflow/"
    return {**found, "health": "/health", "ready": "/ready"}


def _wants_html(request: Request) -> bool:
    """True if the client is a browser: only browsers name HTML."""
    return "text/html" in request.headers.get("accept", "").lower()


@router.get("/")
async def enter(request: Request, settings: SettingsOf) -> Response:
    """The ways into this cluster, for programs; browsers are led to the pages."""
    if _wants_html(request):
        return RedirectResponse(f"{FRONT_HOME}/", 302, headers=HEADERS)
    answer = {
        "name": "Determined on Prefect",
        "version": __version__,
        "clusterName": settings.cluster_name,
        "links": links(settings),
    }
    return JsonResponse(answer, headers=HEADERS)
