"""The exception that ended a process, from its output."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from determined_tasks.last_exception import MAX_LINES_AFTER, LastException


def read(stderr: bytes, workdir: Path | None = None) -> str | None:
    last = LastException(workdir)
    for line in stderr.decode().splitlines(keepends=True):
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
def test_output_of_python(code: str, expected: str | None) -> None:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True)
    found = read(done.stderr)
    if expected is None:
        assert found is None
    else:
        assert found is not None
        assert found.startswith(expected)


GROUP = """
def inner():
    raise ValueError('the first')

def outer():
    found = []
    for one in (inner, int):
        try:
            one()
            raise KeyError('the second')
        except Exception as error:
            found.append(error)
    raise ExceptionGroup('a few', found)

try:
    outer()
except ExceptionGroup as few:
    raise OUTERMOST
"""
FIRST = "ValueError: the first (train.py, line 3: raise ValueError('the first'))"
RICH = "from rich.traceback import install\ninstall(show_locals=True)\n"
IN_THREAD = """
import threading
one = threading.Thread(target=lambda: int('in a thread'))
one.start()
one.join()
"""
IGNORED = "class C:\n    def __del__(self):\n        raise KeyError('at the end')\nc = C()\n"
WRITTEN = {
    "group": (
        GROUP.replace("OUTERMOST", "few"),
        f"ExceptionGroup: a few (2 sub-exceptions): {FIRST}",
    ),
    "group in a group": (
        GROUP.replace("OUTERMOST", "ExceptionGroup('all', [few])"),
        f"ExceptionGroup: all (1 sub-exception): {FIRST}",
    ),
    "after a group": (
        GROUP.replace("OUTERMOST", "OSError('later')"),
        "OSError: later (train.py, line 18: raise OSError('later'))",
    ),
    "group of what was never raised": (
        "raise ExceptionGroup('g', [ValueError('bare')])",
        "ExceptionGroup: g (1 sub-exception): ValueError: bare"
        " (train.py, line 1: raise ExceptionGroup('g', [ValueError('bare')]))",
    ),
    "group and then a line": (
        "import traceback\ntry:\n    raise ExceptionGroup('g', [ValueError('handled')])\n"
        "except Exception:\n    traceback.print_exc()\nraise KeyError('lr')",
        "KeyError: 'lr' (train.py, line 6: raise KeyError('lr'))",
    ),
    "rich": (
        f"{RICH}def f(x):\n    raise ValueError('the real reason')\nf(3)",
        "ValueError: the real reason (train.py, line 4: raise ValueError('the real reason'))",
    ),
    "rich, chained": (
        f"{RICH}{CHAINED}",
        'OSError: [Errno 28] full (train.py, line 7: raise OSError(28, "full") from error)',
    ),
    "rich, in a library": (
        f"{RICH}import json\njson.loads('')",
        "JSONDecodeError: Expecting value: line 1 column 1 (char 0) (train.py, line 4: json.loads(''))",
    ),
    "rich, coloured": (
        "import rich.console, rich.traceback\n"
        "rich.traceback.install(console=rich.console.Console(stderr=True, force_terminal=True))\n"
        "raise ValueError('red')",
        "ValueError: red (train.py, line 3: raise ValueError('red'))",
    ),
    "ignored at the end": (
        f"{IGNORED}raise ValueError('the real reason')",
        "ValueError: the real reason (train.py, line 5: raise ValueError('the real reason'))",
    ),
    "only ignored": (f"{IGNORED}raise SystemExit(1)", None),
    "thread at the end": (
        f"import atexit\n@atexit.register\ndef end():\n    exec({IN_THREAD!r})\nraise KeyError('lr')",
        "KeyError: 'lr' (train.py, line 5: raise KeyError('lr'))",
    ),
    "only a thread": (
        f"{IN_THREAD}raise SystemExit(1)",
        "ValueError: invalid literal for int() with base 10: 'in a thread' (train.py, line 3: "
        "one = threading.Thread(target=lambda: int('in a thread')))",
    ),
}


@pytest.mark.parametrize("name", WRITTEN)
def test_tracebacks_that_are_not_pythons_plain_ones(tmp_path: Path, name: str) -> None:
    code, expected = WRITTEN[name]
    # Too long for one line of rich's frame, which has 80 columns.
    folder = tmp_path / ("long" * 20)
    folder.mkdir()
    (folder / "train.py").write_text(code)
    done = subprocess.run([sys.executable, folder / "train.py"], capture_output=True, cwd=folder)
    assert done.returncode == 1
    assert read(done.stderr, folder) == expected, done.stderr.decode()


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
