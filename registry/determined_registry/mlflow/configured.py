"""The settings that the server's process was started with; stores that MLflow makes elsewhere read them
too."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Configuration:
    """``db_url``: our database. ``spool``: a folder for uploads that are not complete; it outlives the
    process. ``storage``: the cluster's own checkpoint storage. ``socket``: where to listen. ``secret``: what
    each request must carry."""

    db_url: str
    spool: str
    storage: dict[str, Any] = field(default_factory=dict)
    socket: str = ""
    secret: str = ""


_current: Configuration | None = None


def put(given: Configuration) -> None:
    """Makes it what :func:`current` returns."""
    global _current
    _current = given


def is_there() -> bool:
    """True if this process is a server that the service has started."""
    return _current is not None


def current() -> Configuration:
    """Raises LookupError in a process that no service has started."""
    if _current is None:
        raise LookupError(
            "determined+postgresql:/// stands for the database of a service: start MLflow by opening "
            "<service>/mlflow, or name a database: determined+postgresql://user:password@host/database"
        )
    return _current
