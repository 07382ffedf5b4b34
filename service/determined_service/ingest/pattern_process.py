"""``python -m determined_service.ingest.pattern_process``: looks for patterns in lines, for
:mod:`determined_service.ingest.pattern_search`.

Reads questions from stdin, each a length (four bytes, big-endian) and JSON: ``{"patterns": [[pattern,
seconds], …], "lines": [text, …]}``. Writes a line of JSON for each pattern, in their order: the index of the
first line that matches, null, or a text that says why the pattern cannot be used. A pattern that takes more
than its seconds of processor time ends the process (SIGVTALRM), because an expression cannot be stopped
otherwise.
"""

from __future__ import annotations

import functools
import os
import signal
import sys
from typing import BinaryIO

import orjson

from determined_service.ingest.log_patterns import Pattern, PatternError

# One may have 10 MiB.
_compile = functools.lru_cache(maxsize=32)(Pattern.compile)


def _answer(pattern: str, lines: list[str]) -> int | str | None:
    try:
        return _compile(pattern).find(lines)
    except PatternError as error:
        return str(error)


def serve(questions: BinaryIO, answers: BinaryIO) -> None:
    """Answers until ``questions`` ends."""
    while len(head := questions.read(4)) == 4:
        question = orjson.loads(questions.read(int.from_bytes(head, "big")))
        for pattern, seconds in question["patterns"]:
            signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
            found = _answer(pattern, question["lines"])
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
            answers.write(orjson.dumps(found) + b"\n")
            answers.flush()


if __name__ == "__main__":
    os.nice(10)
    serve(sys.stdin.buffer, sys.stdout.buffer)
