"""The exception that ended a process, out of its stderr."""

from __future__ import annotations

import subprocess
import sys

import pytest

from determined_tasks.last_exception import MAX_LINES_AFTER, LastException


def read(stderr: bytes) -> str | None:
    last = LastException()
    for line in stderr.splitlines(keepends=True):
        last.feed(line)
    return last.text


CHAINED = """
try:
    1 / 0
except ZeroDivisionError as error:
    raise OSError(28, "full") from error
"""


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("raise ValueError('no luck')", "ValueError: no luck"),
        ("raise KeyError", "KeyError"),
        ("import no_such_module", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("print((", "SyntaxError: '(' was never closed"),
        ("raise ValueError('first\\nsecond')", "ValueError: first"),
        (CHAINED, "OSError: [Errno 28] full"),
        ("import json\njson.loads('{')", "json.decoder.JSONDecodeError: "),
        ("raise SystemExit(1)", None),
        ("print('fine')", None),
    ],
)
def test_what_python_writes(code: str, expected: str | None) -> None:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True)
    found = read(done.stderr)
    if expected is None:
        assert found is None
    else:
        assert found is not None
        assert found.startswith(expected)


def test_a_logged_exception_long_ago_is_not_the_reason() -> None:
    traceback = b'Traceback (most recent call last):\n  File "a.py", line 1\nValueError: handled\n'
    assert read(traceback + b"step\n" * MAX_LINES_AFTER) == "ValueError: handled"
    assert read(traceback + b"step\n" * (MAX_LINES_AFTER + 1)) is None


def test_a_long_message_is_cut() -> None:
    stderr = b"Traceback (most recent call last):\nValueError: " + b"x" * 1000 + b"\n"
    found = read(stderr)
    assert found is not None
    assert len(found) == 301
