"""Ways into a task's pages for browsers: an address that is good once, and a page that asks for the password.

The visitor's rights are checked there for each request (docs/sit-down/proxy.md); these say only who it is.
"""

from __future__ import annotations

import base64
import hashlib
from typing import Annotated
from urllib.parse import quote, urlsplit

import jinja2
from fastapi import Query, Request
from fastapi.responses import HTMLResponse
from pydantic import BaseModel, Field
from starlette.responses import RedirectResponse, Response

from determined_service.access import visits
from determined_service.access.authenticator import Authenticator
from determined_service.access.dependencies import TaskReader
from determined_service.access.logins import log_in
from determined_service.access.principal import USER, Principal
from determined_service.access.sessions import close_session
from determined_service.access.tokens import bearer_token
from determined_service.access.visible import seen_by
from determined_service.base.db import Database, seeing
from determined_service.base.errors import (
    BadRequest,
    Conflict,
    Forbidden,
    NotFound,
    TooManyRequests,
    Unauthenticated,
)
from determined_service.base.json import JsonResponse
from determined_service.base.pages import task_base, task_host
from determined_service.base.settings import Settings
from determined_service.proxy import names
from determined_service.proxy.decisions import require_way
from determined_service.proxy.entering import ENTER, is_path
from determined_service.proxy.names import Key
from determined_service.public.login import read_form
from determined_service.web.router import Router
from determined_service.web.state import Db, SettingsOf, Throttle

