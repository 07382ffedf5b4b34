"""Pages from templates: :func:`page`, and :class:`PageRoute`, which shows refusals as pages."""

from __future__ import annotations

import datetime
import functools
import math
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlencode

import jinja2
from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse
from fastapi.routing import APIRoute
from markupsafe import Markup
from starlette.responses import RedirectResponse, Response

from determined.__version__ import __version__
from determined.common import printable
from determined_service.base.errors import ApiError, BadRequest
from determined_service.base.pages import FRONT_HOME, is_front, of_service
from determined_service.front import assets
from determined_service.front.visits import Elsewhere, LoginNeeded, Visit
from determined_service.web.router import Router

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self' data:; connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "Cache-Control": "no-store",
    # Without a referrer, browsers send forms with "Origin: null".
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Opener-Policy": "same-origin",
}
NOTHING = "\N{EN DASH}"
"""In place of a value that is not there."""
SAID = "determined-said"
"""The cookie with the sentence that the next page shows: what an action did."""
SAID_BYTES = 1500
LOOK = "determined-look"
"""The cookie with the reader's theme: ``light`` or ``dark``; else the browser's own choice."""


def finalize(value: Any) -> Any:
    """A value as templates print it: control characters and marks of writing direction as text."""
    if isinstance(value, str) and not isinstance(value, Markup):
        return printable.plain(value)
    return "" if value is None else value


def number(value: Any, digits: int = 5) -> str:
    """A metric's value with so many significant digits; a dash where there is none."""
    if value is None or value == "":
        return NOTHING
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if isinstance(value, int) or (value == int(value) if math.isfinite(value) else False):
        return f"{int(value):,}" if abs(value) < 1e15 else f"{value:.{digits}g}"
    return f"{value:.{digits}g}"


def size(value: Any) -> str:
    """Bytes in the largest unit of which there is one."""
    left = float(value or 0)
    for unit in ("B", "kB", "MB", "GB"):
        if abs(left) < 1000:
            return f"{left:.0f} {unit}" if unit == "B" else f"{left:.1f} {unit}"
        left /= 1000
    return f"{left:.1f} TB"


def duration(seconds: Any) -> str:
    """Seconds in the two largest units: ``1 h 5 min``; a dash for None."""
    if seconds is None:
        return NOTHING
    left = max(0, int(seconds))
    if left < 60:
        return f"{left} s"
    parts = []
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60), ("s", 1)):
        count, left = divmod(left, length)
        if count:
            parts.append(f"{count} {unit}")
        elif parts:
            break
    return " ".join(parts[:2])


def when(value: str | None) -> Markup:
    """A moment as a ``time`` element, whose text the script replaces by the reader's own time."""
    if not value:
        return Markup(NOTHING)
    found = datetime.datetime.fromisoformat(value)
    shown = found.strftime("%Y-%m-%d %H:%M:%S UTC")
    return Markup('<time datetime="{}" title="{}">{}</time>').format(value, shown, shown)


def state(value: str | None) -> str:
    """A state's name without its prefix: ``STATE_RUNNING`` is ``RUNNING``."""
    return (value or "").removeprefix("STATE_")


def tidy(text: Any) -> str:
    """A text in one line, as long as a cell of a table may be."""
    return printable.cut(printable.one_line(str(text)), 200)


def segment(text: Any) -> str:
    """A text as one part of an address."""
    return quote(str(text), safe="")


def addresses(base: str, **given: Any) -> Callable[..., str]:
    """Addresses of one list's parts: ``base`` with the parameters ``given``, of which a call may change some.

    Parameters without a value are left out.
    """

    def address(**changed: Any) -> str:
        left = {name: value for name, value in {**given, **changed}.items() if value}
        return f"{base}?{urlencode(left, doseq=True)}" if left else base

    return address


@functools.cache
def _environment() -> jinja2.Environment:
    found = jinja2.Environment(
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=finalize,
        auto_reload=False,
    )
    filters = (number, size, duration, when, state, tidy, segment)
    found.filters |= {one.__name__: one for one in filters}
    found.globals |= {"asset": assets.address, "home": FRONT_HOME, "version": __version__}
    return found


