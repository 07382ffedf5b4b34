"""Pages that the service makes, as files."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from determined.common.api import Session

_PATIENCE_S = 330.0
"""To draw a large experiment takes a while, above all on a busy machine."""


def write_page(
    session: Session,
    address: str,
    path: str | os.PathLike[str],
    params: Mapping[str, Any] | None = None,
) -> str:
    """Writes the answer to ``GET address`` to ``path``, and returns that as text.

    Raises FileNotFoundError if its directory does not exist, before anything is asked for.
    """
    target = Path(path).expanduser()
    if not target.parent.is_dir():
        why = "no such directory; create it first"
        raise FileNotFoundError(errno.ENOENT, why, str(target.parent))
    page = session.request("GET", address, params=params, timeout=_PATIENCE_S).content
    target.write_bytes(page)
    return str(target)
