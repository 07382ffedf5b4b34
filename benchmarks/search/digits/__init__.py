"""One search on real processes, by this project and by others: `python -m benchmarks.search.digits`."""

from __future__ import annotations


def main() -> None:
    """One round."""
    from benchmarks.search.digits.__main__ import main as run

    run()
