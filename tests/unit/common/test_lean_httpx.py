"""Our processes import httpx without its command line; who wants that gets it."""

from __future__ import annotations

import subprocess
import sys

from tests.waiting import TIMEOUT_S


def run(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=TIMEOUT_S
    )
    return done.stdout.strip()


def test_a_session_imports_no_command_line() -> None:
    absent = run(
        "import determined.common.api, sys;"
        "print([name for name in ('httpx._main', 'rich', 'pygments') if name in sys.modules])"
    )
    assert absent == "[]"


def test_the_command_line_can_be_imported_later() -> None:
    assert run("import determined.common.api; from httpx._main import main; print(main.name)")
    assert run("import httpx, determined.common.api; print(httpx.main.name)")
