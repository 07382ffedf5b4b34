"""What administrators tell all users: `det` says it once at a terminal, before a command's own output."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from determined.cli import printing
from determined.cli.printing import one_line, talk

if TYPE_CHECKING:
    from determined.common.api import Session

PATIENCE_S = 1.0
"""A command does not wait longer for the message."""


def say(session: Session) -> None:
    """Prints the message of the cluster to stderr, if there is one, and somebody looks.

    Programs that run `det` read its stderr as well: they see no message.
    """
    if not printing.is_terminal(sys.stderr):
        return
    from determined.common.api import errors

    try:
        found = session.get("/api/v1/master", timeout=PATIENCE_S, max_retries=0)
    except errors.APIException:
        # The command itself says what is wrong with the service.
        return
    message = found.get("clusterMessage") if isinstance(found, dict) else None
    if isinstance(message, dict):
        talk(_in_words(message))


def _in_words(message: dict[str, Any]) -> str:
    end = message.get("endTime")
    until = f" (until {one_line(str(end))[:16].replace('T', ' ')} UTC)" if end else ""
    return f"message to all users{until}: {one_line(str(message.get('message', '')))}"
