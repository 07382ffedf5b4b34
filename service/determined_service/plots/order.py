"""What the drawing process is asked for."""

from __future__ import annotations

from pydantic import BaseModel

NO_SUCH_EXPERIMENT = 4
"""Its exit code when the experiment does not exist."""


class Order(BaseModel):
    """One page. It travels by stdin: a command line, which everybody sees, must not hold passwords."""

    db_url: str
    experiment_id: int
    prefect_url: str | None = None
    """Prefect's pages, ``http://host:port``, for links to runs."""
