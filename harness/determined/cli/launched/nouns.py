"""The kinds of task that people launch, as `det` calls them."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from determined.cli.errors import CliError

if TYPE_CHECKING:
    from determined.common.api import Session

_WHOLE = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", re.IGNORECASE)
_NAMED = 5


@dataclass(frozen=True)
class Noun:
    """A kind of task. ``name``: in JSON, ``plural``: in addresses and lists, ``word``: the group of `det`,
    ``title``: for people."""

    name: str
    title: str
    word: str

    @property
    def plural(self) -> str:
        return f"{self.name}s"

    @property
    def path(self) -> str:
        return f"/api/v1/{self.plural}"


COMMAND = Noun("command", "command", "cmd")
NOTEBOOK = Noun("notebook", "notebook", "notebook")
SHELL = Noun("shell", "shell", "shell")
TENSORBOARD = Noun("tensorboard", "TensorBoard", "tensorboard")


def whole_id(session: Session, noun: Noun, word: str) -> str:
    """The id that begins with ``word``. Raises CliError if there is none, or several."""
    (found,) = whole_ids(session, noun, [word])
    return found


def whole_ids(session: Session, noun: Noun, words: Sequence[str]) -> list[str]:
    """As :func:`whole_id`, of several; asks the service once, and not at all for whole ids."""

    def known() -> list[str]:
        answer = session.get(noun.path, params={"limit": -1})
        return [item["id"] for item in answer[noun.plural]]

    return expanded(words, known, noun.title)


def expanded(words: Sequence[str], known: Callable[[], list[str]], title: str) -> list[str]:
    """Each word as the id that it is the beginning of. Raises CliError."""
    ids: list[str] | None = None
    found: dict[str, Any] = {}
    for word in words:
        if _WHOLE.fullmatch(word):
            found[word] = None
            continue
        ids = known() if ids is None else ids
        matching = [one for one in ids if one == word] or [
            one for one in ids if one.startswith(word)
        ]
        if not matching:
            raise CliError(f"no {title} has an ID that begins with {word!r}")
        if len(matching) > 1:
            shown = ", ".join(matching[:_NAMED]) + (", …" if len(matching) > _NAMED else "")
            raise CliError(f"{word!r} is the beginning of several IDs: {shown}")
        found[matching[0]] = None
    return list(found)
