"""MLflow's pages and its API for clients, behind the service's door: requests are passed on to its server.

MLflow's server knows no users. Logins are checked here; the server gets the request without the client's
token, and with a pass that means the same user until the request is answered.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import hashlib
import os
from collections.abc import AsyncIterator
from typing import Annotated
from urllib.parse import quote, unquote

import httpx
import jinja2
from fastapi import Request
from fastapi.responses import HTMLResponse
from starlette.background import BackgroundTask
from starlette.requests import ClientDisconnect
from starlette.responses import RedirectResponse, Response

from determined.common import installation
from determined.common.wire.mlflow import BODY_FILE_HEADER, PATH_HEADER, TAKES_PATH_HEADER
from determined_registry.database.seen import written
from determined_service.access.authenticator import Authenticator
from determined_service.access.browser import FRONT, MLFLOW, may_in_browser
from determined_service.access.logins import log_in
from determined_service.access.page_tickets import of_mlflow, use_ticket
from determined_service.access.principal import Principal
from determined_service.access.rules import Action
from determined_service.access.sessions import open_pages
from determined_service.access.targets import Kind
from determined_service.access.tokens import new_token, token_hash
from determined_service.access.visible import seen_by
from determined_service.base.errors import (
    Forbidden,
    TooManyRequests,
    Unauthenticated,
    Unavailable,
)
from determined_service.base.json import JsonResponse
from determined_service.base.pages import FRONT_HOME, has_mlflow
from determined_service.base.streams import Stream
from determined_service.mlflow import files, passing
from determined_service.mlflow.process import MlflowServer
from determined_service.public.login import read_form
from determined_service.public.mlflow_changes import mlflow_error
from determined_service.web.router import Router
from determined_service.web.state import Db, SettingsOf, Throttle

router = Router("MLflow")
_opening = functools.partial(open_pages, label=MLFLOW.label)

Visitor = Annotated[Principal | None, may_in_browser(Action.READ, Kind.EXPERIMENT)]

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 26rem; margin: 4rem auto; padding: 0 1rem; }
label, input, button { display: block; width: 100%; box-sizing: border-box; font: inherit; }
input { margin: 0.25rem 0 1rem; padding: 0.4rem; }
button { padding: 0.5rem; }
.refused { color: #b00020; }
code { font-size: 0.9em; }
"""
_ENTERING = "determined-entering"
"""The cookie of a browser on its way from the service's own pages."""
_HASH = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
HEADERS = {
    "Content-Security-Policy": f"default-src 'none'; style-src 'sha256-{_HASH}'; base-uri 'none'; "
    "form-action 'self'; frame-ancestors 'none'",
    "Cache-Control": "no-store",
    # Without a referrer, browsers send the form with "Origin: null".
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
_FRAME = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{{ title }}</title>
<style>{{ style | safe }}</style>
</head>
<body>
<h1>{{ title }}</h1>
{% block body %}{% endblock %}
</body>
</html>
"""
_PAGES = jinja2.Environment(
    autoescape=True,
    undefined=jinja2.StrictUndefined,
    loader=jinja2.DictLoader(
        {
            "frame": _FRAME,
            # The form is sent to the page's own address, so that the part after "#" is kept.
            "login": """{% extends "frame" %}{% block body %}
<p>The experiments, trials and models of cluster {{ cluster }}. Log in as with <code>det user
login</code>.</p> {% if refusal %}<p class="refused" role="alert">{{ refusal }}</p>{% endif %}
<form method="post">
<label for="username">User</label>
<input id="username" name="username" value="{{ username }}" autocomplete="username" autofocus>
<label for="password">Password</label>
<input id="password" name="password" type="password" autocomplete="current-password">
<button>Log in</button>
</form>{% endblock %}""",
            "missing": """{% extends "frame" %}{% block body %}
<p>MLflow is not installed beside the service of cluster {{ cluster }}. Whoever runs the cluster installs
it with</p> <p><code>{{ install }}</code></p>
<p>in the service's environment. Nothing else is needed: this page is MLflow's then.</p>{% endblock %}""",
        }
    ),
)


def _page(name: str, status: int, **values: str) -> HTMLResponse:
    page = _PAGES.get_template(name).render(style=_STYLE, **values)
    return HTMLResponse(page, status, headers=HEADERS)


def _wants_page(request: Request) -> bool:
    return request.method == "GET" and "text/html" in request.headers.get("accept", "")


@router.get("/mlflow", include_in_schema=False)
async def without_slash(visitor: Visitor) -> Response:
    """Redirects to the address with a slash: MLflow's pages use paths relative to the folder."""
    return RedirectResponse("/mlflow/", 307)


@router.post("/mlflow/")
async def log_in_here(
    request: Request, db: Db, settings: SettingsOf, throttle: Throttle
) -> Response:
    """The form of the login page: a session for these pages alone, whose token becomes a cookie."""
    if (own := MLFLOW.elsewhere(request)) is not None:
        return RedirectResponse(f"{own}/mlflow/", 303, headers={"Cache-Control": "no-store"})
    login = await read_form(request)
    try:
        token, _ = await log_in(login, request, db, settings, throttle, _opening)
    except (Unauthenticated, Forbidden, TooManyRequests) as refusal:
        return _page(
            "login",
            refusal.status,
            title="MLflow",
            cluster=settings.cluster_name,
            refusal=refusal.message,
            username=login.username,
        )
    answer = RedirectResponse("/mlflow/", 303, headers={"Cache-Control": "no-store"})
    MLFLOW.keep(answer, request, token)
    return answer


@router.get("/mlflow/enter", include_in_schema=False)
async def enter(
    request: Request, db: Db, settings: SettingsOf, ticket: str = "", to: str = ""
) -> Response:
    """Takes the login of the service's own pages over, and leads to the page ``to`` of MLflow.

    First the browser gets a cookie and is led to the service's pages, which make a ticket for this cookie:
    nobody can lead a visitor here with a ticket of somebody else.
    """
    there = to if _is_page(to) else "/mlflow/"
    if await _is_logged_in(request):
        return RedirectResponse(there, 303, headers={"Cache-Control": "no-store"})
    own = request.cookies.get(_ENTERING, "")
    if ticket and own:
        most = settings.cluster.quotas.sessions
        async with db.tx() as conn:
            entered = await use_ticket(conn, ticket, of_mlflow(token_hash(own)), most)
        # Without a session, MLflow's page asks for user and password.
        answer = RedirectResponse(there, 303, headers={"Cache-Control": "no-store"})
        answer.delete_cookie(_ENTERING, path=MLFLOW.path)
        if entered is not None:
            MLFLOW.keep(answer, request, entered[0])
        return answer
    if ticket:
        return RedirectResponse(there, 303, headers={"Cache-Control": "no-store"})
    own = new_token()
    front = FRONT.elsewhere(request) or ""
    query = f"state={token_hash(own)}&to={quote(there, safe='/')}"
    answer = RedirectResponse(
        f"{front}{FRONT_HOME}/go/mlflow?{query}", 303, headers={"Cache-Control": "no-store"}
    )
    answer.set_cookie(
        _ENTERING,
        own,
        max_age=60,
        path=MLFLOW.path,
        httponly=True,
        samesite="lax",
        secure=request.url.scheme == "https",
    )
    return answer


async def _is_logged_in(request: Request) -> bool:
    auth: Authenticator = request.app.state.auth
    try:
        token = MLFLOW.token(request)
        if token is not None:
            await auth.of_pages(token, MLFLOW.label)
    except (Forbidden, Unauthenticated):
        return False
    return token is not None


def _is_page(to: str) -> bool:
    path = to.partition("#")[0].partition("?")[0]
    is_plain = "//" not in path and "\\" not in to and to.isprintable()
    return path.startswith(f"{MLFLOW.path}/") and is_plain and path != f"{MLFLOW.path}/enter"


@router.api_route(
    "/mlflow/{path:path}",
    methods=list(passing.METHODS),
    include_in_schema=False,
)
async def pass_on(path: str, request: Request, visitor: Visitor, settings: SettingsOf) -> Response:
    """MLflow's pages, and its REST API for `MLFLOW_TRACKING_URI=<service>/mlflow`. Browsers are led to the
    pages' own host name, where they have one."""
    # The raw path: escaped characters stay escaped.
    raw = request.scope.get("raw_path", b"").decode("latin-1").partition("?")[0]
    if visitor is None:
        own = MLFLOW.elsewhere(request)
        if own is not None and _wants_page(request) and "authorization" not in request.headers:
            query = f"?{request.url.query}" if request.url.query else ""
            there = f"{own}{raw or '/mlflow/'}{query}"
            answer = RedirectResponse(
                there, 302, headers={"Cache-Control": "no-store", "Vary": "Accept"}
            )
            MLFLOW.forget(answer, request)
            return answer
        if _wants_page(request):
            values = {"title": "MLflow", "cluster": settings.cluster_name}
            return _page("login", 401, refusal="", username="", **values)
        return mlflow_error(
            401,
            "not logged in: set MLFLOW_TRACKING_TOKEN to a token of the cluster, which "
            "`det dev auth-token` prints",
        )
    if not has_mlflow():
        if _wants_page(request):
            values = {"title": "MLflow", "cluster": settings.cluster_name}
            return _page("missing", 501, install=installation.command("mlflow"), **values)
        return mlflow_error(
            501,
            "MLflow is not installed beside the cluster's service; in its environment: "
            + installation.command("mlflow"),
        )
    below = raw.removeprefix("/mlflow/") if raw.startswith("/mlflow/") else path
    if (nothing := passing.nothing(request.method, path)) is not None:
        return JsonResponse(nothing)
    if passing.is_closed(request.method, path) or passing.is_closed(request.method, below):
        return mlflow_error(403, passing.CLOSED)
    return await _passed_on(below, request, visitor)


async def _passed_on(path: str, request: Request, visitor: Principal) -> Response:
    server: MlflowServer = request.app.state.mlflow
    repeatable = passing.only_reads(request.method, path)
    body = await request.body() if repeatable else request.stream()
    pid = server.pid
    try:
        return await _asked(path, request, visitor, body)
    except httpx.TransportError as error:
        # The server was killed just now: a request that only reads is repeated at the next one.
        if not (repeatable and await server.has_ended(pid)):
            raise Unavailable(f"MLflow's server did not answer: {type(error).__name__}") from error
    try:
        return await _asked(path, request, visitor, body)
    except httpx.TransportError as error:
        raise Unavailable(f"MLflow's server did not answer: {type(error).__name__}") from error


async def _asked(
    path: str, request: Request, visitor: Principal, body: bytes | AsyncIterator[bytes]
) -> Response:
    """Raises httpx.TransportError."""
    auth: Authenticator = request.app.state.auth
    server: MlflowServer = request.app.state.mlflow
    stack = contextlib.AsyncExitStack()
    try:
        client = await stack.enter_async_context(server.client())
        headers = passing.sent(request.headers)
        headers["x-determined-pass"] = stack.enter_context(auth.lend(visitor))
        headers["x-determined-user"] = visitor.username.encode("ascii", "replace").decode()
        headers["x-determined-seen"] = written(seen_by(visitor))
        headers["x-determined-service"] = _own_address(request)
        has_body = request.method not in ("GET", "HEAD")
        if request.method == "GET" and passing.is_artifact(path):
            headers[TAKES_PATH_HEADER] = "1"
        elif request.method == "PUT" and passing.is_artifact(path):
            assert not isinstance(body, bytes)
            file = await stack.enter_async_context(files.received(body, server.spool))
            headers[BODY_FILE_HEADER] = quote(str(file))
            headers.pop("content-length", None)
            body = b""
        query = f"?{request.url.query}" if request.url.query else ""
        asked = client.build_request(
            request.method, f"/{path}{query}", headers=headers, content=body if has_body else None
        )
        answer = await client.send(asked, stream=True)
        stack.push_async_callback(answer.aclose)
        returned = passing.returned(answer.headers, path)
        content = answer.aiter_raw()
        if (there := answer.headers.get(PATH_HEADER)) is not None:
            found = stack.enter_context(files.opened(unquote(there)))
            # It may have been replaced since.
            returned["content-length"] = str(os.fstat(found.fileno()).st_size)
            content = files.pieces(found)
    except FileNotFoundError:
        await stack.aclose()
        return mlflow_error(404, "the file not found: it was deleted this moment")
    except ClientDisconnect:
        await stack.aclose()
        return mlflow_error(400, "the file did not arrive whole")
    except BaseException:
        await stack.aclose()
        raise
    return Stream(
        content, answer.status_code, headers=returned, background=BackgroundTask(stack.aclose)
    )


def _own_address(request: Request) -> str:
    """The address at which this process listens, from the socket: headers of the client are not trusted."""
    host, port = request.scope.get("server") or ("127.0.0.1", 0)
    if host in ("0.0.0.0", "::"):
        host = "127.0.0.1"
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"
