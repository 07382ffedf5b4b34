"""What a searcher raises."""

from __future__ import annotations


class SearcherError(Exception):
    """The search cannot go on (or cannot begin); the text is for the person who wrote the YAML.

    After it was raised by :meth:`Searcher.handle` the searcher object is not to be used again: the
    experiment ends in error, and the last snapshot is what stands.
    """
