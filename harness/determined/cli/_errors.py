"""What went wrong, said to the person at the terminal."""

from __future__ import annotations

import os
import sys
import traceback

import typer


class CliError(Exception):
    """A mistake of the user's, or a state of the world that the message explains."""


def talk(message: str = "") -> None:
    """A line for the person at the terminal; never data."""
    print(message, file=sys.stderr, flush=True)


def explain(error: BaseException) -> str | None:
    """``error`` in words for the user; None for a fault of ours, which deserves its traceback."""
    # Whoever raised it has imported its module already; nothing else may be imported for it.
    api = sys.modules.get("determined.common.api.errors")
    if api is not None and isinstance(error, api.APIException):
        hint = ""
        if isinstance(error, api.MasterNotFoundException):
            hint = (
                "; start a cluster here with `det deploy local cluster-up`, or say where one is"
                " with -m or DET_MASTER"
            )
        return f"{error.message}{hint}"
    expconf = sys.modules.get("determined.expconf.problems")
    if expconf is not None and isinstance(error, expconf.ConfigError):
        return str(error)
    context = sys.modules.get("determined.common.context")
    if context is not None and isinstance(error, context.ContextError):
        return str(error)
    failures = sys.modules.get("determined.errors")
    if failures is not None and isinstance(
        error,
        failures.StorageError
        | failures.CheckpointStateException
        | failures.NoDirectStorageAccess
        | failures.ProxiedDownloadFailed,
    ):
        return str(error)
    if isinstance(error, CliError):
        return str(error)
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    return None


def fail(error: Exception, *, verbose: bool) -> typer.Exit:
    """Says what went wrong on stderr; the exit to raise. Raises ``error`` when it is our fault."""
    message = explain(error)
    if message is None:
        raise error
    if verbose or os.environ.get("DET_DEBUG"):
        traceback.print_exception(error)
    talk(message if "\n" in message else f"error: {message}")
    return typer.Exit(1)
