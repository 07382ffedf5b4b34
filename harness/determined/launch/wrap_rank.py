"""``python3 -m determined.launch.wrap_rank [--no-redirect-stdio] RANK command…``: puts ``[rank=N]`` in front
of the command's output.

RANK is a number, or the name of an environment variable that holds it (RANK, as torchrun sets it), or
several names with commas between them, of which the first that is set counts. The platform takes the
prefix off each line again and keeps the rank beside it.

``--no-redirect-stdio`` is taken for the sake of scripts written for Determined, whose wrapper sent the
output to the container's own stdout unless told otherwise. Here nothing is redirected: the output always goes
to this process' stdout and stderr.
"""

from __future__ import annotations

import os
import sys

from determined.launch import _workers
from determined.launch._fail import fail
from determined.launch._gang import Gang

USAGE = "usage: python3 -m determined.launch.wrap_rank [--no-redirect-stdio] RANK COMMAND [ARGS...]"


def read_rank(text: str) -> int:
    """The rank: ``text`` itself, or the value of a variable that it names. Raises SystemExit."""
    given = (os.environ.get(name) for name in text.split(","))
    value = text if text.isdecimal() else next((one for one in given if one is not None), None)
    if value is None or not value.isdecimal():
        found = "is not set" if value is None else f"is {value!r}"
        fail(f"RANK must be a number or a variable that holds one; {text} {found}")
    return int(value)


def run(rank: int, command: list[str]) -> int:
    """Run ``command`` to its end. Returns its exit code, 128 + n for signal n."""
    try:
        code = Gang(lambda: [_workers.execute(rank, command, os.environ)]).wait()
    except OSError as error:
        fail(f"{command[0]}: {error.strerror}")
    return code if code >= 0 else 128 - code


def main(arguments: list[str]) -> int:
    """Raises SystemExit."""
    if arguments[:1] in (["-h"], ["--help"]):
        print(USAGE)
        return 0
    if arguments[:1] == ["--no-redirect-stdio"]:
        arguments = arguments[1:]
    if len(arguments) < 2:
        fail(f"a rank and a command are needed; {USAGE}")
    command = arguments[1:]
    if command[0] == "--":
        command = command[1:]
    return run(read_rank(arguments[0]), command)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
