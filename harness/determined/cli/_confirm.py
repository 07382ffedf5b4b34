"""Asking before something is gone for good."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from determined.cli._errors import CliError

Yes = Annotated[bool, typer.Option("-y", "--yes", help="do not ask")]


def confirm(question: str, yes: bool) -> None:
    """Returns when the answer is yes; raises Exit(1) otherwise, CliError where nobody can be asked."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise CliError(f"{question} There is no terminal to ask at: say --yes")
    if not typer.confirm(question, err=True):
        raise typer.Exit(1)
