"""The regular expressions of log policies, and their matches in lines of a log.

They have the syntax of Rust's ``regex`` (as RE2: no look-around, no back-references), which pydantic ships.
Its time grows linearly with the text, but also with the size of the expression: ``(?:[ab]*a[ab]{1000}){5}c``
takes 8 s for 64 KiB, and no other thread of Python runs meanwhile. So only :func:`literal` is used in the
service's own process; expressions are used in another one (:mod:`determined_service.ingest.pattern_search`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from pydantic_core import SchemaError, SchemaValidator, core_schema

_LITERAL = re.compile(r"(?:\.\*)?([\w :,;'\"/=<>%#@!&-]+)(?:\.\*)?")
_WHOLE_TEXT = (r"\A", r"\z", "(?s", "(?-m")


class PatternError(ValueError):
    """The pattern is not valid; the message says why."""


def literal(pattern: str) -> str | None:
    """The text that a line holds exactly when ``pattern`` matches; None: it is not that simple."""
    found = _LITERAL.fullmatch(pattern)
    return None if found is None else found[1]


@dataclass(frozen=True, slots=True)
class Pattern:
    """A pattern, ready to be searched for."""

    compiled: SchemaValidator
    line_by_line: bool

    @classmethod
    def compile(cls, pattern: str) -> Pattern:
        """Raises PatternError."""
        try:
            # (?m): ^ and $ are a line's, in one line and in many.
            compiled = SchemaValidator(core_schema.str_schema(pattern=f"(?m:{pattern})"))
        except SchemaError as error:
            words = str(error).rpartition("error: ")[2].strip()
            raise PatternError(f"{pattern!r} cannot be used on logs: {words}") from error
        return cls(compiled, any(anchor in pattern for anchor in _WHOLE_TEXT))

    def find(self, lines: Sequence[str]) -> int | None:
        """The index of the first of ``lines`` that matches."""
        # All lines at once, because most match nothing.
        if not self.line_by_line and not self.compiled.isinstance_python("\n".join(lines)):
            return None
        matches = (
            index for index, line in enumerate(lines) if self.compiled.isinstance_python(line)
        )
        return next(matches, None)
