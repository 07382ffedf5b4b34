"""Who asks from a browser: pages that a program of somebody else's makes, and whose scripts send no header.

Elsewhere a token is a header, because a cookie goes with whatever any page asks for. Here it may be a
cookie that

* only addresses below :data:`PATH` get, and no script reads;
* the browser sends with requests of our own site alone (``SameSite=Strict``). A page at another port of the
  same host name is of the same site, so each request must say that it comes from a page of ours, or that a
  person opens an address (``Sec-Fetch-Site``; ``Origin`` where the browser sends no such header);
* stands for a session of its own, which opens these pages and nothing else
  (:data:`~determined_service.access.sessions.PAGES`).
"""

# Without `from __future__ import annotations`: FastAPI reads the annotations of `__call__` as they are.

from typing import Any
from urllib.parse import urlsplit

from fastapi import Depends, Request
from starlette.responses import Response

from determined_service.access.authenticator import Authenticator
from determined_service.access.dependencies import Bearer, Rule, asker, count
from determined_service.access.principal import Principal
from determined_service.access.rules import Action, authorise
from determined_service.access.sessions import PAGES_LIFE
from determined_service.access.targets import Kind, Target
from determined_service.base.errors import Forbidden, Unauthenticated

PATH = "/mlflow"
COOKIE = "determined-session"
_READING = ("GET", "HEAD", "OPTIONS")


class MayInBrowser(Rule):
    """As :class:`~determined_service.access.dependencies.May`; None: nobody is logged in."""

    async def __call__(self, request: Request, _: Bearer = None) -> Principal | None:
        try:
            subject = await _asker(request)
        except Unauthenticated:
            return None
        authorise(subject, self.action, Target(self.kind), self.verb)
        return subject


async def _asker(request: Request) -> Principal:
    token = request.cookies.get(COOKIE)
    if "authorization" in request.headers or not token:
        return await asker(request)
    if not _is_of_ours(request):
        raise Forbidden(
            "this request comes from another page, which may read and change nothing here"
        )
    auth: Authenticator = request.app.state.auth
    found = await auth.of_pages(token)
    count(request, found)
    return found


def _is_of_ours(request: Request) -> bool:
    reads = request.method in _READING
    site = request.headers.get("sec-fetch-site")
    if site is not None:
        opens = request.headers.get("sec-fetch-mode") == "navigate"
        return site == "same-origin" or (reads and (site == "none" or opens))
    origin = request.headers.get("origin")
    if origin is None:
        return reads
    return urlsplit(origin).netloc == request.headers.get("host")


def may_in_browser(action: Action, kind: Kind, verb: str = "") -> Any:
    """For ``Annotated[Principal | None, may_in_browser(…)]``."""
    return Depends(MayInBrowser(action, kind, verb))


def keep(answer: Response, request: Request, token: str) -> None:
    """The browser sends ``token``, of :func:`~determined_service.access.sessions.open_pages`, from now on."""
    answer.set_cookie(
        COOKIE,
        token,
        max_age=int(PAGES_LIFE.total_seconds()),
        path=PATH,
        httponly=True,
        samesite="strict",
        secure=request.url.scheme == "https",
    )
