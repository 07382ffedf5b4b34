"""Errors and messages for the person at the terminal."""

from __future__ import annotations

import os
import sys
import traceback
from pathlib import Path

import typer

from determined.cli.printing import plain, talk

__all__ = ["CliError", "explain", "fail", "talk"]


ADMIN = "administrator"
"""In the message of whatever only administrators may do."""


class CliError(Exception):
    """An error that its message explains completely; it is shown without a traceback."""


def explain(error: BaseException, origin: str | None = None, has_admin: bool = False) -> str | None:
    """The message for the user; None for a fault in this program, which is shown with its traceback."""
    # The module of an error that was raised is loaded already, so nothing is imported here.
    api = sys.modules.get("determined.common.api.errors")
    if api is not None and isinstance(error, api.APIException):
        if isinstance(error, api.MasterNotFoundException | api.BadResponseException):
            return f"{error.message}{_where_to_look(origin)}"
        if has_admin and isinstance(error, api.ForbiddenException) and ADMIN in error.message:
            return f"{error.message}: `det -u admin …` asks as one, without a login"
        return error.message
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
        | failures.ProxiedDownloadFailed
        | failures.MultipleDownloadsFailed,
    ):
        return str(error)
    if isinstance(error, CliError):
        return str(error)
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    if isinstance(error, FileNotFoundError) and not _has_directory():
        return "the current directory does not exist any more: change to one that does"
    return None


def _has_directory() -> bool:
    try:
        Path.cwd()
    except FileNotFoundError:
        return False
    return True


def _where_to_look(origin: str | None) -> str:
    """Where the address comes from, and what to do if nothing answers there."""
    return (
        f"{f' ({origin})' if origin else ''}; start a cluster on this machine with `det deploy local"
        " cluster-up`, or give the address of a cluster with -m or DET_MASTER"
    )


def fail(
    error: Exception, *, verbose: bool, origin: str | None = None, has_admin: bool = False
) -> typer.Exit:
    """Prints the message of ``error`` to stderr and returns the exit to raise. ``origin`` says where the
    service's address comes from, ``has_admin`` whether its administrator needs no login here.

    Raises ``error`` itself if it is a fault in this program.
    """
    message = explain(error, origin, has_admin)
    if message is None:
        raise error
    if verbose or os.environ.get("DET_DEBUG"):
        talk(plain("".join(traceback.format_exception(error)).rstrip("\n")))
    talk(message if "\n" in message else f"error: {message}")
    return typer.Exit(1)
