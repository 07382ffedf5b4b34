"""How quick the service's own pages are, beside those of an empty cluster; see :mod:`.figures`."""

from benchmarks.pages.figures import main

__all__ = ["main"]
