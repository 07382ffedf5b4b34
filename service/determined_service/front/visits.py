"""A visit: one request of a browser that is logged in, and what it asks the REST API for.

Pages ask in the process, through the whole application: each rule of access, each view of what a user sees
and each limit holds for pages without being written again, and a page can show nothing that REST does not
answer. The token of these requests is lent for the time of the visit and worthless after it.
"""

# Without `from __future__ import annotations`: FastAPI reads the annotations of `__call__` as they are.

import asyncio
import hashlib
import hmac
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Annotated, Any

import httpx
import orjson
from fastapi import Depends, FastAPI, Request

from determined_service.access.authenticator import Authenticator
from determined_service.access.browser import FRONT
from determined_service.access.dependencies import Admission, Rule, count
from determined_service.access.principal import Principal
from determined_service.access.rules import Action, authorise
from determined_service.access.targets import Id, Kind, Target
from determined_service.base import hosts
from determined_service.base.aside import aside
from determined_service.base.errors import ApiError, Forbidden, Unauthenticated, of_answer
from determined_service.base.pages import is_own_host
from determined_service.base.settings import Settings

PARSED_INLINE = 128 * 1024
"""Longer answers are read beside the event loop."""
Parameters = dict[str, Any] | list[tuple[str, Any]]


class LoginNeeded(Exception):
    """Nobody is logged in: the login page, and then the page that was asked for."""


class Elsewhere(Exception):
    """These pages have a host name of their own: ``address``, without a path."""

    def __init__(self, address: str) -> None:
        self.address = address


@dataclass(frozen=True, slots=True)
class Visit:
    """One request of the user ``subject``. ``csrf``: what each form of the page carries."""

    request: Request
    subject: Principal
    csrf: str
    _client: httpx.AsyncClient

    async def get(self, path: str, parameters: Parameters | None = None) -> Any:
        """The JSON of ``GET /api/v1{path}``. Raises the ApiError that REST answers."""
        return await self.send("GET", path, parameters=parameters)

    async def all(self, *paths: str) -> list[Any]:
        """As :meth:`get`, for several at a time."""
        return await asyncio.gather(*(self.get(path) for path in paths))

    async def maybe(self, path: str, parameters: Parameters | None = None) -> Any:
        """As :meth:`get`; None where REST refuses it, for parts of a page that not everybody may see."""
        try:
            return await self.get(path, parameters)
        except ApiError:
            return None

    async def send(
        self, method: str, path: str, body: Any = None, parameters: Parameters | None = None
    ) -> Any:
        """The JSON of the answer to ``method /api/v1{path}``; None: it is empty.

        Raises the ApiError that REST answers.
        """
        answer = await self._ask(method, path, body, parameters)
        text = answer.content
        if not text:
            return None
        if len(text) > PARSED_INLINE:
            return await aside(len(text), orjson.loads, text)
        return orjson.loads(text)

    async def lines(self, path: str, parameters: Parameters | None = None) -> list[Any]:
        """What the lines of a streamed answer hold (each ``{"result": …}``).

        Raises the ApiError that REST answers, also in its last line.
        """
        answer = await self._ask("GET", path, None, parameters)
        found = await aside(len(answer.content), _lines, answer.content)
        if found and "error" in found[-1]:
            last = found[-1]["error"]
            raise of_answer(last.get("httpCode", 500), last.get("message", "the answer broke off"))
        return [line["result"] for line in found]

    def may(self, action: Action, kind: Kind) -> bool:
        """True if the visitor may do this to things of ``kind`` at all."""
        try:
            authorise(self.subject, action, Target(kind))
        except ApiError:
            return False
        return True

    async def permitted(self, action: Action, kind: Kind, ids: Collection[Id]) -> set[Id]:
        """Those of ``ids`` to which the visitor may do this."""
        owners = self.request.app.state.owners
        admission = Admission(self.subject, action, kind, "", owners)
        _, refused = await admission.refusals(list(ids))
        return set(ids) - refused.keys()

    async def require(self, action: Action, kind: Kind, one: Id, verb: str) -> None:
        """Raises NotFound or Forbidden where the visitor may not do this to ``one``, as REST does. ``verb``:
        the word for it in the refusal."""
        await Admission(self.subject, action, kind, verb, self.request.app.state.owners).admit(one)

    async def _ask(
        self, method: str, path: str, body: Any, parameters: Parameters | None
    ) -> httpx.Response:
        asked = self._client.request(
            method,
            f"/api/v1{path}",
            params=parameters,
            content=None if body is None else orjson.dumps(body),
        )
        # In a task of its own: what a request notes about itself is not the page's.
        answer = await asyncio.create_task(asked)
        if answer.status_code >= 400:
            raise refusal_of(answer.status_code, answer.content)
        return answer


