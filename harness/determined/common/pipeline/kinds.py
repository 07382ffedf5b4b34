"""The kinds of steps: the key of a step (``experiment``, ``approval``, …) says which it is.

A step of any kind has ``name``, ``needs`` and ``when``; :data:`KINDS` says what else.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from determined.common.promotion import PromotionRule, RuleError
from determined.common.wire import limits

EXPERIMENT, APPROVAL, PROMOTE = "experiment", "approval", "promote"
EVALUATE, COMMAND = "evaluate", "command"
CHECK = "check"
"""Finds out the data's version. Only the service makes such steps, for retrainings."""
COMMON = ("name", "needs", "when")
QUESTION_CHARS = 1_000
CHAMPION = "champion"
FUNCTION = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
"""``module:function`` of a model definition."""
FUNCTION_CHARS = 500
_CHECKPOINT_CHARS = 200

Mistake = tuple[tuple[str, ...], str, Any]
"""The path of a wrong field in the value of a step, what is expected, and what was found."""


@dataclass(frozen=True, slots=True)
class StepKind:
    """``fields``: what such a step may have besides :data:`COMMON` and its value. ``value``: what that is,
    for messages. ``known``: the fields of the value; None: the kind's configuration has its own checks."""

    fields: tuple[str, ...]
    value: str
    known: tuple[str, ...] | None


FILES = ("model_dir", "include")
KINDS: Mapping[str, StepKind] = {
    EXPERIMENT: StepKind(
        (*FILES, "with", "for_each", "max_concurrent", "cached"),
        "an experiment configuration",
        None,
    ),
    EVALUATE: StepKind(
        FILES,
        "a mapping such as {function: 'evaluate:evaluate', checkpoint: '${steps.NAME.best.checkpoint}'}",
        ("function", "checkpoint", "against", "rule", "like"),
    ),
    APPROVAL: StepKind((), "a question, which is a text", ("question",)),
    PROMOTE: StepKind(
        (),
        "a mapping such as {model: digits, checkpoint: '${steps.NAME.best.checkpoint}'}, or "
        "{comparison: NAME}",
        ("model", "checkpoint", "alias", "comparison", "approval"),
    ),
    COMMAND: StepKind(
        FILES, "a command (a text or a list), or the configuration of a command", None
    ),
}
"""What a user may ask for."""
ALL_KINDS = (*KINDS, CHECK)
FINDING = (EXPERIMENT, EVALUATE, PROMOTE, CHECK)
"""Kinds of steps of which other steps may take what they have found."""
IN_TRIALS = (EVALUATE, CHECK)
"""Kinds of steps that call a function of the user's, in an experiment of one trial."""


def read_value(kind: str, value: Any) -> Any:
    """The value of a step that runs no experiment, in its long form."""
    if kind == APPROVAL and isinstance(value, str):
        return {"question": value}
    if kind == COMMAND and isinstance(value, str | list):
        return {"entrypoint": value}
    if kind == PROMOTE and isinstance(value, dict) and "comparison" not in value:
        return {"alias": CHAMPION, **value}
    if kind == EVALUATE and isinstance(value, dict) and isinstance(value.get("against"), dict):
        return {**value, "against": {"alias": CHAMPION, **value["against"]}}
    return value


def mistakes(kind: str, value: Mapping[str, Any]) -> Iterator[Mistake]:
    """Each wrong field of the value."""
    yield from _MISTAKES.get(kind, _no_mistakes)(value)


def links(kind: str, value: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The fields of the value that name another step, and the kind of that one."""
    if kind in IN_TRIALS:
        yield "like", EXPERIMENT
    if kind == PROMOTE and "comparison" in value:
        yield "comparison", EVALUATE


def _no_mistakes(value: Mapping[str, Any]) -> Iterator[Mistake]:
    return iter(())


def _text(value: Mapping[str, Any], name: str, most: int, *before: str) -> Iterator[Mistake]:
    found = value.get(name)
    if not isinstance(found, str) or not 0 < len(found.strip()) <= most:
        yield (*before, name), f"a text of 1 to {most} characters", found


def _of_approval(value: Mapping[str, Any]) -> Iterator[Mistake]:
    yield from _text(value, "question", QUESTION_CHARS)


def _of_promotion(value: Mapping[str, Any]) -> Iterator[Mistake]:
    if "comparison" not in value:
        yield from _text(value, "model", limits.MODEL_NAME_CHARS)
        yield from _text(value, "checkpoint", _CHECKPOINT_CHARS)
        if value.get("alias") is not None:  # without it the version is only registered
            yield from _text(value, "alias", limits.ALIAS_CHARS)
        if "approval" in value:
            yield ("approval",), "comparison beside it", value["approval"]
        return
    yield from _text(value, "comparison", _CHECKPOINT_CHARS)
    if not isinstance(value.get("approval", False), bool):
        yield ("approval",), "true or false", value["approval"]
    for name in ("model", "checkpoint", "alias"):
        if name in value:
            yield (name,), "nothing beside comparison, whose step names it", value[name]


def _of_evaluation(value: Mapping[str, Any]) -> Iterator[Mistake]:
    function = value.get("function")
    if (
        not isinstance(function, str)
        or len(function) > FUNCTION_CHARS
        or not (FUNCTION.fullmatch(function) or "${" in function)
    ):
        expected = (
            f"module:function, both of the model definition, of at most {FUNCTION_CHARS} characters"
        )
        yield ("function",), expected, function
    yield from _of_checkpoint(value)
    against = value.get("against")
    if against is None:
        if value.get("rule") is not None:
            yield ("against",), "the model that the rule compares with", None
        return
    if not isinstance(against, Mapping) or against.keys() - {"model", "alias"}:
        yield ("against",), "a mapping such as {model: digits, alias: champion}", against
        return
    yield from _text(against, "model", limits.MODEL_NAME_CHARS, "against")
    yield from _text(against, "alias", limits.ALIAS_CHARS, "against")
    try:
        PromotionRule.read(value.get("rule"))
    except RuleError as error:
        yield ("rule",), f"a rule ({error})", value.get("rule")


def _of_checkpoint(value: Mapping[str, Any]) -> Iterator[Mistake]:
    """A UUID, a reference, or a version of a model."""
    found = value.get("checkpoint")
    if not isinstance(found, Mapping):
        yield from _text(value, "checkpoint", _CHECKPOINT_CHARS)
        return
    version = found.get("version")
    is_number = isinstance(version, int) and not isinstance(version, bool)
    is_version = is_number or (isinstance(version, str) and 0 < len(version) <= _CHECKPOINT_CHARS)
    if found.keys() - {"model", "version"} or not is_version:
        yield ("checkpoint",), "a mapping such as {model: digits, version: champion}", found
        return
    yield from _text(found, "model", limits.MODEL_NAME_CHARS, "checkpoint")


_MISTAKES: Mapping[str, Callable[[Mapping[str, Any]], Iterator[Mistake]]] = {
    APPROVAL: _of_approval,
    PROMOTE: _of_promotion,
    EVALUATE: _of_evaluation,
}
