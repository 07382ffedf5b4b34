"""Runs async_program, and what its result must be."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.memory_folder import memory_folder
from tests.waiting import TIMEOUT_S


def _killed(moments: int) -> dict[str, Any]:
    """The result of async_program."""
    program = Path(__file__).with_name("async_program.py")
    with memory_folder("determined-kills-") as folder:
        done = subprocess.run(
            [sys.executable, str(program), folder, str(moments)],
            capture_output=True,
            text=True,
            timeout=5 * TIMEOUT_S,
        )
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def check_killed(moments: int) -> None:
    """Whatever was offered was whole (the program looks), and of the training nothing changed."""
    found = _killed(moments)
    assert found["same"]
    assert found["trained"] > moments // 2
    # One may be on its way while the next batch is trained.
    assert max(found["lost"]) <= 2
    # The moments were those that the test is about.
    assert found["left"] > 0
