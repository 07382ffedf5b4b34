"""The state in which a process began, for its forks: packages write to it while they are imported.

Without this a fork would differ from the next one by what their parents happened to have imported.
"""

from __future__ import annotations

import ctypes
import locale
import os
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass

# Loaded once, before any fork: a fresh process pays for it otherwise.
_libc = ctypes.CDLL(None) if sys.platform == "linux" else None


@dataclass(frozen=True)
class Beginning:
    """The environment, umask and locale of a process. ``now()`` is for its first lines."""

    env: dict[str, str]
    umask: int
    locale: str

    @classmethod
    def now(cls) -> Beginning:
        umask = os.umask(0)
        os.umask(umask)
        return cls(dict(os.environ), umask, locale.setlocale(locale.LC_ALL))

    def restore(self) -> None:
        """In a fork with one thread."""
        set_environment(self.env)
        os.umask(self.umask)
        if locale.setlocale(locale.LC_ALL) != self.locale:
            locale.setlocale(locale.LC_ALL, self.locale)


def set_environment(env: Mapping[str, str]) -> None:
    """The process has these variables and no other, and what Python keeps of them is forgotten.

    For a process with one thread: C code of another might read them meanwhile.
    """
    os.environ.clear()
    if _libc is not None:
        # What C code has set, too: Python does not know of it, and programs that it starts get it.
        _libc.clearenv()
    os.environ.update(env)
    time.tzset()
    tempfile = sys.modules.get("tempfile")
    if tempfile is not None:
        tempfile.tempdir = None  # type: ignore[attr-defined]
