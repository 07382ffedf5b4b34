"""Fewer generated examples where one takes long to make, or where many implementations share a test."""

import hypothesis

_default = hypothesis.settings()
costly = hypothesis.settings(
    _default, max_examples=10 if _default.derandomize else _default.max_examples
)
"""Ten in every run; as many as of other tests where others are looked for (tests/conftest.py)."""
