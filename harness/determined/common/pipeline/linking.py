"""Steps that refer to each other: :func:`linked` and the checks of the whole."""

from __future__ import annotations

import graphlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from determined.common.pipeline import references
from determined.common.pipeline.kinds import EVALUATE, links
from determined.common.pipeline.plan import PlannedStep
from determined.common.pipeline.problems import Problems
from determined.common.pipeline.references import ALL, ITEM, STEPS, ReferenceError_
from determined.common.pipeline.resolving import check_items
from determined.common.wire import limits
from determined.expconf.paths import Path


def linked(
    problems: Problems, path: Path, step: PlannedStep, steps: Mapping[str, PlannedStep]
) -> PlannedStep:
    """The step with the steps that it refers to among its needs."""
    others = [name for name in steps if name != step.name]
    needs = dict.fromkeys(step.needs)
    for place, name in enumerate(step.needs):
        if name not in steps or name == step.name:
            what = "itself" if name == step.name else f"{name!r}, which is not a step"
            problems.unknown((*path, "needs", place), name, others, f"it needs {what}")
            del needs[name]
    for where, value, strict in step.parts():
        for at, text, whole in references.found_in(value, strict=strict):
            try:
                reference = references.parse(text)
            except ReferenceError_:
                continue  # it is among the mistakes already
            place_of = (*path, where, *at)
            if reference.root == ITEM and where == "when":
                problems.add(place_of, f"{reference}: a condition is about the whole step")
            elif reference.root == ITEM and (step.for_each is None or where == "for_each"):
                problems.add(place_of, f"{reference}: this step has no for_each")
            elif reference.root == STEPS and reference.step not in others:
                problems.unknown(
                    place_of,
                    reference.step,
                    others,
                    f"{reference}: there is no other step {reference.step!r}",
                )
            elif reference.root == STEPS:
                needs[reference.step] = None
                if not steps[reference.step].finds:
                    problems.add(
                        place_of,
                        f"{reference}: step {reference.step!r} is of the kind "
                        f"{steps[reference.step].kind}, so it finds nothing: name it in needs, to begin "
                        "after it",
                    )
                is_value = whole or where == "when"
                _check_which(problems, place_of, reference, steps[reference.step], is_value)
    if isinstance(step.for_each, list):
        try:
            check_items(step.for_each)
        except ReferenceError_ as error:
            problems.refer((*path, "for_each"), error)
    elif step.for_each is not None and not any(
        whole for _, _, whole in references.found_in(step.for_each, strict=True)
    ):
        problems.expected((*path, "for_each"), "a list, or a reference to one", step.for_each)
    config = _link(problems, path, step, steps, needs)
    return replace(step, config=config, needs=tuple(needs))


def _link(
    problems: Problems,
    path: Path,
    step: PlannedStep,
    steps: Mapping[str, PlannedStep],
    needs: dict[str, None],
) -> dict[str, Any]:
    """The value of the step with the steps that it names, which it needs."""
    config = step.config
    if step.kind == EVALUATE and config.get("like") is None:
        config = {**config, "like": _trained_by(step, steps)}
    for field_, kind in links(step.kind, config):
        name, place = config.get(field_), (*path, step.kind, field_)
        others = [one.name for one in steps.values() if one.kind == kind]
        if name is None:
            what = f"the name of a step of the kind {kind}, in whose environment this one runs"
            problems.expected(place, what, None)
        elif name not in others:
            problems.unknown(place, str(name), others, f"{name!r} is no {kind} step")
        elif field_ == "comparison" and not steps[name].config.get("against"):
            problems.add(place, f"step {name!r} compares with nothing: give it against")
        else:
            needs[name] = None
    return config


def _check_which(
    problems: Problems,
    path: Path,
    reference: references.StepReference,
    other: PlannedStep,
    whole: bool,
) -> None:
    if reference.which is None:
        return
    if other.for_each is None:
        problems.add(
            path, f"{reference}: step {other.name!r} has no for_each, so it is one experiment"
        )
    elif isinstance(reference.which, int) and isinstance(other.for_each, list):
        if reference.which >= len(other.for_each):
            problems.add(
                path,
                f"{reference}: step {other.name!r} has {len(other.for_each)} items, numbered from 0",
            )
    elif reference.which == ALL and not whole:
        problems.add(path, f"{reference} is a list, which cannot stand inside of a text")


def check_order(
    problems: Problems, steps: Mapping[str, PlannedStep], places: Mapping[str, int]
) -> None:
    order = graphlib.TopologicalSorter({name: step.needs for name, step in steps.items()})
    try:
        order.prepare()
    except graphlib.CycleError as error:
        circle = list(reversed(error.args[1]))
        problems.add(
            ("steps", places[circle[0]], "needs"),
            "these steps wait for each other: " + " needs ".join(circle),
        )


def check_size(problems: Problems, steps: Mapping[str, PlannedStep]) -> None:
    known = sum(
        len(step.for_each) if isinstance(step.for_each, list) else 1 for step in steps.values()
    )
    if known > limits.PIPELINE_EXPERIMENTS:
        what = f"at most {limits.PIPELINE_EXPERIMENTS} experiments in all"
        problems.expected(("steps",), what, known)


def _trained_by(step: PlannedStep, steps: Mapping[str, PlannedStep]) -> str | None:
    """The experiment's step whose checkpoint the evaluation takes, if it says so by a reference."""
    for _, text, _ in references.found_in(step.config.get("checkpoint"), strict=True):
        try:
            name = references.parse(text).step
        except ReferenceError_:
            return None
        other = steps.get(name)
        if other is not None and other.kind == EVALUATE and other is not step:
            return other.config.get("like") or _trained_by(other, steps)
        return name or None
    return None
