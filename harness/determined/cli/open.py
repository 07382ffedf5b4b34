"""``det open``"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated
from urllib.parse import quote, urljoin

import typer

from determined.cli.errors import talk
from determined.cli.launched.start import NoBrowser
from determined.cli.printing import echo
from determined.cli.state import state
from determined.common.wire import pages

if TYPE_CHECKING:
    from determined.common.api import Session

_NOUNS = {"experiment": "experiments", "trial": "trials", "model": "models", "task": "tasks"}
_ADVICE = (
    "write `det open 7` for experiment 7, `det open trial 12`, `det open model NAME`, `det open task ID`, "
    "or the address of a page, such as `det open cluster`"
)

app = typer.Typer(add_completion=False)


@app.command("open")
def open_page(
    ctx: typer.Context,
    what: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[EXPERIMENT|trial ID|model NAME|task ID|PAGE]",
            help="what is shown; default: the first page",
        ),
    ] = None,
    no_browser: NoBrowser = False,
) -> None:
    """Open a page of the cluster in the browser, which is logged in there then.

    The address is good once and for a minute.
    """
    import webbrowser

    session = state(ctx).session
    url = address(session, path_of(session, what or []))
    if not no_browser and webbrowser.open(url):
        talk(f"{url.partition('?')[0].removesuffix('/enter')}/ is open in the browser")
        return
    if not no_browser:
        talk("there is no browser here: open this address within a minute, it is good once")
    echo(url)


def path_of(session: Session, words: list[str]) -> str:
    """The address of a page without host name. Raises a usage error."""
    match words:
        case []:
            return f"{pages.HOME}/"
        case [one] if one.isascii() and one.isdigit():
            return f"{pages.HOME}/experiments/{one}"
        case [one] if one.startswith(f"{pages.HOME}/"):
            return one
        case [one] if one not in _NOUNS:
            return f"{pages.HOME}/{quote(one.strip('/'), safe='/?=&')}"
        case ["model", name]:
            found = session.get(f"/api/v1/models/{quote(name, safe='')}")["model"]
            return f"{pages.HOME}/models/{found['id']}"
        case [noun, name] if noun in _NOUNS:
            return f"{pages.HOME}/{_NOUNS[noun]}/{quote(name, safe='')}"
    raise typer.BadParameter(f"{' '.join(words)!r} is not a page: {_ADVICE}")


def address(session: Session, path: str) -> str:
    """An address that opens the page at ``path`` in a browser that is logged in there then; it is good once,
    and for a minute. Raises ForbiddenException for an access token."""
    url = session.post("/api/v1/pages/tickets", json={"to": path})["url"]
    return urljoin(session.master, url)
