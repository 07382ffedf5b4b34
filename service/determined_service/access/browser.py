"""Logins of browsers for pages: the service's own, and MLflow's, whose scripts send no header.

Elsewhere a token is a header, because a cookie is sent with the requests of every page. Here it may be a
cookie that

* lies at a host name that these pages have for themselves, where they have one, and counts there alone: a
  browser sends a cookie to every port of its host name, whichever program listens there;
* no script reads, and no request of another site's page takes along but an address that a person opens
  (``SameSite=Lax``). A page at another port of the same host name is of the same site, so each request must
  say that it comes from a page of ours, or that a person opens an address at the top of a window
  (``Sec-Fetch-*``; ``Origin`` where the browser sends no such header);
* names a separate session, which opens only these pages (:data:`~determined_service.access.sessions.PAGES`).
"""

# Without `from __future__ import annotations`: FastAPI reads the annotations of `__call__` as they are.

from dataclasses import dataclass
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
from determined_service.base import hosts, pages
from determined_service.base.errors import Forbidden, Unauthenticated
from determined_service.base.settings import Settings

_READING = ("GET", "HEAD", "OPTIONS")


@dataclass(frozen=True)
class PagesLogin:
    """The login of a browser at the pages ``label`` (one of ``hosts.PAGES``), which are below ``path``."""

    label: str
    path: str
    cookie: str

    def elsewhere(self, request: Request) -> str | None:
        """The address, without a path, at which a browser finds these pages; None: it is there."""
        settings: Settings = request.app.state.settings
        return pages.elsewhere(settings, self.label, request.headers.get("host", ""))

    def token(self, request: Request) -> str | None:
        """The cookie of a browser that asks a page of ours, at its place; None: it has none.

        Raises Forbidden where the page of another origin may be behind the request.
        """
        token = None if self.elsewhere(request) else request.cookies.get(self._name(request))
        if token:
            require_own_page(request)
        return token or None

    def keep(self, answer: Response, request: Request, token: str) -> None:
        """The browser sends ``token``, of :func:`~determined_service.access.sessions.open_pages`, from now
        on."""
        is_secure = request.url.scheme == "https"
        answer.set_cookie(
            self._name(request),
            token,
            max_age=int(PAGES_LIFE.total_seconds()),
            # The attributes that the prefix of the name requires.
            path="/" if is_secure else self.path,
            httponly=True,
            samesite="lax",
            secure=is_secure,
        )

    def forget(self, answer: Response, request: Request) -> None:
        """The browser sends no token of these pages any more."""
        is_secure = request.url.scheme == "https"
        answer.delete_cookie(
            self._name(request), path="/" if is_secure else self.path, secure=is_secure
        )

    def _name(self, request: Request) -> str:
        return f"{hosts.SECURE}{self.cookie}" if request.url.scheme == "https" else self.cookie


FRONT = PagesLogin(hosts.FRONT, pages.FRONT_HOME, hosts.FRONT_COOKIE)
MLFLOW = PagesLogin(hosts.MLFLOW, "/mlflow", "determined-session")


class MayInBrowser(Rule):
    """As :class:`~determined_service.access.dependencies.May`; None: nobody is logged in."""

    async def __call__(self, request: Request, _: Bearer = None) -> Principal | None:
        try:
            subject = await _asker(request)
        except Unauthenticated:
            return None
        authorise(subject, self.action, Target(self.kind), self.verb)
        self.narrow()
        return subject


async def _asker(request: Request) -> Principal:
    token = None if "authorization" in request.headers else MLFLOW.token(request)
    if token is None:
        return await asker(request)
    auth: Authenticator = request.app.state.auth
    found = await auth.of_pages(token, MLFLOW.label)
    count(request, found)
    return found


def require_own_page(request: Request) -> None:
    """Raises Forbidden where the page of another origin may be behind the request: a browser adds the
    visitor's login to the requests of every page."""
    if not is_of_ours(request):
        raise Forbidden(
            "this request comes from another page, which may read and change nothing here"
        )


def is_of_ours(request: Request) -> bool:
    """True if a page of the same origin sends this request; a read may also be an address that a person
    opens."""
    reads = request.method in _READING
    site = request.headers.get("sec-fetch-site")
    if site is not None:
        where = (request.headers.get("sec-fetch-mode"), request.headers.get("sec-fetch-dest"))
        opens = where == ("navigate", "document")
        return site == "same-origin" or (reads and (site == "none" or opens))
    origin = request.headers.get("origin")
    if origin is None:
        return reads
    return urlsplit(origin).netloc == request.headers.get("host")


def may_in_browser(action: Action, kind: Kind, verb: str = "") -> Any:
    """For ``Annotated[Principal | None, may_in_browser(…)]``."""
    return Depends(MayInBrowser(action, kind, verb))