router = Router("Tasks")

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 26rem; margin: 4rem auto; padding: 0 1rem; }
label, input, button { display: block; width: 100%; box-sizing: border-box; font: inherit; }
input { margin: 0.25rem 0 1rem; padding: 0.4rem; }
button { padding: 0.5rem; }
.refused { color: #b00020; }
"""
_HASH = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
_PAGE = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined).from_string(
    """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Log in</title>
<style>{{ style | safe }}</style>
</head>
<body>
<h1>Log in</h1>
<p>To open task {{ key }} of cluster {{ cluster }}. Log in as with <code>det user login</code>.</p>
{% if refusal %}<p class="refused" role="alert">{{ refusal }}</p>{% endif %}
<form method="post">
<label for="username">User</label>
<input id="username" name="username" value="{{ username }}" autocomplete="username" autofocus>
<label for="password">Password</label>
<input id="password" name="password" type="password" autocomplete="current-password">
<button>Log in</button>
</form>
</body>
</html>
"""
)


class TaskVisit(BaseModel):
    """``port``: its name or number; empty: the task's default one. ``path``: what is opened there."""

    port: str = Field("", max_length=63)
    path: str = Field("/", max_length=4096)


def _key(task_id: str, port: str) -> Key:
    found = names.of_path(names.PREFIX + quote(f"{task_id}:{port}" if port else task_id).encode())
    if found is None:
        raise NotFound(f"task {task_id!r} does not exist")
    return found[0]


def _address(key: Key, request: Request, settings: Settings) -> str:
    """Raises Conflict where tasks have no host names."""
    host = request.headers.get("host", "").lower().encode("latin-1")
    found = names.own_address(key, task_host(settings), task_base(settings), host)
    if found is None:
        raise Conflict(
            "tasks have no separate host names at this address of the cluster, so browsers cannot open "
            "them safely: use `python -m determined.cli.tunnel`, open the service by a name of its own "
            "machine (localhost, for example through `ssh -L`), or have the service's setting proxy_host set"
        )
    return found


async def _ticket(db: Database, user: Principal, session: str, key: Key) -> str:
    """Raises NotFound or Forbidden where the user may not go."""
    async with db.tx() as conn:
        await require_way(conn, user, key)
        ticket = await visits.new_ticket(conn, session, key.task_id, key.port)
    if ticket is None:
        raise Unauthenticated("the session has ended: log in again")
    return ticket


def _way_in(address: str, ticket: str, path: str) -> str:
    return f"{address}{ENTER.decode()}?ticket={ticket}&next={quote(path, safe='/')}"


@router.post("/api/v1/tasks/{task_id}/visits")
async def new_visit(
    task_id: str, given: TaskVisit, request: Request, user: TaskReader, db: Db, settings: SettingsOf
) -> Response:
    """`url`: opens a port of the task in a browser that is logged in there then. It is good once, within a
    minute."""
    if user.kind != USER:
        raise Conflict(
            "only a user's session opens tasks in browsers; this is the token of a process"
        )
    if not is_path(given.path):
        raise BadRequest("path must begin with one slash")
    key = _key(task_id, given.port)
    address = _address(key, request, settings)
    auth: Authenticator = request.app.state.auth
    session = auth.session_of(bearer_token(request.headers))
    ticket = await _ticket(db, user, session, key)
    return JsonResponse({"url": _way_in(address, ticket, given.path)})


def _page(key: Key, address: str, settings: Settings, refusal: str = "", username: str = "") -> str:
    return _PAGE.render(
        style=_STYLE,
        key=str(key),
        cluster=settings.cluster_name,
        refusal=refusal,
        username=username,
    )


def _headers(address: str) -> dict[str, str]:
    origin = urlsplit(address)
    return {
        "Content-Security-Policy": f"default-src 'none'; style-src 'sha256-{_HASH}'; base-uri 'none'; "
        # Browsers count the address that the answer sends them to.
        f"form-action 'self' {origin.scheme}://{origin.netloc}; frame-ancestors 'none'",
        "Cache-Control": "no-store",
        # Without a referrer, browsers send the form with "Origin: null".
        "Referrer-Policy": "same-origin",
        "X-Content-Type-Options": "nosniff",
        "X-Frame-Options": "DENY",
    }


Task = Annotated[str, Query(max_length=300)]
Next = Annotated[str, Query(max_length=4096)]


def _wanted(task: str) -> Key:
    task_id, _, port = task.partition(":")
    return _key(task_id, port)


@router.get("/task-login")
async def login_page(
    request: Request, settings: SettingsOf, task: Task, next: Next = "/"
) -> Response:
    """A page that asks for user and password, and opens `task` (`<task>` or `<task>:<port>`)."""
    key = _wanted(task)
    address = _address(key, request, settings)
    return HTMLResponse(_page(key, address, settings), headers=_headers(address))


@router.get("/det/interactive/{task_id}/{rest:path}")
async def published_address(task_id: str, rest: str) -> Response:
    """Redirects a browser that Determined's published client opened to the page that asks for the
    password."""
    where = rest.rpartition("serviceAddr=")[2]
    if not (where.startswith(f"/proxy/{task_id}/") and is_path(where)):
        where = "/"
    login = f"/task-login?task={quote(str(_key(task_id, '')))}&next={quote(where, safe='/')}"
    return RedirectResponse(login, 303, headers={"Cache-Control": "no-store"})


@router.post("/task-login")
async def log_in_here(
    request: Request, db: Db, settings: SettingsOf, throttle: Throttle, task: Task, next: Next = "/"
) -> Response:
    """The page's form."""
    key = _wanted(task)
    address = _address(key, request, settings)
    login = await read_form(request)
    try:
        token, _ = await log_in(login, request, db, settings, throttle)
        auth: Authenticator = request.app.state.auth
        user = await auth.principal(token)
        try:
            with seeing(seen_by(user)):
                ticket = await _ticket(db, user, token, key)
        except (Forbidden, NotFound):
            async with db.tx() as conn:
                await close_session(conn, token)
            raise
    except (Unauthenticated, Forbidden, NotFound, TooManyRequests) as refusal:
        page = _page(key, address, settings, refusal.message, login.username)
        return HTMLResponse(page, refusal.status, headers=_headers(address))
    where = _way_in(address, ticket, next if is_path(next) else "/")
    return RedirectResponse(where, 303, headers={"Cache-Control": "no-store"})
