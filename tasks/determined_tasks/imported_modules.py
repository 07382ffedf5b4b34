"""Lists the installed modules that a program imported, so that the next fork can start with them.

Only files of the standard library and of installed packages count. User code is never listed, wherever
it lies: what is imported before a fork must be the same for every leg.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import sysconfig
from collections.abc import Iterable
from pathlib import Path

# Importing these again tells nothing, or does something: test runners, other programs' main modules.
NOT_LISTED = ("__main__", "__mp_main__", "antigravity", "this", "idlelib", "lib2to3", "test")


def installed(known: Iterable[str] = ()) -> list[str]:
    """Names in ``sys.modules`` that are not in ``known``, in the order they were imported."""
    roots = tuple(
        os.path.realpath(path) + os.sep
        for name in ("stdlib", "platstdlib", "purelib", "platlib")
        if (path := sysconfig.get_path(name))
    )
    found = []
    skip = set(known)
    for name, module in list(sys.modules.items()):
        if name in skip or name.partition(".")[0] in NOT_LISTED:
            continue
        spec = getattr(module, "__spec__", None)
        origin = getattr(spec, "origin", None)
        # A spec under another name: an alias put into sys.modules by hand, not importable as such.
        if not isinstance(origin, str) or getattr(spec, "name", None) != name:
            continue
        if os.path.realpath(origin).startswith(roots):
            found.append(name)
    return found


def write(path: Path, known: Iterable[str]) -> None:
    """Writes :func:`installed` to ``path`` as a JSON list; a failure is ignored."""
    with contextlib.suppress(OSError):
        aside = path.with_suffix(".part")
        aside.write_text(json.dumps(installed(known)))
        aside.rename(path)


def read(path: Path) -> list[str] | None:
    """The list that :func:`write` left, or None."""
    try:
        names = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return [str(name) for name in names]
