"""The exception that searchers raise."""

from __future__ import annotations


class SearcherError(Exception):
    """The search cannot go on (or cannot begin); the text is for the person who wrote the YAML.

    After :meth:`Searcher.handle` has raised it, do not use the searcher object again: the experiment ends
    in error, and the last snapshot stays valid.
    """
