"""The configuration of each step, checked before the steps have run that it takes values of: :func:`check`.

What is not known yet is played by a value of its kind: a hyperparameter by one of its range, a checkpoint
by a UUID. Mistakes at such a place are no mistakes yet.
"""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from determined import expconf
from determined.common.pipeline import references
from determined.common.pipeline.kinds import COMMAND
from determined.common.pipeline.plan import PlannedStep, Result
from determined.common.pipeline.problems import Problems
from determined.common.pipeline.reading import Draft
from determined.common.pipeline.references import HPARAMS, STEPS, ReferenceError_
from determined.common.pipeline.resolving import NO_ITEM, configuration, items
from determined.common.wire import limits
from determined.expconf import paths, tasks
from determined.expconf.document import Document
from determined.expconf.paths import Path
from determined.expconf.problems import ConfigError, Problem, nearest

SOME_CHECKPOINT = str(uuid.UUID(int=0))


class _Anything(dict[str, Any]):
    """A mapping of which nothing is known."""

    def __contains__(self, key: object) -> bool:
        return True

    def __getitem__(self, key: str) -> Any:
        return 0.5


@dataclass(frozen=True, slots=True)
class SampleConfig:
    """A configuration that a step may have. ``open_paths``: what in it is not known yet."""

    config: dict[str, Any]
    open_paths: frozenset[Path]


def check(draft: Draft, most_items: int = limits.PIPELINE_ITEMS) -> None:
    """Check every step, with at most this number of its items. Raises ConfigError with all mistakes, each in
    the file where it stands."""
    problems = Problems(draft.document)
    results: dict[str, list[Result]] = {}
    for step in in_order(draft):
        path: Path = ("steps", draft.places[step.name])
        _check_hparams(problems, path, step, {one.name: one for one in draft.plan.steps})
        try:
            for example in itertools.islice(examples(step, results), most_items):
                if step.has_config and _check_one(problems, draft, path, step, example):
                    break
        except ReferenceError_ as error:
            if not problems.found:  # otherwise it follows from these
                problems.refer(path, error)
        results[step.name] = _results(step, results)
    problems.finish()


def some_examples(draft: Draft) -> Iterator[tuple[PlannedStep, SampleConfig]]:
    """One configuration of each experiment of a draft that :func:`check` has no mistake in."""
    results: dict[str, list[Result]] = {}
    for step in in_order(draft):
        if step.is_experiment:
            yield step, next(examples(step, results))
        results[step.name] = _results(step, results)


def in_order(draft: Draft) -> Iterator[PlannedStep]:
    """The steps, each after those that it needs."""
    done: set[str] = set()
    left = list(draft.plan.steps)
    while left:
        ready = [step for step in left if set(step.needs) <= done]
        yield from ready
        done |= {step.name for step in ready}
        left = [step for step in left if step.name not in done]


def examples(step: PlannedStep, results: Mapping[str, list[Result]]) -> Iterator[SampleConfig]:
    """A configuration for each item; raises ReferenceError_."""
    for item in _items(step, results):
        yield SampleConfig(configuration(step, results, item), _open(step))


def _items(step: PlannedStep, results: Mapping[str, list[Result]]) -> list[Any]:
    return [NO_ITEM] if step.for_each is None else items(step, results)


def _open(step: PlannedStep) -> frozenset[Path]:
    """The paths of the values that are not known yet."""
    found: set[Path] = set()
    unknown_item = isinstance(step.for_each, str) or any(
        True for _ in references.found_in(step.for_each, strict=True)
    )

    def is_open(text: str) -> bool:
        root = references.parse(text).root
        return root == STEPS or (root == references.ITEM and unknown_item)

    for path, text, _ in references.found_in(step.config):
        if is_open(text):
            found.add(path)
    for key, value in step.overrides.items():
        at = tuple(int(one) if one.isdigit() else one for one in key.split("."))
        for path, text, _ in references.found_in(value, strict=True):
            if is_open(text):
                found.add((*at, *path))
    return frozenset(found)


def _check_one(
    problems: Problems, draft: Draft, path: Path, step: PlannedStep, example: SampleConfig
) -> bool:
    """Adds the mistakes of the step's configuration; whether there are any."""
    source = draft.configs.get(step.name)
    overridden = {tuple(key.split(".")): key for key in step.overrides}
    marks = {} if source is None else source.marks
    try:
        document = Document(example.config, source.source if source else "", marks)
        if step.kind == COMMAND:
            tasks.check_task(document, tasks.CommandConfig)
        else:
            expconf.check(document)
    except ConfigError as error:
        before = len(problems.found)
        for one in error.problems:
            at = paths.parse(one.path)
            if any(at[: len(known)] == known for known in example.open_paths):
                continue
            _place(problems, path, step, one, at, overridden, inline=_is_inline(draft, step))
        return len(problems.found) > before
    return False


