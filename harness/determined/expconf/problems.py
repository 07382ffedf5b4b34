"""Mistakes in a configuration, described for the person who wrote it."""

import difflib
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

MASK = "********"
_SHOWN = 60  # characters of a found value that are worth repeating


@dataclass(frozen=True)
class Problem:
    """One mistake.

    ``path`` has the form ``bind_mounts[0].host_path`` (empty for the whole file). ``line`` counts from
    1 and is None if the configuration did not come from text. ``message`` is a whole sentence, which
    includes the other parts.
    """

    path: str
    line: int | None
    found: str | None
    allowed: str | None
    suggestion: str | None
    message: str
    source: str | None = None

    def __str__(self) -> str:
        where = self.source or ""
        if self.line is not None:
            where = f"{where or '<config>'}:{self.line}"
        return ": ".join(part for part in (where, self.path, self.message) if part)

    def as_dict(self) -> dict[str, Any]:
        """The same as plain JSON."""
        return asdict(self)


class ConfigError(Exception):
    """A configuration cannot be used. ``str()`` lists all problems, one per line."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = list(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))


def nearest(name: object, names: Iterable[str], cutoff: float = 0.6) -> str | None:
    """The valid name that is most similar to ``name``, or None.

    Args:
        name: the name found.
        names: the valid names.
        cutoff: the least similarity (``difflib``'s ratio); a part of a name (``asha``) counts too.
    """
    if not isinstance(name, str):
        return None
    spelled = {_folded(candidate): candidate for candidate in names}
    found = _folded(name)
    close = difflib.get_close_matches(found, list(spelled), n=1, cutoff=cutoff)
    if not close and len(found) >= 4:
        close = [candidate for candidate in spelled if found in candidate.split("_")]
    return spelled[close[0]] if close else None


def show(value: object) -> str:
    """A short text for a value. Mappings and lists are not shown, because they may hold secrets."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        return "a mapping" if value else "an empty mapping"
    if isinstance(value, list):
        return "a list" if value else "an empty list"
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 4]}...{text[-1]}"


def _folded(name: str) -> str:
    return name.lower().replace("-", "_").replace(" ", "_")
