"""Styles, scripts and the chart library, under addresses that name their content.

The files are ours, of a package that is installed beside the service, or of xterm.js: nothing comes from
another host.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
from dataclasses import dataclass
from pathlib import Path

from starlette.responses import Response

from determined_service.base.errors import NotFound
from determined_service.base.pages import FRONT_HOME
from determined_service.web.router import Router

router = Router("Pages", FRONT_HOME)

_FOLDER = Path(__file__).parent / "static"
_TYPES = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
_OURS = (
    "pages.css",
    "pages.js",
    "charts.js",
    "editor.js",
    "figures.js",
    "queue.js",
    "terminal.js",
    "trial.js",
    "icon.svg",
)
# Of npm's @xterm/xterm 5.5.0 and @xterm/addon-fit 0.10.0, with their license, as they were published
# (docs/inside/front.md says why they lie here).
_OF_XTERM = ("xterm.js", "xterm.css", "addon-fit.js")
_OF_UPLOT = {"uplot.js": "static/uPlot.iife.js", "uplot.css": "static/uPlot.min.css"}


@dataclass(frozen=True)
class Asset:
    """A file that pages load."""

    name: str
    content: bytes

    @functools.cached_property
    def address(self) -> str:
        digest = hashlib.sha256(self.content).hexdigest()[:12]
        return f"{FRONT_HOME}/assets/{digest}/{self.name}"


@functools.cache
def assets() -> dict[str, Asset]:
    """Every asset, by its name; without the chart library where it is not installed."""
    found = {name: _FOLDER / name for name in _OURS}
    found |= {name: _FOLDER / "xterm" / name for name in _OF_XTERM}
    uplot = importlib.util.find_spec("uplot")
    if uplot is not None and uplot.origin is not None:
        folder = Path(uplot.origin).parent
        found |= {name: folder / file for name, file in _OF_UPLOT.items()}
    return {name: Asset(name, path.read_bytes()) for name, path in found.items()}


def address(name: str) -> str:
    """The address of an asset; empty: a part of the chart library, which is not installed."""
    found = assets().get(name)
    return "" if found is None else found.address


@router.get("/assets/{digest}/{name}", include_in_schema=False)
async def read_asset(digest: str, name: str) -> Response:
    """The file; the login page needs it too, so it is for everybody."""
    found = assets().get(name)
    if found is None or found.address != f"{FRONT_HOME}/assets/{digest}/{name}":
        raise NotFound(f"there is no file {name} of this release: load the page again")
    return Response(
        found.content,
        media_type=_TYPES[Path(name).suffix],
        headers={
            "Cache-Control": "public, max-age=31536000, immutable",
            "X-Content-Type-Options": "nosniff",
            "Cross-Origin-Resource-Policy": "same-origin",
        },
    )