def _is_inline(draft: Draft, step: PlannedStep) -> bool:
    given = draft.document.data["steps"][draft.places[step.name]].get(step.kind)
    return isinstance(given, dict)


def _place(
    problems: Problems,
    path: Path,
    step: PlannedStep,
    one: Problem,
    at: Path,
    overridden: Mapping[tuple[str, ...], str],
    *,
    inline: bool,
) -> None:
    words = tuple(str(part) for part in at)
    for parts, key in overridden.items():
        if words[: len(parts)] == parts:
            where: Path = (*path, "with", key)
            said = one.message if words == parts else f"{paths.render(at)}: {one.message}"
            problems.add(where, said, one.found, one.allowed, one.suggestion)
            return
    if inline:
        problems.add((*path, step.kind, *at), one.message, one.found, one.allowed, one.suggestion)
        return
    placed = replace(one, source=one.source or None)
    if placed not in problems.found:
        problems.found.append(placed)


def _check_hparams(
    problems: Problems, path: Path, step: PlannedStep, steps: Mapping[str, PlannedStep]
) -> None:
    """A hyperparameter that a step refers to is one of the other step's, and so its metric's name."""
    for where, value, strict in step.parts():
        for at, text, _ in references.found_in(value, strict=strict):
            reference = references.parse(text)
            if reference.root != STEPS or reference.path[:1] != (HPARAMS,):
                continue
            hparams = _hparams(steps[reference.step])
            here: Any = hparams
            for place, key in enumerate(reference.path[1:]):
                if not isinstance(here, dict) or "type" in here:
                    break
                rest = ".".join(str(one) for one in reference.path[1 + place :])
                if rest in here:
                    break
                if key not in here:
                    names = [str(one) for one in here]
                    hint = nearest(key, names)
                    problems.add(
                        (*path, where, *at),
                        f"{reference}: step {reference.step!r} has no hyperparameter {rest!r}"
                        + (f"; did you mean {hint!r}?" if hint else "")
                        + f" (allowed: {', '.join(names) or 'none'})",
                        rest,
                        ", ".join(names),
                        hint,
                    )
                    break
                here = here[str(key)]


def _hparams(step: PlannedStep) -> Any:
    """The hyperparameters of the step's configuration as they are written."""
    found = step.config.get("hyperparameters")
    made: dict[str, Any] = dict(found) if isinstance(found, dict) else {}
    for key, value in step.overrides.items():
        first, _, rest = key.partition(".")
        if first != "hyperparameters":
            continue
        if not rest:
            made = dict(value) if isinstance(value, dict) else {}
            continue
        here = made
        *before, last = rest.split(".")
        for name in before:
            inner = here.get(name)
            here[name] = dict(inner) if isinstance(inner, dict) else {}
            here = here[name]
        here[last] = value
    return made


def _results(step: PlannedStep, results: Mapping[str, list[Result]]) -> list[Result]:
    """Possible results of the step, one for each item that it has or may have."""
    try:
        listed = _items(step, results)
    except ReferenceError_:
        listed = [_Anything()]
    try:
        config = configuration(step, results, listed[0])
    except ReferenceError_:
        config = {}
    hparams = config.get("hyperparameters")
    sample = _sample_of_group(hparams if isinstance(hparams, dict) else {})
    return [Result(1, 1, SOME_CHECKPOINT, sample, _Anything(), 0.5, True, item) for item in listed]


def _sample_of_group(group: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _sample(value) for name, value in group.items()}


def _sample(value: Any) -> Any:
    """One value of a hyperparameter's range."""
    if not isinstance(value, dict):
        return value
    kind = value.get("type")
    if kind is None:
        return _sample_of_group(value)
    if kind == "const":
        return value.get("val")
    if kind == "categorical":
        listed = value.get("vals")
        return listed[0] if isinstance(listed, list) and listed else None
    least = value.get("minval", 0)
    if kind == "log" and isinstance(least, int | float):
        try:
            return float(value.get("base", 10.0)) ** least
        except (OverflowError, TypeError, ValueError, ZeroDivisionError):
            return 1.0
    return least
