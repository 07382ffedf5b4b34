"""The mistakes of a document, collected: :class:`Problems`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from determined.common.pipeline.references import ReferenceError_
from determined.common.wire import limits
from determined.expconf import paths
from determined.expconf.document import Document
from determined.expconf.paths import Path
from determined.expconf.problems import ConfigError, Problem, nearest, show


class Problems:
    """Collects mistakes in a document."""

    def __init__(self, document: Document) -> None:
        self.document = document
        self.found: list[Problem] = []

    def add(
        self,
        path: Path,
        message: str,
        found: str | None = None,
        allowed: str | None = None,
        suggestion: str | None = None,
    ) -> None:
        line = self.document.nearest_line(path)
        source = self.document.source or None
        one = Problem(paths.render(path), line, found, allowed, suggestion, message, source)
        if one not in self.found:
            self.found.append(one)

    def expected(self, path: Path, what: str, value: Any) -> None:
        self.add(path, f"expected {what}, found {show(value)}", show(value), what)

    def refer(self, path: Path, error: ReferenceError_) -> None:
        self.add(path, str(error), error.found, error.allowed, error.suggestion)

    def unknown(self, path: Path, name: str, allowed: Iterable[str], what: str) -> None:
        listed = list(allowed)
        hint = nearest(name, listed)
        message = what + (f"; did you mean {hint!r}?" if hint else "")
        shown = ", ".join(listed[:40])
        self.add(path, f"{message} (allowed: {shown or 'none'})", name, shown, hint)

    def keys(self, path: Path, data: Mapping[str, Any], allowed: Iterable[str]) -> None:
        for key in data:
            if key not in allowed:
                self.unknown((*path, key), key, allowed, "unknown field")

    def finish(self) -> None:
        """Raises ConfigError if there are any."""
        if self.found:
            self.found.sort(key=lambda one: (one.line is None, one.line or 0))
            raise ConfigError(self.found[: limits.CONFIG_PROBLEMS])
