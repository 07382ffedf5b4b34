"""Opening the pages of a task in this machine's browser, once they can be reached."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from determined.cli.errors import CliError, talk
from determined.cli.launched.follow import _saying_why
from determined.cli.launched.nouns import Noun
from determined.cli.printing import echo

if TYPE_CHECKING:
    from determined.common.api import Session

LOOK_S = (0.1, 1.0)
"""Between two looks at a task that starts: at least, and at most."""
PATIENCE = 1 / 20
"""How much of the time that was waited already the next pause may take."""
_ENDING = ("STATE_TERMINATED", "STATE_TERMINATING")
_SHOWN = 5


def wait_until_ready(session: Session, noun: Noun, task_id: str) -> str:
    """Waits until the task's page answers; the page's path. Raises CliError when the task ends before."""
    least, most = LOOK_S
    began = time.monotonic()
    with _saying_why(session, noun, task_id):
        while True:
            task = session.get(f"{noun.path}/{task_id}")[noun.name]
            if task["state"] == "STATE_RUNNING":
                return str(task["serviceAddress"])
            if task["state"] in _ENDING:
                why = task.get("exitStatus") or "it was ended"
                raise CliError(
                    f"{noun.title} {task_id} has ended: {why}{_last_words(session, task_id)}\n"
                    f"All it wrote: det {noun.word} logs {task_id}"
                )
            time.sleep(min(most, max(least, (time.monotonic() - began) * PATIENCE)))


def _last_words(session: Session, task_id: str) -> str:
    from determined.experimental import _logs

    lines = [
        str(entry.get("log") or "").rstrip()
        for batch in _logs.iter_batches_of_task(session, task_id, follow=False)
        for entry in batch
    ]
    return "".join(f"\n  {line}" for line in lines[-_SHOWN:])


def show(session: Session, noun: Noun, task_id: str, *, browser: bool = True) -> None:
    """Opens the task's page in a browser that is logged in there then; or prints the address, which is good
    once and for a minute."""
    import webbrowser

    path = wait_until_ready(session, noun, task_id)
    url = session.post(f"/api/v1/tasks/{task_id}/visits", json={"path": path})["url"]
    if browser and webbrowser.open(url):
        talk(f"{noun.title} {task_id} is open in the browser")
        return
    if browser:
        talk("there is no browser here: open this address within a minute, it is good once")
    echo(url)
