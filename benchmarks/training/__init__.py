"""What training by the harness costs beside a bare loop."""

from benchmarks.training.__main__ import main

__all__ = ["main"]
