"""References to values: the configurations and items of a step, once its needs have completed."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

from determined.common.pipeline import conditions, references
from determined.common.pipeline.plan import PlannedStep, Result
from determined.common.pipeline.references import (
    ALL,
    CHECKPOINT,
    HPARAMS,
    ITEM,
    METRICS,
    ReferenceError_,
    StepReference,
)
from determined.common.wire import limits

Results = Mapping[str, Sequence[Result]]
"""By step, the results of its experiments, in the order of its items."""

NO_ITEM = object()


def configuration(step: PlannedStep, results: Results, item: Any = NO_ITEM) -> dict[str, Any]:
    """The step's configuration for ``item``; of a step that runs no experiment, what it is to do.

    Raises ReferenceError_.
    """

    def find(reference: StepReference) -> Any:
        return value_of(reference, results, item)

    config = references.substitute(copy.deepcopy(step.config), find, strict=not step.has_config)
    for key, value in step.overrides.items():
        put(config, key, references.substitute(copy.deepcopy(value), find, strict=True))
    return dict(config)


def skipped_because(step: PlannedStep, results: Results) -> str | None:
    """Why the step is skipped; None: its condition, if it has one, is true. Raises ReferenceError_."""
    if step.when is None:
        return None

    def find(reference: StepReference) -> Any:
        return value_of(reference, results, NO_ITEM)

    if conditions.holds(step.when, find):
        return None
    return f"its condition is false: {conditions.shown(step.when, find)}"


def items(step: PlannedStep, results: Results) -> list[Any]:
    """The items over which the step fans out. Raises ReferenceError_."""

    def find(reference: StepReference) -> Any:
        return value_of(reference, results, NO_ITEM)

    found = references.substitute(copy.deepcopy(step.for_each), find, strict=True)
    if not isinstance(found, list):
        raise ReferenceError_(f"for_each: {step.for_each} is not a list")
    check_items(found)
    return found


def check_items(found: list[Any]) -> None:
    """Raises ReferenceError_ for none, or for too many."""
    if not 0 < len(found) <= limits.PIPELINE_ITEMS:
        raise ReferenceError_(
            f"for_each: {len(found)} items found, 1 to {limits.PIPELINE_ITEMS} are allowed",
            str(len(found)),
        )


def put(config: dict[str, Any], key: str, value: Any) -> None:
    """Sets the field ``a.b.c``. Raises ReferenceError_ where the path leads through a value."""
    *before, last = key.split(".")
    holder: Any = config
    for place, name in enumerate(before):
        if isinstance(holder, dict):
            if holder.get(name) is None:
                holder[name] = {}
            holder = holder[name]
        elif isinstance(holder, list) and name.isdigit() and int(name) < len(holder):
            holder = holder[int(name)]
        else:
            raise _no_way(key, before[:place], holder)
    if isinstance(holder, dict):
        holder[last] = value
    elif isinstance(holder, list) and last.isdigit() and int(last) < len(holder):
        holder[int(last)] = value
    else:
        raise _no_way(key, before, holder)


def _no_way(key: str, before: list[str], holder: Any) -> ReferenceError_:
    kind = (
        f"a list of {len(holder)} entries, numbered from 0"
        if isinstance(holder, list)
        else "a single value, which has no fields to set"
    )
    return ReferenceError_(f"with: {key}: {'.'.join(before)} is {kind}")


def value_of(reference: StepReference, results: Results, item: Any) -> Any:
    """Raises ReferenceError_."""
    if reference.root == ITEM:
        if item is NO_ITEM:
            raise ReferenceError_(f"{reference}: this step has no for_each")
        return references.look_up(item, reference.path, reference, "the item")
    found = results[reference.step]
    if reference.which == ALL:
        return [_field(reference, one) for one in found]
    if isinstance(reference.which, int):
        if reference.which >= len(found):
            raise ReferenceError_(
                f"{reference}: step {reference.step!r} has {len(found)} experiments, numbered from 0"
            )
        return _field(reference, found[reference.which])
    return _field(reference, best_of(found))


def best_of(results: Sequence[Result]) -> Result:
    """The result with the best searcher's metric; without any, the first."""

    def rank(place: int) -> tuple[bool, float, int]:
        one = results[place]
        if one.value is None or one.value != one.value:
            return (True, 0.0, place)
        return (False, one.value if one.smaller_is_better else -one.value, place)

    return results[min(range(len(results)), key=rank)]


def _field(reference: StepReference, result: Result) -> Any:
    field, rest = reference.path[0], reference.path[1:]
    where = f"trial {result.trial}, the best of experiment {result.experiment},"
    if field == "experiment":
        return result.experiment
    if result.trial is None and result.experiment is not None:
        raise ReferenceError_(f"{reference}: experiment {result.experiment} has no trial")
    if field == "trial":
        return result.trial
    if field == CHECKPOINT:
        if result.checkpoint is None:
            raise ReferenceError_(
                f"{reference}: {where} has no checkpoint that could be used: its code must save one at "
                "the step of a validation, and its checkpoint policy must keep it"
            )
        return result.checkpoint
    if field == HPARAMS:
        return references.look_up(result.hparams, rest, reference, where[:-1])
    if field == METRICS:
        what = f"step {reference.step!r}"
        if result.trial is not None:
            what = f"the best validation of trial {result.trial} of experiment {result.experiment}"
        return references.look_up(result.metrics, rest, reference, what)
    return references.look_up(result.item, rest, reference, "the item")
