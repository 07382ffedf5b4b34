"""Paths of artifacts: their parts, and what a storage can keep."""

from __future__ import annotations

import re

from determined.common.wire import limits
from determined_registry.mlflow.service import invalid

# MLflow's own server makes such a path for the files that its pages send.
_OF_PAGES = re.compile(r"[0-9]{1,9}/(?P<run>[^/]+)/artifacts(?P<rest>/.*)?")


def parts_of(path: str | None) -> list[str]:
    """The names along a path. Raises MlflowException (400) for an invalid path."""
    found = _OF_PAGES.fullmatch(path or "")
    if found is not None:
        path = f"trials/{found['run']}{found['rest'] or ''}"
    parts = [part for part in (path or "").split("/") if part not in ("", ".")]
    if ".." in parts or any("\\" in part or "\0" in part for part in parts):
        raise invalid(f"{path!r} is not the path of an artifact")
    return parts


def parts_of_new(path: str) -> list[str]:
    """Of a file that is to be kept. Raises MlflowException (400) for a path that is too long: no file system
    has longer names."""
    parts = parts_of(path)
    if len(path) > limits.PATH_CHARS:
        raise invalid(
            f"the artifact {path[:80]}…: its path has {len(path)} characters; at most {limits.PATH_CHARS} "
            "are allowed"
        )
    for part in parts:
        if (size := len(part.encode(errors="surrogatepass"))) > limits.PATH_PART_BYTES:
            raise invalid(
                f"the artifact {part[:80]}…: its name has {size} bytes; at most {limits.PATH_PART_BYTES} "
                "are allowed: give it, or its folder, a shorter one"
            )
    return parts
