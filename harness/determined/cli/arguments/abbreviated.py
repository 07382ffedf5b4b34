"""Ids of tasks and checkpoints, of which the beginning is enough if no other begins so."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from determined.cli.errors import CliError
from determined.cli.state import State

# A trial's task has the number of its experiment before the UUID.
_WHOLE = re.compile(
    r"(?:[0-9]+\.)?[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}",
    re.IGNORECASE,
)
_BEGINNING = re.compile(r"[0-9a-f][0-9a-f-]*", re.IGNORECASE)
_NAMED = 10


def expanded(words: Sequence[str], known: Callable[[], list[str]], title: str) -> list[str]:
    """Each word as the id that begins with it, each once; ``known`` is called once, and not for whole ids.

    Raises CliError if no id begins with a word, or several do.
    """
    ids: list[str] | None = None
    found: dict[str, None] = {}
    for word in words:
        if not _WHOLE.fullmatch(word):
            ids = known() if ids is None else ids
            word = _only(word, [one for one in ids if one.startswith(word)], title)
        found[word] = None
    return list(found)


def checkpoint_uuids(shared: State, words: Sequence[str]) -> list[str]:
    """Each word as the UUID of the checkpoint that begins with it, each once, of those that the user may see.

    What cannot begin a UUID stays: the service says what is wrong with it. Raises CliError as
    :func:`expanded`, and for less than the digits that the service needs.
    """
    from determined.common.wire.limits import UUID_BEGINNING_DIGITS
    from determined.experimental import _checkpoint

    found: dict[str, None] = {}
    for word in words:
        if not _WHOLE.fullmatch(word) and _BEGINNING.fullmatch(word):
            if len(word) < UUID_BEGINNING_DIGITS:
                raise CliError(
                    f"{word!r} is too short for a checkpoint: give its UUID, or at least the first"
                    f" {UUID_BEGINNING_DIGITS} digits of it"
                )
            matching = _checkpoint.beginning_with(shared.session, word, _NAMED + 1)
            word = _only(word, matching, "checkpoint")
        found[word] = None
    return list(found)


def checkpoint_uuid(shared: State, word: str) -> str:
    """As :func:`checkpoint_uuids`, of one."""
    (found,) = checkpoint_uuids(shared, [word])
    return found


def _only(word: str, matching: Sequence[str], title: str) -> str:
    if word in matching:
        return word
    if not matching:
        raise CliError(f"no {title} has an ID that begins with {word!r}")
    if len(matching) > 1:
        shown = ", ".join(matching[:_NAMED]) + (", …" if len(matching) > _NAMED else "")
        raise CliError(f"{word!r} is the beginning of several IDs: {shown}")
    return matching[0]
