"""Streaming the output of a task to this terminal, as if the program ran here."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import typer

from determined.cli import printing
from determined.cli.errors import talk
from determined.cli.following import interrupt
from determined.cli.launched.nouns import Noun
from determined.cli.output import format as f
from determined.common.wire.last_words import LAST_WORDS

if TYPE_CHECKING:
    from determined.common.api import Session

PATIENCE_S = 2.0
"""What has not begun by then is said to wait, and why."""
DETACHED = 130
"""The exit code after a detach: the one of a shell after Ctrl-C."""
_OWN_LINES = frozenset({"agent", "service"})


def follow(session: Session, noun: Noun, task_id: str) -> int:
    """Prints what the task prints until it has ended; the exit code for `det`.

    Ctrl-C asks whether to let the task go on; the second one kills it.
    """
    presses = 0
    with _saying_why(session, noun, task_id):
        while True:
            try:
                # Asked in here: the second Ctrl-C may come as soon as the question is to be read.
                if presses == 1 and _wants_to_detach(noun):
                    talk(
                        f"{noun.title} {task_id} goes on; its output: det {noun.word} logs -f {task_id}"
                    )
                    return DETACHED
                _stream(session, task_id)
                break
            except KeyboardInterrupt:
                presses += 1
                if presses > 1:
                    _kill(session, noun, task_id)
    return _end(session, noun, task_id)


def _wants_to_detach(noun: Noun) -> bool:
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


def _kill(session: Session, noun: Noun, task_id: str) -> None:
    session.post(f"{noun.path}/{task_id}/kill", json={})
    talk(f"killing {noun.title} {task_id}")


_shown: dict[str, int] = {}
"""By task, the id of the last line that was printed: an interrupted stream begins again."""


def _stream(session: Session, task_id: str) -> None:
    # Not by the SDK, whose import takes longer than a short command runs.
    from determined.common.api.log_lines import follow_lines

    for batch in follow_lines(session, f"/api/v1/tasks/{task_id}/logs", {}):
        for entry in batch:
            number = int(entry["id"])
            if number > _shown.get(task_id, -1):
                _shown[task_id] = number
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
def _saying_why(session: Session, noun: Noun, task_id: str) -> Iterator[None]:
    """Says after a while why the task has not begun."""

    def say() -> None:
        # Whatever goes wrong: the stream itself will say more.
        with contextlib.suppress(Exception):
            found = session.get(f"{noun.path}/{task_id}")[noun.name]
            if found["state"] == "STATE_QUEUED":
                why = session.get(f"/api/v1/job-queues/{found['jobId']}/explanation")
                reasons = [one["reason"] for one in why.get("waiting") or ()]
                talk(f"waits: {reasons[0] if reasons else 'for its slots'}")

    timer = threading.Timer(PATIENCE_S, say)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _end(session: Session, noun: Noun, task_id: str) -> int:
    from determined.common.api.tasks import exit_code

    task = session.get(f"{noun.path}/{task_id}")[noun.name]
    code = exit_code(task)
    ended = f.state(task["taskState"])
    if ended == "CANCELED" or task.get("exitCode") is None:
        talk(f"{noun.title} {task_id} ended: {task.get('exitStatus') or ended.lower()}")
    return code


def has_ended(session: Session, noun: Noun, task_id: str) -> bool:
    """Whether nothing of it runs any more."""
    return bool(session.get(f"{noun.path}/{task_id}")[noun.name]["state"] == "STATE_TERMINATED")


def exit_as(code: int) -> None:
    """Ends `det` with the exit code of the task."""
    if code:
        raise typer.Exit(code)
