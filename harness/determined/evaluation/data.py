"""The version of the current data: a short text that changes when the data does."""

from __future__ import annotations

import glob
import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

VERSION_CHARS = 1_000


def by_function(function: Callable[[], Any]) -> str:
    """The version that the user's function returns. Raises ValueError for an empty or a too long text."""
    version = str(function())
    if not 0 < len(version) <= VERSION_CHARS:
        raise ValueError(
            f"the data's version has {len(version)} characters: return a short text, such as a date or a hash"
        )
    return version


def by_files(patterns: Sequence[str]) -> str:
    """SHA-256 over names and contents of the files that match (``**`` crosses directories).

    Raises ValueError for a pattern that matches no file: it is misspelt, or the data is away.
    """
    whole = hashlib.sha256()
    for pattern in patterns:
        # Not Path.glob: the pattern may be absolute.
        found = glob.glob(pattern, recursive=True)  # noqa: PTH207
        files = sorted(name for name in found if Path(name).is_file())
        if not files:
            raise ValueError(f"no file matches {pattern!r}")
        for name in files:
            with Path(name).open("rb") as file:
                content = hashlib.file_digest(file, "sha256").hexdigest()
            whole.update(f"{name}\0{content}\0".encode())
    return f"sha256:{whole.hexdigest()}"