def _lines(text: bytes) -> list[Any]:
    return [orjson.loads(line) for line in text.split(b"\n") if line]


def refusal_of(status: int, body: bytes) -> ApiError:
    """The refusal that an answer of REST with this body holds."""
    try:
        message = str(orjson.loads(body)["message"])
    except (ValueError, KeyError, TypeError):
        message = f"the service answered {status}"
    return of_answer(status, message)


class Visiting(Rule):
    """The dependency behind :data:`Visitor`: a browser that is logged in, with its cookie.

    Raises LoginNeeded, Elsewhere, Forbidden.
    """

    def __init__(self) -> None:
        super().__init__(Action.READ, Kind.CLUSTER)

    async def __call__(self, request: Request) -> AsyncIterator[Visit]:
        token, subject = await visitor(request)
        count(request, subject)
        authorise(subject, self.action, Target(self.kind), self.verb)
        async with visit(request, subject, token) as found:
            yield found


Visitor = Annotated[Visit, Depends(Visiting())]


@asynccontextmanager
async def visit(request: Request, subject: Principal, token: str = "") -> AsyncIterator[Visit]:
    """The questions of ``request`` in the name of ``subject``. ``token``: of the session of pages."""
    app: FastAPI = request.app
    auth: Authenticator = app.state.auth
    with auth.lend(subject, token) as lent:
        client = httpx.AsyncClient(
            transport=httpx.ASGITransport(
                app=app,
                raise_app_exceptions=False,
                client=request.client or ("", 0),
            ),
            base_url="http://service",
            headers={
                "Authorization": f"Bearer {lent}",
                "Content-Type": "application/json",
                "Host": _host(request),
            },
            trust_env=False,
            timeout=None,
        )
        async with client:
            yield Visit(request, subject, csrf_of(request, token), client)


def _host(request: Request) -> str:
    """The host name at which the visitor's browser finds the service: answers hold addresses for it."""
    host = request.headers.get("host", "service")
    is_own = is_own_host(request.app.state.settings, hosts.FRONT, host)
    return host.partition(".")[2] if is_own else host


async def visitor(request: Request) -> tuple[str, Principal]:
    """The token and the user of the browser. Raises LoginNeeded, Elsewhere, Forbidden."""
    address = FRONT.elsewhere(request)
    if address is not None:
        raise Elsewhere(address)
    token = FRONT.token(request)
    if token is None:
        raise LoginNeeded
    try:
        return token, await request.app.state.auth.of_pages(token, FRONT.label)
    except Unauthenticated:
        raise LoginNeeded from None


def csrf_of(request: Request, token: str) -> str:
    """What the forms of this session carry: another site's page cannot know it."""
    settings: Settings = request.app.state.settings
    key = settings.agent_token.get_secret_value().encode()
    return hmac.new(key, b"forms of " + token.encode(), hashlib.sha256).hexdigest()[:40]


def require_form(visit: Visit, given: str) -> None:
    """Raises Forbidden where a form does not come from a page of this session."""
    if not hmac.compare_digest(given.encode("utf-8", "replace"), visit.csrf.encode()):
        raise Forbidden(
            "this form is of an earlier login, or of another page: open the page again, and send it "
            "from there"
        )
