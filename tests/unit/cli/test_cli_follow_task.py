"""The output of a command's log."""

from __future__ import annotations

import pytest

from determined.cli.launched import follow
from determined.common.wire.last_words import EXITED, FAILED


def test_the_services_last_words_are_not_the_programs(capsys: pytest.CaptureFixture[str]) -> None:
    """A program that ran here would not say them: its exit code does."""
    for source, text in (
        (None, "resources exited successfully with a zero exit code, says the program"),
        ("service", EXITED),
        ("service", f"{FAILED}: process exited with code 3"),
        ("service", "nobody uses it"),
    ):
        follow._print({"source": source, "log": text + "\n"})
    printed = capsys.readouterr()
    assert printed.out == "resources exited successfully with a zero exit code, says the program\n"
    assert printed.err == "[service] nobody uses it\n"
