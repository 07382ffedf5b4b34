"""The one way from `det` to a terminal, a pipe or a file: nothing that a user of the cluster wrote can
control the terminal of another user.

Names, reasons, labels and log lines come from other people. Everything that commands print passes
:func:`plain`, :func:`log_text` or :func:`json_text` (``tests/unit/cli/test_cli_hostile.py``).
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from determined.common.printable import (
    cut,
    json_text,
    log_text,
    one_line,
    plain,
    without_colours,
)

__all__ = [
    "cut",
    "echo",
    "flush",
    "is_terminal",
    "json_text",
    "log_text",
    "of_stdout",
    "one_line",
    "plain",
    "talk",
    "without_colours",
    "write",
]

MAX_LINE = 4000
"""A message's line is cut after this many characters."""


def echo(text: str = "", *, end: str = "\n", file: TextIO | None = None) -> None:
    """Prints data, to stdout if ``file`` is None."""
    write(plain(text) + end, file)
    flush(file)


def talk(message: str = "") -> None:
    """Prints a message for the person at the terminal, to stderr. Very long lines are cut."""
    lines = plain(message).split("\n")
    write("\n".join(cut(line, MAX_LINE) for line in lines) + "\n", sys.stderr)
    flush(sys.stderr)


def is_terminal(out: TextIO) -> bool:
    """Whether somebody looks at it."""
    return out.isatty()


def write(safe: str, file: TextIO | None = None) -> None:
    """Writes text that has passed a function of this module."""
    out = sys.stdout if file is None else file
    with _named(out):
        try:
            out.write(safe)
        except UnicodeEncodeError:
            # A terminal of another encoding, such as LANG=C.
            encoding = out.encoding or "ascii"
            out.write(safe.encode(encoding, "backslashreplace").decode(encoding))


def flush(file: TextIO | None = None) -> None:
    """Hands over what has been written, to stdout if ``file`` is None."""
    out = sys.stdout if file is None else file
    with _named(out):
        out.flush()


@contextlib.contextmanager
def _named(out: TextIO) -> Iterator[None]:
    """The OSError of a full disk says what could not be written; who reads a pipe may go."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        if out is not sys.stdout:
            raise
        raise of_stdout(error) from None


def of_stdout(error: OSError) -> OSError:
    """``error`` with the name of what could not be written. Nothing is written to stdout any more."""
    # The interpreter would try again when it ends, and complain.
    sys.stdout = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115
    return OSError(error.errno, error.strerror, "standard output")
