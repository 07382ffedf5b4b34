"""References inside of texts: ``${steps.NAME.best.checkpoint}``, ``${item}``, ``${params.NAME}``."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from determined.expconf.paths import Path
from determined.expconf.problems import nearest

STEPS, ITEM, PARAMS = "steps", "item", "params"
ROOTS = (STEPS, ITEM, PARAMS)
ALL = "*"
CHECKPOINT, HPARAMS, METRICS = "checkpoint", "hparams", "metrics"
BEST = (CHECKPOINT, "experiment", HPARAMS, "item", METRICS, "trial")
"""What ``best`` of a step has."""

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")
_REFERENCE = re.compile(r"\$(\$?)\{([^{}]*)\}")
_HEAD = re.compile(r"\s*([A-Za-z_]\w*)")
_STEP = re.compile(r"\.([^.\[\]\s]+)|\[(\d{1,6}|\*|[^\[\]]+)\]")


class ReferenceError_(ValueError):  # noqa: N801 - ReferenceError is Python's own
    """A reference that cannot be read, or that leads to nothing; the text is meant for the user.

    ``found``, ``allowed``, ``suggestion``: as of a problem of a configuration.
    """

    def __init__(
        self,
        message: str,
        found: str | None = None,
        allowed: str | None = None,
        suggestion: str | None = None,
    ) -> None:
        if suggestion:
            message += f"; did you mean {suggestion!r}?"
        if allowed:
            message += f" (allowed: {allowed})"
        super().__init__(message)
        self.found, self.allowed, self.suggestion = found, allowed, suggestion


@dataclass(frozen=True, slots=True)
class StepReference:
    """``which``: of a fan-out, the place of one item, or ALL; None: the best of them.

    ``path``: the keys behind ``best``, ``item`` or ``params``. ``what``: ``best`` or ``experiment``.
    """

    text: str
    root: str
    step: str = ""
    which: int | str | None = None
    what: str = ""
    path: Path = ()

    def __str__(self) -> str:
        return f"${{{self.text}}}"


def parse(text: str) -> StepReference:
    """The reference between the braces. Raises ReferenceError_."""
    head, keys = _keys(text)
    if head == ITEM:
        return StepReference(text, ITEM, path=keys)
    if head == PARAMS:
        if len(keys) != 1:
            raise ReferenceError_(f"${{{text}}}: expected ${{params.NAME}}", text)
        return StepReference(text, PARAMS, path=keys)
    if head != STEPS:
        raise ReferenceError_(
            f"${{{text}}}: a reference begins with one of three words, found {head!r}",
            head,
            ", ".join(ROOTS),
            nearest(head, ROOTS),
        )
    if not keys or not isinstance(keys[0], str):
        raise ReferenceError_(f"${{{text}}}: expected ${{steps.NAME.best…}}", text)
    name, rest = keys[0], keys[1:]
    which: int | str | None = None
    if rest and (isinstance(rest[0], int) or rest[0] == ALL):
        which, rest = rest[0], rest[1:]
    what = rest[0] if rest else None
    if what == "experiment" and rest[1:] == ("id",):
        return StepReference(text, STEPS, name, which, "experiment", ("experiment",))
    if what == "experiment":
        raise ReferenceError_(f"${{{text}}}: of an experiment there is .id only", text, "id")
    if what != "best":
        raise ReferenceError_(
            f"${{{text}}}: of a step there is .best and .experiment.id, found "
            + (repr(what) if what is not None else "nothing"),
            str(what),
            "best, experiment",
            nearest(what, ("best", "experiment")),
        )
    _check_best(text, rest[1:])
    return StepReference(text, STEPS, name, which, "best", rest[1:])


def _check_best(text: str, path: Path) -> None:
    field = path[0] if path else None
    if field not in BEST:
        raise ReferenceError_(
            f"${{{text}}}: unknown field of best"
            + (f": {field!r}" if field is not None else ", found nothing"),
            str(field),
            ", ".join(BEST),
            nearest(field, BEST),
        )
    if len(path) > 1 and field not in (HPARAMS, METRICS, "item"):
        raise ReferenceError_(f"${{{text}}}: best.{field} is a single value", text)


def _keys(text: str) -> tuple[str, Path]:
    head = _HEAD.match(text)
    if head is None:
        raise ReferenceError_(f"${{{text}}}: expected a reference such as ${{steps.NAME.best…}}")
    keys: list[str | int] = []
    place, end = head.end(), len(text.rstrip())
    while place < end:
        found = _STEP.match(text, place)
        if found is None:
            raise ReferenceError_(
                f"${{{text}}}: {text[place:]!r} cannot be read: expected .name or [number]", text
            )
        name, inside = found.groups()
        keys.append(name if name is not None else int(inside) if inside.isdigit() else inside)
        place = found.end()
    return head[1], tuple(keys)


def _is_ours(inside: str, strict: bool) -> bool:
    """True if a ``${…}`` is a reference of a pipeline, and not a shell's. ``strict``: all are."""
    head = _HEAD.match(inside)
    if strict or head is None:
        return strict
    if head[1] in ROOTS:
        return True
    # No shell takes a dot there: a misspelled word.
    return "." in inside and nearest(head[1], ROOTS) is not None


