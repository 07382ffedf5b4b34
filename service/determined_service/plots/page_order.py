"""The order that the drawing process gets."""

from __future__ import annotations

from pydantic import BaseModel

NO_SUCH_EXPERIMENT = 4
"""The exit code of the drawing process when the experiment does not exist."""


class PageOrder(BaseModel):
    """An order for one page. It is sent over stdin, because every user can see a command line and it must
    not hold passwords.
    """

    db_url: str
    experiment_id: int
    prefect_url: str | None = None
    """Prefect's pages, ``http://host:port``, for links to runs."""
    numbers: bool = False
    """Instead of the page JSON: :func:`determined_service.plots.numbers.numbers`."""
