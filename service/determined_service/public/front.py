"""The address of the service in a browser: a page that names the entrances."""

from __future__ import annotations

import base64
import hashlib
from dataclasses import dataclass
from typing import Any

import jinja2
from fastapi import Request
from fastapi.responses import HTMLResponse
from starlette.responses import Response

from determined.__version__ import __version__
from determined_service.base.json import JsonResponse
from determined_service.base.pages import has_mlflow
from determined_service.base.settings import Settings
from determined_service.web.router import Router
from determined_service.web.state import SettingsOf

router = Router("Cluster")

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 46rem; margin: 3rem auto; padding: 0 1rem; }
dt { font-weight: 600; margin-top: 1rem; }
dd { margin: 0; }
code { font-size: 0.9em; }
"""
_HASH = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()

HEADERS = {
    # Nothing is loaded, sent or framed; the one style is known by its hash.
    "Content-Security-Policy": f"default-src 'none'; style-src 'sha256-{_HASH}'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'",
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "Vary": "Accept",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}

_PAGE = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined).from_string(
    """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Determined on Prefect</title>
<style>{{ style | safe }}</style>
</head>
<body>
<h1>Determined on Prefect</h1>
<p>Cluster {{ cluster }}, version {{ version }}. The service answers; its own pages are yet to come. Until
then:</p>
<dl>
{%- for entrance in entrances %}
<dt>{% if entrance.link %}<a href="{{ entrance.link }}" rel="noreferrer">{{ entrance.title }}</a>
{%- else %}{{ entrance.title }}{% endif %}</dt>
<dd>{% for text in entrance.texts %}{% if text.startswith("det ") %}<code>{{ text }}</code><br>
{%- else %}{{ text }} {% endif %}{% endfor %}</dd>
{%- endfor %}
</dl>
</body>
</html>
"""
)


@dataclass(frozen=True)
class Entrance:
    """A way into the cluster. ``link``: an address, if it has one; ``texts``: sentences, and commands, which
    begin with ``det``."""

    key: str
    title: str
    texts: tuple[str, ...]
    link: str | None = None


def entrances(settings: Settings) -> list[Entrance]:
    """Every entrance of this cluster: from its settings alone, and without secrets."""
    found = [
        Entrance("api", "REST API", ("What it can do, to read and to try out.",), "/docs"),
        Entrance("openapi", "OpenAPI description", ("The same for programs.",), "/openapi.json"),
    ]
    if settings.prefect_api_url is not None:
        text = (
            "Runs, their states and logs. It asks for a user and a password of this cluster; what changes "
            "something is for administrators."
        )
        found.append(Entrance("prefect", "Prefect's page", (text,), "/prefect/"))
    return [
        *found,
        *(
            [
                Entrance(
                    "mlflow",
                    "MLflow",
                    (
                        "Experiments, charts, models. It asks for a user and a password of this cluster.",
                    ),
                    "/mlflow/",
                )
            ]
            if has_mlflow()
            else []
        ),
        Entrance(
            "commands",
            "Commands",
            (
                "det user login NAME",
                "det experiment create CONFIG.yaml FOLDER",
                "det experiment list",
                "det experiment describe ID",
                "det trial logs ID",
                "det --help",
            ),
        ),
        Entrance(
            "plots",
            "Plots",
            (
                "det experiment plot ID --open",
                "The run of an experiment on Prefect's page links to the same plot.",
            ),
        ),
        Entrance("health", "Health", ("Whether the process is up.",), "/health"),
        Entrance("ready", "Readiness", ("Whether the database and Prefect answer too.",), "/ready"),
    ]


def _wants_html(request: Request) -> bool:
    """True if the client is a browser: only browsers name HTML."""
    return "text/html" in request.headers.get("accept", "").lower()


@router.get(
    "/",
    response_class=HTMLResponse,
    responses={200: {"content": {"application/json": {}}, "description": "A page, or JSON"}},
)
async def front(request: Request, settings: SettingsOf) -> Response:
    """The ways into this cluster: a page for browsers, JSON for every other client."""
    found = entrances(settings)
    if not _wants_html(request):
        answer: dict[str, Any] = {
            "name": "Determined on Prefect",
            "version": __version__,
            "clusterName": settings.cluster_name,
            "links": {
                entrance.key: entrance.link for entrance in found if entrance.link is not None
            },
        }
        return JsonResponse(answer, headers=HEADERS)
    page = _PAGE.render(
        style=_STYLE, cluster=settings.cluster_name, version=__version__, entrances=found
    )
    return HTMLResponse(page, headers=HEADERS)
