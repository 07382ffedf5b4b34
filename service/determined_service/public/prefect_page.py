"""Prefect's page and its API behind the service's login: requests are passed on to Prefect's server."""

from __future__ import annotations

import contextlib
from typing import Annotated

import httpx
import orjson
from fastapi import Request
from starlette.background import BackgroundTask
from starlette.responses import PlainTextResponse, RedirectResponse, Response

from determined_service.access.basic import may_by_password
from determined_service.access.principal import Principal
from determined_service.access.rules import Action, authorise
from determined_service.access.targets import Kind, Target
from determined_service.access.visible import seen_by
from determined_service.base import hosts, pages
from determined_service.base.aside import aside
from determined_service.base.errors import (
    BadRequest,
    Forbidden,
    NotFound,
    TooLarge,
    Unauthenticated,
)
from determined_service.base.json import JsonResponse
from determined_service.base.pages import PREFECT_HOME
from determined_service.base.streams import Stream
from determined_service.prefect import visitors
from determined_service.prefect.visitors import PrefectServer
from determined_service.web.router import Router
from determined_service.web.state import SettingsOf

router = Router("Cluster")

Visitor = Annotated[Principal | None, may_by_password(Action.READ, Kind.CLUSTER)]

ANSWER_BYTES = 16 << 20
"""Of an answer that is read before it is passed on."""
_VERB = "change what Prefect has, or read its blocks, variables and settings, on"
_NO_HOST = (
    "Prefect's page needs a separate host name, and this address has none: set proxy_host in the service's "
    f"settings (docs/sit-down/proxy.md), or open {PREFECT_HOME}/ on the service's machine\n"
)


@router.get(PREFECT_HOME, include_in_schema=False)
async def without_slash(visitor: Visitor) -> Response:
    """The page's address ends with a slash."""
    return RedirectResponse(f"{PREFECT_HOME}/", 307)


@router.api_route(
    f"{PREFECT_HOME}/{{path:path}}", methods=list(visitors.METHODS), include_in_schema=False
)
async def ask_prefect(
    path: str, request: Request, visitor: Visitor, settings: SettingsOf
) -> Response:
    """Prefect's page, at its own host name, and its REST API: ``PREFECT_API_URL=<service>/prefect/api`` with
    ``PREFECT_API_AUTH_STRING=user:password`` or ``PREFECT_API_KEY=<token>``.
    """
    if settings.prefect_api_url is None:
        raise NotFound("this cluster has no Prefect")
    host = request.headers.get("host", "")
    is_here = pages.is_own_host(settings, hosts.PREFECT, host)
    raw = request.scope.get("raw_path", b"").decode("latin-1").partition("?")[0]
    below = raw.removeprefix(f"{PREFECT_HOME}/")
    if not visitors.is_plain(path, raw):
        raise BadRequest("the address must not hold `..`, `//`, `#` or a backslash")
    query = f"?{request.url.query}" if request.url.query else ""
    if visitors.is_page(path) and not is_here:
        own = pages.elsewhere(settings, hosts.PREFECT, host)
        if own is None:
            return PlainTextResponse(_NO_HOST, 404)
        return RedirectResponse(f"{own}/{below}{query}", 302, {"Cache-Control": "no-store"})
    sees_all = visitor is not None and visitor.admin
    if visitor is None:
        if not visitors.is_for_all(request.method, path):
            return _refusal(settings.cluster_name, is_here)
    elif seen_by(visitor) is not None:
        raise Forbidden(
            "Prefect's pages know no workspaces, and show everybody's runs: only who may look into all "
            "workspaces may open them (an administrator, or a role that is assigned without a workspace)"
        )
    elif not sees_all and not visitors.may_look(request.method, path):
        authorise(visitor, Action.ADMINISTER, Target(Kind.CLUSTER), _VERB)
    own = f"{request.url.scheme}://{host}"
    return await _passed_on(request, below + query, path, own, sees_all)


def _refusal(cluster: str, is_here: bool) -> Response:
    refusal = Unauthenticated(
        "not logged in: a user and a password of this cluster (PREFECT_API_AUTH_STRING=user:password), or a "
        "token (PREFECT_API_KEY), which `det dev auth-token` prints"
    )
    answer = JsonResponse({"message": refusal.message}, refusal.status)
    if is_here:
        realm = "".join(c for c in cluster if c.isascii() and c.isprintable() and c not in '"\\')
        answer.headers["WWW-Authenticate"] = f'Basic realm="cluster {realm}", charset="UTF-8"'
    return answer


async def _passed_on(
    request: Request, target: str, path: str, own: str, sees_all: bool
) -> Response:
    server: PrefectServer = request.app.state.prefect_server
    body = None if request.method in ("GET", "HEAD") else await request.body()
    async with contextlib.AsyncExitStack() as stack:
        answer = await stack.enter_async_context(
            server.ask(request.method, target, visitors.sent(request.headers, path), body)
        )
        headers = visitors.returned(answer.headers)
        is_json = answer.headers.get("content-type", "").startswith("application/json")
        settles = visitors.is_settings(path) and answer.is_success
        if is_json and (settles or not sees_all):
            text = await _whole(answer)
            return await aside(
                len(text), _rewritten, text, own if settles else None, answer.status_code
            )
        kept = stack.pop_all()
    return Stream(
        answer.aiter_raw(),
        answer.status_code,
        headers=headers,
        background=BackgroundTask(kept.aclose),
    )


async def _whole(answer: httpx.Response) -> bytes:
    found = bytearray()
    async for part in answer.aiter_bytes():
        found += part
        if len(found) > ANSWER_BYTES:
            raise TooLarge(
                f"Prefect's answer has more than {ANSWER_BYTES >> 20} MiB: ask for fewer at a time"
            )
    return bytes(found)


def _rewritten(text: bytes, own: str | None, status: int) -> Response:
    found = orjson.loads(text)
    found = visitors.without_secrets(found) if own is None else visitors.page_settings(found, own)
    headers = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
    return JsonResponse(found, status, headers=headers)
