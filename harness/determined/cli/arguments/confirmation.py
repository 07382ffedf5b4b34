"""Asking before something is deleted for good."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from determined.cli.errors import CliError

Yes = Annotated[bool, typer.Option("-y", "--yes", help="do not ask for confirmation")]


def at_terminal() -> bool:
    """True if somebody can answer."""
    return sys.stdin.isatty()


def confirm(question: str, yes: bool) -> None:
    """Asks the user. Raises Exit(1) if the answer is no, and CliError if there is no terminal."""
    if yes:
        return
    if not at_terminal():
        raise CliError(f"{question} There is no terminal to ask at; confirm with --yes")
    if not typer.confirm(question, err=True):
        raise typer.Exit(1)
