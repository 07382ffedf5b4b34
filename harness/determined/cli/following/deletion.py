"""Waiting until a deletion is done."""

from __future__ import annotations

from typing import TYPE_CHECKING

from determined.cli.errors import CliError, talk

if TYPE_CHECKING:
    from determined.experimental import Determined


def wait_for_deletion(client: Determined, deletion_id: int | None, done: str) -> None:
    """Prints ``done`` after the deletion; raises CliError with the reason if it failed."""
    from determined.common.api import errors

    try:
        if client.wait_for_deletion(deletion_id):
            talk(done)
            return
    except errors.DeleteFailedException as error:
        raise CliError(error.message) from error
    talk(
        f"deletion {deletion_id} is not done yet; check that an agent is running to carry it"
        " out (det a list)"
    )