def found_in(
    value: Any, path: Path = (), *, strict: bool = False
) -> Iterator[tuple[Path, str, bool]]:
    """Each reference in ``value``: where it stands, what is between its braces, whether it is the whole
    value. ``strict``: every ``${…}`` is one; otherwise those are the shell's that begin with other words."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from found_in(inner, (*path, key), strict=strict)
    elif isinstance(value, list):
        for place, inner in enumerate(value):
            yield from found_in(inner, (*path, place), strict=strict)
    elif isinstance(value, str) and "${" in value:
        for one in _REFERENCE.finditer(value):
            if not one[1] and _is_ours(one[2], strict):
                yield path, one[2], one[0] == value.strip()


def substitute(
    value: Any, find: Callable[[StepReference], Any], *, strict: bool = False, partly: bool = False
) -> Any:
    """A copy with each reference replaced by what ``find`` says. One that is the whole value keeps its type.

    ``partly``: it will be done again, so what is escaped stays so. Raises ReferenceError_.
    """
    if isinstance(value, dict):
        return {
            key: substitute(inner, find, strict=strict, partly=partly)
            for key, inner in value.items()
        }
    if isinstance(value, list):
        return [substitute(inner, find, strict=strict, partly=partly) for inner in value]
    if not isinstance(value, str) or "${" not in value:
        return value
    whole = _REFERENCE.fullmatch(value.strip())
    if whole is not None and not whole[1] and _is_ours(whole[2], strict):
        return find(parse(whole[2]))

    def text_of(one: re.Match[str]) -> str:
        if not _is_ours(one[2], strict):
            return one[0]
        if one[1]:  # $${…} stands for ${…}
            return one[0] if partly else one[0][1:]
        return _as_text(parse(one[2]), find)

    return _REFERENCE.sub(text_of, value)


def _as_text(reference: StepReference, find: Callable[[StepReference], Any]) -> str:
    value = find(reference)
    if isinstance(value, dict | list) or value is None:
        kind = "nothing" if value is None else "a list" if isinstance(value, list) else "a mapping"
        raise ReferenceError_(
            f"{reference} is {kind}, which cannot stand inside of a text: let it be the whole value"
        )
    return ("true" if value else "false") if isinstance(value, bool) else str(value)


def look_up(value: Any, path: Path, reference: StepReference, what: str) -> Any:
    """The value at ``path`` in ``value``, which is called ``what``. Raises ReferenceError_."""
    for place, key in enumerate(path):
        if isinstance(value, dict):
            # The names of metrics and hyperparameters may have dots.
            rest = ".".join(str(one) for one in path[place:])
            if rest in value:
                return value[rest]
            if key in value:
                value = value[key]
                continue
            names = sorted(value)
            listed = ", ".join(names[:20]) + (" …" if len(names) > 20 else "")
            raise ReferenceError_(
                f"{reference}: {what} has no {rest!r}", rest, listed or None, nearest(rest, names)
            )
        if isinstance(value, list) and isinstance(key, int):
            if key < len(value):
                value = value[key]
                continue
            raise ReferenceError_(f"{reference}: {what} has {len(value)} entries, numbered from 0")
        raise ReferenceError_(f"{reference}: {what} has nothing below {key!r}")
    return value
