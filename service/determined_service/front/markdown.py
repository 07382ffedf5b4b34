"""Notes of users, in Markdown, as HTML."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from markdown_it import MarkdownIt
from markdown_it.token import Token
from markupsafe import Markup

from determined.common import printable
from determined_service.base.aside import aside

MOST_CHARACTERS = 20_000
"""Rendering 500,000 characters of nothing but brackets takes ten seconds, and others wait."""
_HEADINGS = {"h1": "h3", "h2": "h4", "h3": "h5", "h4": "h6", "h5": "h6"}
"""A page has headings of its own above those of a note."""


@cache
def _parser() -> MarkdownIt:
    """Without HTML, and without images: an image's address would tell another host who reads the note."""
    return MarkdownIt("commonmark", {"html": False}).enable("table").disable("image")


def _html(text: str) -> Markup:
    parser = _parser()
    tokens = parser.parse(printable.plain(text.replace("\r\n", "\n")))
    _adapt(tokens)
    return Markup(parser.renderer.render(tokens, parser.options, {}))


def _adapt(tokens: Sequence[Token]) -> None:
    for token in tokens:
        token.tag = _HEADINGS.get(token.tag, token.tag)
        if token.type == "link_open":
            token.attrSet("rel", "noopener noreferrer nofollow")
        # The policy of pages forbids styles in elements: columns of tables have them.
        token.attrs.pop("style", None)
        _adapt(token.children or ())


async def html(text: str) -> Markup:
    """The HTML of a note, which holds no HTML of its writer's; a note that is too long stays as it was
    written."""
    if len(text) > MOST_CHARACTERS:
        return Markup('<pre tabindex="0">{}</pre>').format(printable.plain(text))
    return await aside(len(text) * 4, _html, text)
