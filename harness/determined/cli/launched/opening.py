"""Opening the pages of a task in this machine's browser, once they can be reached."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from determined.cli.errors import CliError, talk
from determined.cli.launched.follow import saying_why
from determined.cli.launched.nouns import noun_of
from determined.cli.printing import echo

if TYPE_CHECKING:
    from determined.experimental._task import Task

LOOK_S = (0.1, 1.0)
"""Between two looks at a task that starts: at least, and at most."""
PATIENCE = 1 / 20
"""How much of the time that was waited already the next pause may take."""
_ENDING = ("TERMINATED", "TERMINATING")
_SHOWN = 5


def wait_until_ready(task: Task) -> str:
    """Waits until the task's page answers; the page's path. Raises CliError when the task ends before."""
    least, most = LOOK_S
    noun = noun_of(task)
    began = time.monotonic()
    with saying_why(task):
        while True:
            task.reload()
            if task.state == "RUNNING":
                return str(task.document["serviceAddress"])
            if task.state in _ENDING:
                why = task.document.get("exitStatus") or "it was ended"
                raise CliError(
                    f"{noun.title} {task.id} has ended: {why}{_last_words(task)}\n"
                    f"All it wrote: det {noun.group} logs {task.id}"
                )
            time.sleep(min(most, max(least, (time.monotonic() - began) * PATIENCE)))


def _last_words(task: Task) -> str:
    lines = [str(entry.get("log") or "").rstrip() for entry in task.iter_log_entries()]
    return "".join(f"\n  {line}" for line in lines[-_SHOWN:])


def show(task: Task, *, browser: bool = True) -> None:
    """Opens the task's page in a browser that is logged in there then; or prints the address, which is good
    once and for a minute."""
    import webbrowser

    url = task.visit(wait_until_ready(task))
    if browser and webbrowser.open(url):
        talk(f"{noun_of(task).title} {task.id} is open in the browser")
        return
    if browser:
        talk("there is no browser here: open this address within a minute, it is good once")
    echo(url)
