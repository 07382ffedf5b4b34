"""The program that tries a checkpoint storage; it is run, not imported."""

from __future__ import annotations

import sys

CHECK = (sys.executable, "-P", "-m", "determined.storage.check")
"""Its ``checkpoint_storage`` section comes as JSON on standard input. Exit code 1: standard output says why
it cannot be used."""


def late(seconds: float) -> str:
    """The problem with a storage whose check did not end within ``seconds``."""
    return f"it did not answer within {seconds:.0f} s"
