"""Commands that act on several ids: a failure for one id does not stop the others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated

import typer

from determined.cli import completion
from determined.cli.errors import talk

ExperimentIds = Annotated[
    list[str],
    typer.Argument(
        help="experiment IDs, separated by spaces or commas",
        metavar="ID...",
        autocompletion=completion.experiments,
    ),
]
TrialIds = Annotated[
    list[str],
    typer.Argument(
        help="trial IDs, separated by spaces or commas",
        metavar="ID...",
        autocompletion=completion.trials,
    ),
]


def numbers(words: Sequence[str]) -> list[int]:
    """``["3", "4,5"]`` → 3, 4, 5, each once. Raises a usage error for anything else."""
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
    """Calls ``act`` for each id, and prints the line that it returns or the service's refusal.

    Raises Exit(1) after the last id if the service refused any. An error that concerns all ids (no
    answer, not logged in) is raised at once.
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
