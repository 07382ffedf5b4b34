"""The page of all commands matches the commands."""

import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "commands.md"


def test_the_page_matches_the_commands():
    made = subprocess.run(
        [sys.executable, "-m", "determined.cli.reference"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert made.stdout == PAGE.read_text(), (
        "the page is not that of these commands: run `make docs`"
    )
    for words in ("### det experiment list", "| `--drain` |", "### det workspace create"):
        assert words in made.stdout
