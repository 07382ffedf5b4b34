"""The kinds of task that people launch, as `det` calls them."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from determined.cli.errors import CliError
from determined.common.wire.kinds import TaskKind

if TYPE_CHECKING:
    from determined.cli.state import State
    from determined.experimental._task import Task

_WHOLE = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", re.IGNORECASE)
_NAMED = 5


def noun_of(task: Task) -> TaskKind:
    """The kind of a task that people launch."""
    assert task.kind is not None
    return task.kind


def reference(shared: State, noun: TaskKind, word: str) -> Task:
    """The task whose id begins with ``word``, not loaded. Raises CliError if there is none, or several."""
    (found,) = references(shared, noun, [word])
    return found


def references(shared: State, noun: TaskKind, words: Sequence[str]) -> list[Task]:
    """As :func:`reference`, of several; asks the service once, and not at all for whole ids."""
    from determined.experimental._task import Task

    def known() -> list[str]:
        return [task.id for task in shared.tasks.list_tasks(noun)]

    return [Task(shared.session, one, noun) for one in expanded(words, known, noun.title)]


def expanded(words: Sequence[str], known: Callable[[], list[str]], title: str) -> list[str]:
    """Each word as the id that it is the beginning of. Raises CliError."""
    ids: list[str] | None = None
    found: dict[str, Any] = {}
    for word in words:
        if _WHOLE.fullmatch(word):
            found[word] = None
            continue
        ids = known() if ids is None else ids
        matching = [one for one in ids if one == word] or [
            one for one in ids if one.startswith(word)
        ]
        if not matching:
            raise CliError(f"no {title} has an ID that begins with {word!r}")
        if len(matching) > 1:
            shown = ", ".join(matching[:_NAMED]) + (", …" if len(matching) > _NAMED else "")
            raise CliError(f"{word!r} is the beginning of several IDs: {shown}")
        found[matching[0]] = None
    return list(found)
