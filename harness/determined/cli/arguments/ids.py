"""Commands that act on several ids: a failure for one id does not stop the others."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Annotated

import typer

from determined.cli import completion
from determined.cli.errors import talk
from determined.common.wire import limits

ExperimentIds = Annotated[
    list[str],
    typer.Argument(
        help="experiment IDs and ranges: 3 4 5, or 3-7,9",
        metavar="ID",
        autocompletion=completion.experiments,
    ),
]
TrialIds = Annotated[
    list[str],
    typer.Argument(
        help="trial IDs and ranges: 3 4 5, or 3-7,9",
        metavar="ID",
        autocompletion=completion.trials,
    ),
]


_RANGE = re.compile(r"([0-9]{1,18})-([0-9]{1,18})")


def has_range(words: Sequence[str]) -> bool:
    """Whether ids are meant that are not written."""
    return any("-" in word for word in words)


def numbers(words: Sequence[str]) -> list[int]:
    """``["3", "4,5", "7-9"]`` → 3, 4, 5, 7, 8, 9, each once. Raises a usage error for anything else."""
    parts = [part.strip() for word in words for part in word.split(",")]
    found: dict[int, None] = {}
    for part in filter(None, parts):
        found.update(dict.fromkeys(_meant(part)))
        if len(found) > limits.MANY_IDS:
            raise typer.BadParameter(f"{part!r}: at most {limits.MANY_IDS} IDs at a time")
    if not found:
        raise typer.BadParameter(f"{' '.join(words)!r} has no ID; write numbers such as 3 4 5")
    return list(found)


def _meant(part: str) -> Iterable[int]:
    if part.isascii() and part.isdigit():
        return [int(part)]
    ends = _RANGE.fullmatch(part)
    if ends is None:
        raise typer.BadParameter(f"{part!r} is not an ID; write numbers such as 3 4 5 or 3-7,9")
    first, last = map(int, ends.groups())
    if first > last:
        raise typer.BadParameter(f"{part!r}: the lower ID comes first, {last}-{first}")
    # No more than the one that is too many: a range may have any length.
    return range(first, min(last, first + limits.MANY_IDS) + 1)


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
