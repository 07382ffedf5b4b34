"""Forms that pages send."""

from __future__ import annotations

from urllib.parse import parse_qsl

from determined.common.wire import limits
from determined_service.base.errors import BadRequest
from determined_service.front.visits import Visit, require_form


class Form:
    """The fields of a form, each with its values in order."""

    def __init__(self, pairs: list[tuple[str, str]]) -> None:
        self._values: dict[str, list[str]] = {}
        for name, value in pairs:
            self._values.setdefault(name, []).append(value)

    def text(self, name: str, default: str | None = None) -> str:
        """The value of a field. Raises BadRequest when there is none, and no ``default``."""
        found = self._values.get(name)
        if found:
            return found[-1]
        if default is None:
            raise BadRequest(f"the field {name} is missing: open the page again, and send its form")
        return default

    def texts(self, name: str) -> list[str]:
        """All values of a field."""
        return self._values.get(name, [])

    def numbers(self, name: str) -> list[int]:
        """All values of a field of ids. Raises BadRequest."""
        found = self.texts(name)
        for one in found:
            if not (one.isascii() and one.isdigit() and len(one) < 10):
                raise BadRequest(f"{name}: {one[:40]!r} is not an id")
        return [int(one) for one in found]


async def read_form(visit: Visit) -> Form:
    """The form of a page of this session. Raises Forbidden, BadRequest."""
    body = (await visit.request.body()).decode("utf-8", "replace")
    try:
        pairs = parse_qsl(body, keep_blank_values=True, max_num_fields=limits.MANY_IDS)
    except ValueError as error:
        raise BadRequest(f"the form has more than {limits.MANY_IDS} fields") from error
    form = Form(pairs)
    require_form(visit, form.text("csrf", ""))
    return form
