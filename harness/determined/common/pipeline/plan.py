"""A pipeline's :class:`PipelinePlan` and its :class:`PlannedStep`; what a step has found: :class:`Result`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from determined.common.pipeline import kinds, references


@dataclass(frozen=True, slots=True)
class PlannedStep:
    """One experiment, or one for each item of ``for_each`` (a list, or a reference to one).

    By its ``kind`` it may be something else (:mod:`.kinds`). ``config``: the configuration (of other
    kinds, the mapping that says what to do) as it was given, with the ``overrides`` (``with``) not applied
    yet. ``needs``: the steps that must complete first, those that it refers to among them. ``code``: which
    of the model definitions that are sent with the plan. ``max_concurrent``: of its experiments, at most
    this many run at once. ``when``: the step is skipped unless this condition is true.
    """

    name: str
    config: dict[str, Any]
    overrides: dict[str, Any] = field(default_factory=dict)
    needs: tuple[str, ...] = ()
    for_each: list[Any] | str | None = None
    cached: bool = False
    code: str | None = None
    max_concurrent: int | None = None
    when: str | None = None
    kind: str = kinds.EXPERIMENT

    @property
    def is_experiment(self) -> bool:
        """Whether it runs experiments that the user has configured."""
        return self.kind == kinds.EXPERIMENT

    @property
    def finds(self) -> bool:
        """Whether other steps can take what it has found."""
        return self.kind in kinds.FINDING

    @property
    def has_config(self) -> bool:
        """Whether ``config`` is a configuration, in which a shell's ``${HOME}`` is not a reference."""
        return self.kind in (kinds.EXPERIMENT, kinds.COMMAND)

    def parts(self) -> Iterator[tuple[str, Any, bool]]:
        """Each field that may hold references, its value, and whether every ``${…}`` in it is one."""
        yield "with", self.overrides, True
        yield self.kind, self.config, not self.has_config
        yield "for_each", self.for_each, True
        yield "when", self.when, True

    def used(self) -> Iterator[references.StepReference]:
        """Every reference in it. Raises ReferenceError_."""
        for _, value, strict in self.parts():
            for _, text, _ in references.found_in(value, strict=strict):
                yield references.parse(text)

    @property
    def items_are_public(self) -> bool:
        """Whether its items are hyperparameters only, which everybody sees: no secret is among these."""
        by_override = (
            key.startswith("hyperparameters.") or key == "name"
            for key, value in self.overrides.items()
            for _, text, _ in references.found_in(value, strict=True)
            if references.parse(text).root == references.ITEM
        )
        by_config = (
            path[0] in ("hyperparameters", "name")
            for path, text, _ in references.found_in(self.config)
            if references.parse(text).root == references.ITEM
        )
        return all(by_override) and all(by_config)

    def to_json(self) -> dict[str, Any]:
        """As :func:`~determined.common.pipeline.reading.read` reads it."""
        found: dict[str, Any] = {"name": self.name, self.kind: self.config}
        if self.overrides:
            found["with"] = self.overrides
        if self.needs:
            found["needs"] = list(self.needs)
        if self.for_each is not None:
            found["for_each"] = self.for_each
        if self.cached:
            found["cached"] = True
        if self.code is not None:
            found["code"] = self.code
        if self.max_concurrent is not None:
            found["max_concurrent"] = self.max_concurrent
        if self.when is not None:
            found["when"] = self.when
        return found


def _step_from(data: Mapping[str, Any]) -> PlannedStep:
    kind = next(one for one in kinds.ALL_KINDS if one in data)
    return PlannedStep(
        data["name"],
        data[kind],
        data.get("with", {}),
        tuple(data.get("needs", ())),
        data.get("for_each"),
        data.get("cached", False),
        data.get("code"),
        data.get("max_concurrent"),
        data.get("when"),
        kind,
    )


@dataclass(frozen=True, slots=True)
class PipelinePlan:
    """Steps in the order in which they were written; their needs make no circle.

    ``schedule``, ``on``: when the pipeline runs again by itself, as the service reads it.
    """

    name: str
    steps: tuple[PlannedStep, ...]
    schedule: dict[str, Any] | None = None
    on: tuple[dict[str, Any], ...] = ()

    def step(self, name: str) -> PlannedStep:
        """The step of that name."""
        return next(one for one in self.steps if one.name == name)

    def to_json(self) -> dict[str, Any]:
        """As :func:`~determined.common.pipeline.reading.read` reads it."""
        found: dict[str, Any] = {"name": self.name, "steps": [one.to_json() for one in self.steps]}
        if self.schedule is not None:
            found["schedule"] = self.schedule
        if self.on:
            found["on"] = list(self.on)
        return found

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> PipelinePlan:
        """Read the JSON of :meth:`to_json`, which was checked when it was written."""
        steps = tuple(_step_from(one) for one in data["steps"])
        return cls(data["name"], steps, data.get("schedule"), tuple(data.get("on", ())))

    def wants_checkpoint(self, name: str) -> bool:
        """Whether another step takes a checkpoint of the step ``name``."""
        return any(
            one.step == name and one.path[:1] == (references.CHECKPOINT,)
            for step in self.steps
            for one in step.used()
        )


@dataclass(frozen=True, slots=True)
class Result:
    """The results of a step: of a completed experiment its best trial, by the searcher's metric.

    ``value`` is that metric, None if no trial has reported it. ``checkpoint``: the trial's best one; None: it
    has none that could be used. Of an evaluation that compares: ``decision`` says whether the checkpoint is
    promoted, in place of which version of which model. A promotion has no experiment.
    """

    experiment: int | None = None
    trial: int | None = None
    checkpoint: str | None = None
    hparams: dict[str, Any] = field(default_factory=dict)
    metrics: dict[str, Any] = field(default_factory=dict)
    value: float | None = None
    smaller_is_better: bool = True
    item: Any = None
    decision: dict[str, Any] | None = None
