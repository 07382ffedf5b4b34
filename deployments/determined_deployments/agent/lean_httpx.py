"""Imports httpx without its command line: :func:`import_httpx`.

``import httpx`` imports ``httpx._main`` if click, rich and pygments are there: half of its time, and
40 to 65 ms of CPU for a starting agent. Nothing else is missing; only
``httpx.main()`` says that it is not installed.
"""

from __future__ import annotations

import sys

_COMMAND_LINE = "httpx._main"


def import_httpx() -> None:
    """Imports httpx, unless somebody has."""
    if "httpx" in sys.modules or _COMMAND_LINE in sys.modules:
        return
    sys.modules[_COMMAND_LINE] = None  # type: ignore[assignment]
    try:
        import httpx  # noqa: F401
    finally:
        # Whoever asks for it by name gets it.
        sys.modules.pop(_COMMAND_LINE, None)
