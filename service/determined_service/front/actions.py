"""Actions of pages: a form becomes one request to the REST API, and the next page says what happened.

:func:`offer` makes the routes for the actions of a module; ``parts.html`` has the macro for their forms.
"""

# Without `from __future__ import annotations`: FastAPI reads the annotations of `act` as they are.

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from fastapi import Request
from starlette.responses import Response

from determined_service.base.errors import ApiError
from determined_service.front.forms import Form, read_form
from determined_service.front.rendering import PageRouter, back
from determined_service.front.visits import Visit, Visitor


@dataclass(frozen=True)
class FormAction:
    """One request to REST.

    Attributes:
        path: below ``/api/v1``, with fields of the form in braces.
        said: the sentence that the next page shows, with fields in braces.
        body: makes the request's body from the form; None: the request has none.
        after: the page that follows, with fields in braces; empty: the one that the form came from.
    """

    method: str
    path: str
    said: str
    body: Callable[[Form], Any] | None = None
    after: str = ""

    async def run(self, visit: Visit, form: Form) -> Any:
        """Sends it. Raises ApiError."""
        body = {} if self.body is None else self.body(form)
        return await visit.send(self.method, _filled(self.path, form, quoted=True), body)


class _Fields(dict[str, str]):
    def __init__(self, form: Form, quoted: bool) -> None:
        self._form, self._quoted = form, quoted

    def __missing__(self, name: str) -> str:
        value = self._form.text(name)
        return quote(value, safe="") if self._quoted else value


def _filled(text: str, form: Form, *, quoted: bool) -> str:
    return text.format_map(_Fields(form, quoted))


def offer(router: PageRouter, actions: dict[str, FormAction]) -> None:
    """Each action gets the route ``POST /det/actions/NAME``."""
    for name, action in actions.items():
        router.add_api_route(
            f"/actions/{name}", _handler(action), methods=["POST"], include_in_schema=False
        )


def _handler(action: FormAction) -> Callable[..., Awaitable[Response]]:
    async def act(request: Request, visit: Visitor) -> Response:
        form = await read_form(visit)
        to = form.text("to", "")
        try:
            await action.run(visit, form)
        except ApiError as refusal:
            return back(request, to, refusal.message)
        if action.after:
            to = _filled(action.after, form, quoted=True)
        return back(request, to, _filled(action.said, form, quoted=False))

    return act
