"""The kinds of steps: the key of a step (``experiment``, ``approval``, ``promote``) says which it is.

A step of any kind has ``name``, ``needs`` and ``when``; :data:`KINDS` says what else.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from determined.common.wire import limits

EXPERIMENT, APPROVAL, PROMOTE = "experiment", "approval", "promote"
COMMON = ("name", "needs", "when")
QUESTION_CHARS = 1_000
CHAMPION = "champion"


@dataclass(frozen=True, slots=True)
class StepKind:
    """``fields``: what such a step may have besides :data:`COMMON` and its value. ``value``: what that is,
    for messages. ``texts``: the fields of the value, and the most characters of each."""

    fields: tuple[str, ...]
    value: str
    texts: Mapping[str, int]


KINDS: Mapping[str, StepKind] = {
    EXPERIMENT: StepKind(
        ("model_dir", "include", "with", "for_each", "max_concurrent", "cached"),
        "an experiment configuration",
        {},
    ),
    APPROVAL: StepKind((), "a question, which is a text", {"question": QUESTION_CHARS}),
    PROMOTE: StepKind(
        (),
        "a mapping such as {model: digits, checkpoint: '${steps.NAME.best.checkpoint}'}",
        {
            "model": limits.MODEL_NAME_CHARS,
            "checkpoint": 200,
            "alias": limits.ALIAS_CHARS,
        },
    ),
}


def read_value(kind: str, value: Any) -> Any:
    """The value of a step that is no experiment, in its long form."""
    if kind == APPROVAL and isinstance(value, str):
        return {"question": value}
    if kind == PROMOTE and isinstance(value, dict):
        return {"alias": CHAMPION, **value}
    return value


def mistakes(kind: str, value: Mapping[str, Any]) -> Iterator[tuple[str, str, Any]]:
    """Each wrong field of the value: its name, what is expected, and what was found."""
    for name, most in KINDS[kind].texts.items():
        found = value.get(name)
        if name == "alias" and found is None:
            continue  # the version is registered, and no alias is moved
        if not isinstance(found, str) or not 0 < len(found.strip()) <= most:
            yield name, f"a text of 1 to {most} characters", found
