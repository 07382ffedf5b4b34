"""What a notebook shows in place of an object: its facts, and a link to its page."""

from __future__ import annotations

import html
from collections.abc import Mapping
from typing import Any

from determined.common import printable

_MOST = 300


def table(title: str, page: str, facts: Mapping[str, Any]) -> str:
    """HTML: ``title`` as a link to the address ``page``, and a row for each fact that is not None.

    Texts of users are shown as texts, of each the first 300 characters.
    """
    rows = "".join(
        f"<tr><th>{_text(name)}</th><td>{_text(value)}</td></tr>"
        for name, value in facts.items()
        if value is not None
    )
    link = f'<a href="{html.escape(page)}" target="_blank" rel="noopener">{_text(title)}</a>'
    return f"<table><caption>{link}</caption>{rows}</table>"


def _text(value: Any) -> str:
    return html.escape(printable.cut(printable.one_line(str(value)), _MOST))
