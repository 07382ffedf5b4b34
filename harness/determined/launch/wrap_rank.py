"""``python3 -m determined.launch.wrap_rank RANK command…``: puts ``[rank=N]`` in front of what it says.

RANK is a number, or the name of an environment variable that holds it (RANK, as torchrun sets it). The
platform takes the prefix off each line again and keeps the rank beside it.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from types import FrameType
from typing import BinaryIO

from determined.launch._fail import fail

# Progress bars begin their line anew; a carriage return at the very end may be half of a line's end.
_LINE_ENDS = re.compile(rb"(\r?\n|\r(?=[^\n]))")
USAGE = "usage: python3 -m determined.launch.wrap_rank RANK COMMAND [ARGS...]"


def read_rank(text: str) -> int:
    """The rank that ``text`` is, or names the variable of. Raises SystemExit."""
    value = text if text.isdecimal() else os.environ.get(text)
    if value is None or not value.isdecimal():
        found = "is not set" if value is None else f"is {value!r}"
        fail(f"RANK must be a number or a variable that holds one; {text} {found}")
    return int(value)


def run(rank: int, command: list[str]) -> int:
    """Runs ``command`` to its end; its exit code, 128 + n for signal n."""
    # A forwarded signal must find the process: none comes before it is there.
    blocked = {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, blocked)
    try:
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            # Its output is a pipe here, wherever ours goes.
            env={"PYTHONUNBUFFERED": "1", **os.environ},
            preexec_fn=lambda: signal.pthread_sigmask(signal.SIG_UNBLOCK, blocked),
        )
    except OSError as error:
        fail(f"{command[0]}: {error.strerror}")

    def forward(number: int, frame: FrameType | None) -> None:
        process.send_signal(number)

    for number in blocked:
        signal.signal(number, forward)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, blocked)
    prefix = f"[rank={rank}] ".encode()
    assert process.stdout is not None
    assert process.stderr is not None
    copies = [
        threading.Thread(target=_copy, args=(source, target, prefix))
        for source, target in (
            (process.stdout, sys.stdout.buffer),
            (process.stderr, sys.stderr.buffer),
        )
    ]
    for copy in copies:
        copy.start()
    for copy in copies:
        copy.join()
    code = process.wait()
    return code if code >= 0 else 128 - code


def _copy(source: BinaryIO, target: BinaryIO, prefix: bytes) -> None:
    rest = b""
    while part := os.read(source.fileno(), 1 << 16):
        *lines, rest = _LINE_ENDS.split(rest + part)
        for line, end in zip(lines[::2], lines[1::2], strict=True):
            _write(target, prefix + line + end)
    if rest:
        _write(target, prefix + rest + b"\n")


def _write(target: BinaryIO, line: bytes) -> None:
    # One write a line: other ranks write to the same pipe.
    target.write(line)
    target.flush()


def main(arguments: list[str]) -> int:
    """Raises SystemExit."""
    if len(arguments) < 2:
        fail(f"a rank and a command are needed; {USAGE}")
    command = arguments[1:]
    if command[0] == "--":
        command = command[1:]
    return run(read_rank(arguments[0]), command)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
