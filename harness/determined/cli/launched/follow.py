"""Streaming the output of a task to this terminal, as if the program ran here."""

from __future__ import annotations

import contextlib
import copy
import sys
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import typer

from determined.cli import printing
from determined.cli.errors import talk
from determined.cli.following import interrupt
from determined.cli.launched.nouns import noun_of
from determined.cli.output import format as f
from determined.common.wire.kinds import TaskKind
from determined.common.wire.last_words import LAST_WORDS

if TYPE_CHECKING:
    from determined.experimental._task import Task

PATIENCE_S = 2.0
"""What has not begun by then is said to wait, and why."""
DETACHED = 130
"""The exit code after a detach: the one of a shell after Ctrl-C."""
_OWN_LINES = frozenset({"agent", "service"})


def follow(task: Task) -> int:
    """Prints what the task prints until it has ended; the exit code for `det`.

    Ctrl-C asks whether to let the task go on; the second one kills it.
    """
    presses, noun = 0, noun_of(task)
    with saying_why(task):
        while True:
            try:
                # Asked in here: the second Ctrl-C may come as soon as the question is to be read.
                if presses == 1 and _wants_to_detach(noun):
                    talk(
                        f"{noun.title} {task.id} goes on; its output: det {noun.group} logs -f {task.id}"
                    )
                    return DETACHED
                _stream(task)
                break
            except KeyboardInterrupt:
                presses += 1
                if presses > 1:
                    task.kill()
                    talk(f"killing {noun.title} {task.id}")
    return _end(task)


def _wants_to_detach(noun: TaskKind) -> bool:
    """Asks the person at the terminal; without one, says what a second Ctrl-C does.

    Raises KeyboardInterrupt: the task is to be killed.
    """
    interrupt.interrupt_again()
    if not sys.stdin.isatty():
        talk(f"the {noun.title} goes on; interrupt once more to kill it")
        return False
    talk(f"\nthe {noun.title} can go on without this terminal: Enter detaches, Ctrl-C kills it")
    sys.stdin.readline()
    return True


_shown: dict[str, int] = {}
"""By task, the id of the last line that was printed: an interrupted stream begins again."""


def _stream(task: Task) -> None:
    for batch in task.iter_log_batches(follow=True):
        for entry in batch:
            number = int(entry["id"])
            if number > _shown.get(task.id, -1):
                _shown[task.id] = number
                _print(entry)
        sys.stdout.flush()
        sys.stderr.flush()


def _print(entry: dict[str, Any]) -> None:
    """A line where the program wrote it, to stdout or stderr; control characters other than colours as
    text."""
    line = str(entry.get("log") or "")
    text = line.rstrip("\r\n")
    if entry.get("source") in _OWN_LINES:
        # The exit code says the same, and a program that ran here would not say it.
        if entry["source"] == "service" and text.startswith(LAST_WORDS):
            return
        talk(f"[{entry['source']}] {text}")
        return
    out = sys.stderr if entry.get("stdtype") == "stderr" else sys.stdout
    printing.write(printing.log_text(text) + line[len(text) :], out)


@contextlib.contextmanager
def saying_why(task: Task) -> Iterator[None]:
    """Says after a while why the task has not begun."""

    def say() -> None:
        # Whatever goes wrong: the stream itself will say more.
        with contextlib.suppress(Exception):
            # The other thread has the task itself.
            looked = copy.copy(task)
            looked.reload()
            if looked.state == "QUEUED":
                talk(f"waits: {looked.waits_because() or 'for its slots'}")

    timer = threading.Timer(PATIENCE_S, say)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _end(task: Task) -> int:
    task.reload()
    found = task.document
    ended = f.state(found["taskState"])
    if ended == "CANCELED" or found.get("exitCode") is None:
        words = found.get("exitStatus") or ended.lower()
        talk(f"{noun_of(task).title} {task.id} ended: {words}")
    return task.exit_code


def exit_as(code: int) -> None:
    """Ends `det` with the exit code of the task."""
    if code:
        raise typer.Exit(code)
