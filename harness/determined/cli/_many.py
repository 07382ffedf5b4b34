"""One action on several ids: a failure of one does not stop the others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated

import typer

from determined.cli._errors import talk

ExperimentIds = Annotated[
    list[str], typer.Argument(help="experiment IDs, apart by spaces or commas", metavar="ID...")
]
TrialIds = Annotated[
    list[str], typer.Argument(help="trial IDs, apart by spaces or commas", metavar="ID...")
]


def numbers(words: Sequence[str]) -> list[int]:
    """``["3", "4,5"]`` → 3, 4, 5, each once; raises the usage error."""
    parts = [part.strip() for word in words for part in word.split(",")]
    found: dict[int, None] = {}
    for part in filter(None, parts):
        if not part.isascii() or not part.isdigit():
            raise typer.BadParameter(f"{part!r} is not an ID; write numbers such as 3 4 5 or 3,4,5")
        found[int(part)] = None
    if not found:
        raise typer.BadParameter(f"{' '.join(words)!r} has no ID; write numbers such as 3 4 5")
    return list(found)


def each(ids: Sequence[int], act: Callable[[int], str]) -> None:
    """``act`` on each id in turn, and the line that it returns; what the service refuses is a line too.

    Raises Exit(1) at the end if any was refused; at once what concerns them all (nothing answers, not
    logged in).
    """
    from determined.common.api import errors

    refused = 0
    for one in ids:
        try:
            talk(act(one))
        except (errors.BadRequestException, errors.ForbiddenException) as error:
            refused += 1
            talk(f"error: {error.message}")
    if refused:
        if len(ids) > 1:
            talk(f"{refused} of {len(ids)} failed")
        raise typer.Exit(1)
