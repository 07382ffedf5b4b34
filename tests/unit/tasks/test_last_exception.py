"""The exception that ended a process, out of its stderr."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from determined_tasks.last_exception import (
    MAX_LINES_AFTER,
    MAX_RANKS,
    LastException,
    LastExceptions,
)


def read(stderr: bytes, workdir: Path | None = None) -> str | None:
    last = LastException(workdir)
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
    assert read(traceback + b"step\n" * MAX_LINES_AFTER) == "ValueError: handled (a.py, line 1)"
    assert read(traceback + b"step\n" * (MAX_LINES_AFTER + 1)) is None


def test_a_long_message_is_cut() -> None:
    stderr = b"Traceback (most recent call last):\nValueError: " + b"x" * 1000 + b"\n"
    found = read(stderr)
    assert found is not None
    assert len(found) == 301


SCRIPTS = {
    "train.py": "import json\n\nimport helper\n\nhelper.read(json.loads, '{')\n",
    "helper.py": "def read(how, what):\n    return how(what)  # décodé\n",
    "broken.py": "print('a'\n",
    "imports.py": "import broken\n",
    "chain.py": CHAINED,
    "long.py": f"raise ValueError({'1' * 500})\n",
    "sdk.py": "from determined import expconf\nexpconf.load_yaml('a: [')\n",
}
PLACES = {
    # The last frame is the library's: the one before it called the library.
    "train.py": "(helper.py, line 2: return how(what)  # décodé)",
    "broken.py": "SyntaxError: '(' was never closed (broken.py, line 1: print('a')",
    "imports.py": "SyntaxError: '(' was never closed (broken.py, line 1: print('a')",
    "chain.py": 'OSError: [Errno 28] full (chain.py, line 5: raise OSError(28, "full") from error)',
    "long.py": "… (long.py, line 1: raise ValueError(" + "1" * 103 + "…)",
    "sdk.py": "(sdk.py, line 2: expconf.load_yaml('a: ['))",
}


@pytest.mark.parametrize("name", PLACES)
def test_the_place_is_the_last_one_in_the_users_files(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "workdir"
    folder.mkdir()
    link = tmp_path / "link"
    link.symlink_to(folder)
    for file, text in SCRIPTS.items():
        (folder / file).write_text(text)
    done = subprocess.run([sys.executable, name], capture_output=True, cwd=link)
    found = read(done.stderr, link)
    assert found is not None
    assert found.endswith(PLACES[name])


def test_a_script_outside_of_the_model_definition_is_named_whole(tmp_path: Path) -> None:
    (tmp_path / "shared.py").write_text("raise KeyError('lr')\n")
    done = subprocess.run([sys.executable, tmp_path / "shared.py"], capture_output=True)
    place = f"{tmp_path}/shared.py, line 1: raise KeyError('lr')"
    assert read(done.stderr, tmp_path / "workdir") == f"KeyError: 'lr' ({place})"


FAILING = [
    b"Traceback (most recent call last):",
    b'  File "train.py", line 4, in <module>',
    b"    raise ValueError(word)",
    b"ValueError: no luck",
]
LATER = [
    b"Traceback (most recent call last):",
    b'  File "train.py", line 9, in <module>',
    b"    gather()",
    b"ConnectionError: rank 1 is gone",
]
LAUNCHER = [b"Traceback (most recent call last):", b"launch.ChildFailedError: "]


def of_ranks(*lines: bytes) -> str | None:
    last = LastExceptions()
    for line in lines:
        last.feed(line + b"\n")
    return last.text


def test_an_exception_in_lines_of_a_rank() -> None:
    assert (
        of_ranks(*(b"[rank=1] " + line for line in FAILING))
        == "rank 1: ValueError: no luck (train.py, line 4: raise ValueError(word))"
    )


def test_lines_of_several_ranks_are_mixed() -> None:
    mixed = [b"[rank=1] " + FAILING[0]]
    for first, second in zip(FAILING[1:], LATER, strict=False):
        mixed += [b"[rank=0] " + second, b"[rank=1] " + first]
    mixed += [b"[rank=0] " + LATER[-1], *LAUNCHER]
    found = of_ranks(*mixed)
    # The first one, not its consequence in rank 0, nor what the launcher says of both.
    assert found == "rank 1: ValueError: no luck (train.py, line 4: raise ValueError(word))"


def test_without_an_exception_of_a_rank_the_launchers_counts() -> None:
    assert of_ranks(b"[rank=0] epoch 1", *LAUNCHER) == "launch.ChildFailedError:"


def test_ranks_that_a_script_makes_up_take_no_memory() -> None:
    last = LastExceptions()
    for rank in range(2 * MAX_RANKS):
        last.feed(b"[rank=%d] hello\n" % rank)
    assert len(last._readers) <= MAX_RANKS + 1
