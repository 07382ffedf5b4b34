"""The service's last line in the log of a leg."""

from __future__ import annotations

import pytest

from determined.common.wire.legs import ExitKind
from determined_service.lifecycle.exits import LegExit, last_line


@pytest.mark.parametrize(
    ("end", "line"),
    [
        (LegExit(ExitKind.EXITED, 0), "resources exited successfully with a zero exit code"),
        (
            LegExit(ExitKind.EXITED, 3, None, "ValueError: x (train.py:5)"),
            "resources failed with non-zero exit code: process exited with code 3",
        ),
        (
            LegExit(ExitKind.EXITED, None, 9),
            "resources failed with non-zero exit code: process was killed by signal 9 (SIGKILL)",
        ),
        (
            LegExit(ExitKind.FAILED_TO_START, reason="entrypoint not found: x"),
            "task failed without an associated exit code",
        ),
        (
            LegExit(ExitKind.INFRASTRUCTURE, reason="agent a1 lost for 31 s"),
            "task failed without an associated exit code: agent a1 lost for 31 s",
        ),
    ],
)
def test_scripts_can_wait_for_it(end: LegExit, line: str) -> None:
    assert last_line(end) == line
