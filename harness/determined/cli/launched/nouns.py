"""The kinds of task that people launch, as `det` calls them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from determined.cli.arguments.abbreviated import expanded
from determined.common.wire.kinds import TaskKind

if TYPE_CHECKING:
    from determined.cli.state import State
    from determined.experimental._task import Task


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