def render(name: str, **values: Any) -> str:
    """The template ``name`` with these values."""
    return _environment().get_template(f"{name}.html").render(**values)


def page(
    name: str,
    request: Request,
    visit: Visit | None = None,
    *,
    status: int = 200,
    live: str = "",
    command: str = "",
    **values: Any,
) -> HTMLResponse:
    """The page of the template ``name``.

    Args:
        live: the topics (:mod:`~determined_service.front.stream`) that make the page fetch itself again.
        command: the ``det`` command that prints what the page shows.
    """
    said = request.cookies.get(SAID, "")
    look = request.cookies.get(LOOK, "")
    text = render(
        name,
        visit=visit,
        csrf="" if visit is None else visit.csrf,
        user=None if visit is None else visit.subject.username,
        cluster=request.app.state.settings.cluster_name,
        service=of_service(request.app.state.settings),
        here=_here(request),
        path=request.url.path,
        said=_read_said(said),
        theme=look if look in ("light", "dark") else "",
        live=live,
        command=command,
        **values,
    )
    answer = HTMLResponse(text.encode("utf-8", "replace"), status, headers=HEADERS)
    if said:
        answer.delete_cookie(SAID, path=FRONT_HOME)
    return answer


def back(request: Request, to: str, said: str = "") -> Response:
    """Leads to the page ``to`` (an address below ours, or the first page), which says ``said``."""
    safe = to if is_front(to) else f"{FRONT_HOME}/"
    answer = RedirectResponse(safe, 303, headers={"Cache-Control": "no-store"})
    if said:
        text = quote(said[:SAID_BYTES])[: 2 * SAID_BYTES]
        answer.set_cookie(SAID, text, max_age=60, path=FRONT_HOME, httponly=True, samesite="strict")
    return answer


def _here(request: Request) -> str:
    query = f"?{request.url.query}" if request.url.query else ""
    return f"{request.url.path}{query}"


def _read_said(text: str) -> str:
    return unquote(text, errors="replace")[:SAID_BYTES]


class PageRoute(APIRoute):
    """A route whose refusals are pages."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        answer = super().get_route_handler()

        async def shown(request: Request) -> Response:
            try:
                return await answer(request)
            except Elsewhere as place:
                return _elsewhere(request, place.address)
            except LoginNeeded:
                return _login(request)
            except RequestValidationError:
                refusal: ApiError = BadRequest(
                    "the address of this page has a value that it cannot have"
                )
            except ApiError as error:
                refusal = error
            return refused(request, refusal)

        return shown


def _elsewhere(request: Request, address: str) -> Response:
    if request.method != "GET":
        return refused(request, BadRequest(f"these pages are at {address}{FRONT_HOME}/"))
    return RedirectResponse(f"{address}{_here(request)}", 302, {"Cache-Control": "no-store"})


def _login(request: Request) -> Response:
    if request.method != "GET" or "text/event-stream" in request.headers.get("accept", ""):
        return page("login", request, status=401, to=f"{FRONT_HOME}/", refusal="", username="")
    to = quote(_here(request), safe="")
    return RedirectResponse(f"{FRONT_HOME}/login?to={to}", 302, {"Cache-Control": "no-store"})


def refused(request: Request, refusal: ApiError) -> HTMLResponse:
    """The page that says why there is nothing to see."""
    titles = {
        403: "You may not do this",
        404: "There is nothing here",
        429: "Too many requests at once",
    }
    return page(
        "refused",
        request,
        status=refusal.status,
        title=titles.get(refusal.status, "This did not work"),
        message=refusal.message,
    )


class PageRouter(Router):
    """The router of a module of pages, below :data:`~determined_service.base.pages.FRONT_HOME`."""

    def __init__(self) -> None:
        super().__init__("Pages", FRONT_HOME)
        self.route_class = PageRoute
