"""Pipelines of experiments, in Python (docs/automate/pipelines.md)::

from determined.experimental import pipeline

search = pipeline.Step("search", "search.yaml", "code/")
train = pipeline.Step(
    "train",
    "train.yaml",
    "code/",
    overrides={
        "hyperparameters.lr": search.best.hparams.lr,
        "searcher.source_checkpoint_uuid": search.best.checkpoint,
    },
)
run = pipeline.submit(pipeline.Pipeline("digits", [search, train]))
run.wait()
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from determined.common.api import pages
from determined.common.api.patience import patiently
from determined.common.api.tasks import warnings_of

if TYPE_CHECKING:
    from determined.common.api import Session
    from determined.common.context import ContextItem
    from determined.common.pipeline.plan import PipelinePlan
    from determined.expconf import Document
    from determined.experimental._determined import Determined

PIPELINES = "/api/v1/pipelines"
# Packing, storing and checking take a while.
_TIMEOUT_S = 300.0
_POLL_S = (0.2, 5.0)
ENDED = ("COMPLETED", "FAILED", "CANCELED")


class Reference:
    """Something that a step will have found: ``step.best.hparams.lr``, ``step.best["hparams"]["my lr"]``,
    ``step[2].best.checkpoint``, ``step.all.best.checkpoint`` (a list). ``str()`` is its text in YAML."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __getattr__(self, name: str) -> Reference:
        if name.startswith("_"):
            raise AttributeError(name)
        return Reference(f"{self._text}.{name}")

    def __getitem__(self, key: str | int) -> Reference:
        return Reference(f"{self._text}[{key}]")

    def __str__(self) -> str:
        return f"${{{self._text}}}"

    __repr__ = __str__


item = Reference("item")
"""The item of a step with ``for_each`` that an experiment is for."""


@dataclass
class Step:
    """One experiment, or one for each item of ``for_each``.

    Args:
        experiment: a configuration, or the path of one.
        model_dir: the directory with the training code; ``include``: further files and directories.
        needs: steps, or their names, that must complete first. Those it refers to need not be named.
        overrides: fields of the configuration (``a.b.c``) and their values; ``with`` in YAML.
        for_each: a list, or a reference to one. ``item`` stands for each of its items.
        when: a condition such as ``f"{search.best.metrics.accuracy} > 0.9"``; unless it is true the step, and
            with it those that need it, are skipped.
        max_concurrent: at most this many of its experiments run at once.
        cached: take this user's experiment of the same configuration and code, if it runs or has completed.
    """

    name: str
    experiment: str | Path | Mapping[str, Any]
    model_dir: str | Path | None = None
    include: Sequence[str | Path] = ()
    needs: Sequence[str | AnyStep] = ()
    overrides: Mapping[str, Any] = field(default_factory=dict)
    for_each: Sequence[Any] | Reference | None = None
    cached: bool = False
    max_concurrent: int | None = None
    when: str | None = None

    @property
    def best(self) -> Reference:
        """What the best trial has found: ``checkpoint``, ``hparams``, ``metrics``, ``trial``, ``experiment``,
        ``item``."""
        return Reference(f"steps.{self.name}.best")

    @property
    def experiment_id(self) -> Reference:
        """The number of its experiment; of several, of the best."""
        return Reference(f"steps.{self.name}.experiment.id")

    @property
    def all(self) -> Reference:
        """Of a step with ``for_each``: ``.best…`` of this is the list of what each experiment found."""
        return Reference(f"steps.{self.name}[*]")

    def __getitem__(self, place: int) -> Reference:
        """Of a step with ``for_each``: its experiment for one item."""
        return Reference(f"steps.{self.name}[{place}]")

    def _to_data(self) -> dict[str, Any]:
        config = self.experiment
        found: dict[str, Any] = {
            "name": self.name,
            "experiment": _plain(config) if isinstance(config, Mapping) else str(config),
            "model_dir": None if self.model_dir is None else str(self.model_dir),
            "include": [str(one) for one in self.include],
            "needs": _names(self.needs),
            "with": _plain(self.overrides),
            "for_each": None if self.for_each is None else _plain(self.for_each),
            "when": self.when,
            "max_concurrent": self.max_concurrent,
            "cached": self.cached,
        }
        return _without_nothing(found)


@dataclass
class Approval:
    """A person must approve before the steps that need this one begin: ``det pipeline approve``.

    Args:
        question: what the person decides.
        needs, when: as of :class:`Step`.
    """

    name: str
    question: str
    needs: Sequence[str | AnyStep] = ()
    when: str | None = None

    def _to_data(self) -> dict[str, Any]:
        return _without_nothing(
            {
                "name": self.name,
                "approval": self.question,
                "needs": _names(self.needs),
                "when": self.when,
            }
        )


@dataclass
class Promotion:
    """A checkpoint becomes the next version of a model, which is made if there is none.

    Args:
        checkpoint: such as ``train.best.checkpoint``.
        alias: stands for the new version from then on; None: no alias is moved.
        comparison: instead of model, checkpoint and alias, an :class:`Evaluation` that names them: the alias
            is moved if its rule says so.
        approval: with ``comparison``, a person must approve before the alias is moved.
        needs, when: as of :class:`Step`.
    """

    name: str
    model: str = ""
    checkpoint: str | Reference = ""
    alias: str | None = "champion"
    comparison: str | Evaluation | None = None
    approval: bool = False
    needs: Sequence[str | AnyStep] = ()
    when: str | None = None

    def _to_data(self) -> dict[str, Any]:
        given: dict[str, Any] = {
            "model": self.model,
            "checkpoint": str(self.checkpoint),
            "alias": self.alias,
        }
        if self.comparison is not None:
            given = {"comparison": _names([self.comparison])[0], "approval": self.approval}
        return _without_nothing(
            {
                "name": self.name,
                "promote": given,
                "needs": _names(self.needs),
                "when": self.when,
            }
        )

    @property
    def best(self) -> Reference:
        """What it has found: ``metrics.version``, ``metrics.promoted`` (the alias stands for the version)."""
        return Reference(f"steps.{self.name}.best")


@dataclass
class Evaluation:
    """Scores a checkpoint by a function of yours, in a trial; compared with a model's champion, if asked.

    Args:
        function: ``module:function`` of the model definition (docs/automate/retraining.md).
        checkpoint: such as ``train.best.checkpoint``, or ``{"model": "digits", "version": "champion"}``.
        model_dir: the directory with the function; ``include``: further files and directories.
        against: the model whose ``alias`` it is compared with, by the ``rule``.
        like: the experiment's step in whose environment it runs; default: the one of the checkpoint.
        needs, when: as of :class:`Step`.
    """

    name: str
    function: str
    checkpoint: str | Reference | Mapping[str, Any]
    model_dir: str | Path | None = None
    include: Sequence[str | Path] = ()
    against: str | None = None
    alias: str = "champion"
    rule: Mapping[str, Any] | None = None
    like: str | AnyStep | None = None
    needs: Sequence[str | AnyStep] = ()
    when: str | None = None

    @property
    def best(self) -> Reference:
        """What it has found: ``metrics`` (``champion_NAME`` are the champion's; ``better``: the rule promotes
        it), ``checkpoint``."""
        return Reference(f"steps.{self.name}.best")

    def _to_data(self) -> dict[str, Any]:
        against = self.against and {"model": self.against, "alias": self.alias}
        given = {
            "function": self.function,
            "checkpoint": _plain(self.checkpoint),
            "against": against,
            "rule": self.rule and _plain(self.rule),
            "like": None if self.like is None else _names([self.like])[0],
        }
        return _step_of(self, {"evaluate": _without_nothing(given)})


@dataclass
class Command:
    """A program; unless it exits with 0 the step fails.

    Args:
        command: a text or a list of words, or the configuration of a command.
        model_dir: the directory in which it runs; ``include``: further files and directories.
        needs, when: as of :class:`Step`.
    """

    name: str
    command: str | Sequence[str] | Mapping[str, Any]
    model_dir: str | Path | None = None
    include: Sequence[str | Path] = ()
    needs: Sequence[str | AnyStep] = ()
    when: str | None = None

    def _to_data(self) -> dict[str, Any]:
        return _step_of(self, {"command": _plain(self.command)})


AnyStep = Step | Approval | Promotion | Evaluation | Command


def _step_of(step: Evaluation | Command, value: Mapping[str, Any]) -> dict[str, Any]:
    return _without_nothing(
        {
            "name": step.name,
            **value,
            "model_dir": None if step.model_dir is None else str(step.model_dir),
            "include": [str(one) for one in step.include],
            "needs": _names(step.needs),
            "when": step.when,
        }
    )


def _names(steps: Sequence[str | AnyStep]) -> list[str]:
    return [one if isinstance(one, str) else one.name for one in steps]


def _without_nothing(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value not in (None, [], {}, False)}


@dataclass
class Pipeline:
    """Steps that take what earlier ones have found.

    ``schedule`` (such as ``{"cron": "@daily"}``), ``on``: when it runs again by itself.
    """

    name: str
    steps: Sequence[AnyStep]
    schedule: Mapping[str, Any] | None = None
    on: Sequence[Mapping[str, Any]] = ()

    def to_data(self) -> dict[str, Any]:
        """As in YAML."""
        steps = [step._to_data() for step in self.steps]
        again = {"schedule": self.schedule, "on": list(self.on)}
        return {"name": self.name, "steps": steps, **_without_nothing(again)}


def _plain(value: Any) -> Any:
    if isinstance(value, Reference):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return value


@dataclass(frozen=True)
class Planned:
    """A pipeline that was checked as far as that is possible without the service.

    ``files``: by name. ``project_id``: the project of its experiments; None: Uncategorized's.
    """

    plan: PipelinePlan
    files: dict[str, list[ContextItem]]
    project_id: int | None = None

    def body(self) -> dict[str, Any]:
        """The request, but for its key."""
        from determined.common import context

        return {
            "pipeline": self.plan.to_json(),
            "modelDefinitions": {name: context.to_json(one) for name, one in self.files.items()},
            **({} if self.project_id is None else {"projectId": self.project_id}),
        }


def plan(
    given: Pipeline | str | Path | Mapping[str, Any], params: Mapping[str, Any] | None = None
) -> Planned:
    """Reads a pipeline (a YAML file, a mapping, or :class:`Pipeline`), its configurations and its files.

    Paths in a file are looked for beside it. Raises ConfigError with all mistakes, ContextError.
    """
    from dataclasses import replace

    from determined import expconf
    from determined.common import context
    from determined.common import pipeline as pipelines
    from determined.expconf.plain import plain_copy

    folder = Path()
    document: Document
    if isinstance(given, str | Path):
        folder = Path(given).parent
        document = expconf.read_yaml(given)
    else:
        data = given.to_data() if isinstance(given, Pipeline) else given
        document = expconf.Document(plain_copy(_plain(data)), "")
    draft = pipelines.read(document, lambda path: expconf.read_yaml(folder / path), params)
    pipelines.check(draft)
    packed: dict[tuple[str | None, tuple[str, ...]], str] = {}
    files: dict[str, list[ContextItem]] = {}
    steps = []
    for step in draft.plan.steps:
        wanted = draft.files[step.name]
        if wanted not in packed:
            model_dir, include = wanted
            found = context.pack(
                None if model_dir is None else folder / model_dir,
                [folder / one for one in include],
            )
            packed[wanted] = f"{len(packed)}" if found else ""
            if found:
                files[packed[wanted]] = found
        steps.append(replace(step, code=packed[wanted] or None))
    return Planned(replace(draft.plan, steps=tuple(steps)), files)


def submit(
    given: Pipeline | str | Path | Mapping[str, Any],
    *,
    params: Mapping[str, Any] | None = None,
    client: Determined | None = None,
    idempotency_key: str | None = None,
    project_id: int | None = None,
) -> PipelineRun:
    """Checks the pipeline, and has the cluster run it.

    ``params``: in the place of the values in the file. ``project_id``: the project of its experiments;
    ``idempotency_key``: another submission with the same
    key is the same pipeline. Raises ConfigError and ContextError before anything is sent, or
    BadRequestException.
    """
    from dataclasses import replace

    planned = replace(plan(given, params), project_id=project_id)
    return send(_session(client), planned, idempotency_key)


def get(pipeline_id: int, *, client: Determined | None = None) -> PipelineRun:
    """A pipeline that was submitted. Raises NotFoundException."""
    run = PipelineRun(pipeline_id, _session(client))
    run.describe()
    return run


def list_pipelines(*, client: Determined | None = None) -> list[dict[str, Any]]:
    """The pipelines, the latest first, as the service's JSON."""
    return read_pipelines(_session(client))


def read_pipelines(session: Session) -> list[dict[str, Any]]:
    """As :func:`list_pipelines`."""
    return list(pages.read(session, PIPELINES, "pipelines"))


def validate(session: Session, planned: Planned) -> list[str]:
    """Has the service check it, which stores nothing; its warnings. Raises BadRequestException."""
    body = {**planned.body(), "validateOnly": True}
    return warnings_of(session.post(PIPELINES, json=body, timeout=_TIMEOUT_S))


def send(session: Session, planned: Planned, key: str | None = None) -> PipelineRun:
    """Submits it, once, also when the answer got lost and it is sent again."""
    body = {**planned.body(), "idempotencyKey": key or uuid.uuid4().hex}
    answer = session.post(PIPELINES, json=body, timeout=_TIMEOUT_S)
    return PipelineRun(int(answer["pipelineId"]), session, warnings_of(answer))


def _session(client: Determined | None) -> Session:
    from determined.experimental._determined import Determined

    return (client or Determined())._session


class PipelineRun:
    """A pipeline on the cluster. ``warnings``: what the service said when it was submitted."""

    def __init__(self, id: int, session: Session, warnings: Sequence[str] = ()) -> None:
        self.id = id
        self.warnings = list(warnings)
        self._session = session

    def describe(self) -> dict[str, Any]:
        """Where it is: its state, its steps, their experiments and what they have found."""
        found: dict[str, Any] = patiently(lambda: self._session.get(f"{PIPELINES}/{self.id}"))
        return dict(found["pipeline"])

    def wait(self, timeout_s: float | None = None) -> dict[str, Any]:
        """Waits for its end, and describes it. Raises TimeoutError."""
        pause, longest = _POLL_S
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            found = self.describe()
            if found["state"] in ENDED:
                return found
            if deadline is not None and time.monotonic() > deadline:
                raise TimeoutError(f"pipeline {self.id} has not ended after {timeout_s} s")
            time.sleep(pause)
            pause = min(pause * 1.5, longest)

    def cancel(self) -> None:
        """Ends it, and kills its experiments. Raises APIException (409) when it has ended."""
        self._session.post(f"{PIPELINES}/{self.id}/cancel", json={})

    def resume(self) -> None:
        """Tries again what failed, was skipped or was canceled. Raises APIException (409) while it runs."""
        self._session.post(f"{PIPELINES}/{self.id}/resume", json={})

    def approve(self, approved: bool = True, step: str | None = None) -> str:
        """Approves the step that waits for it, or (``approved=False``) rejects it; the step's name.

        ``step`` must be given when several wait. Raises APIException (409) when none waits.
        """
        body = {"approve": approved, "step": step}
        answer = self._session.post(f"{PIPELINES}/{self.id}/approve", json=body)
        return str(answer["step"])

    def again(self) -> PipelineRun:
        """Runs it again from its beginning, as a new pipeline with the same plan and code."""
        answer = self._session.post(f"{PIPELINES}/{self.id}/again", json={})
        return PipelineRun(int(answer["pipelineId"]), self._session)

    def set_schedule(
        self,
        *,
        cron: str | None = None,
        interval_s: float | None = None,
        rrule: str | None = None,
        timezone: str | None = None,
    ) -> str:
        """Has it run again whenever ``cron``, ``interval_s`` or ``rrule`` says so; the next time.

        Raises BadRequestException.
        """
        given = {"cron": cron, "interval_s": interval_s, "rrule": rrule, "timezone": timezone}
        body = {name: value for name, value in given.items() if value is not None}
        return str(self._session.put(f"{PIPELINES}/{self.id}/schedule", json=body)["nextTime"])

    def delete_schedule(self) -> None:
        """Has it run again no more, neither on its schedule nor after events; what runs goes on."""
        self._session.delete(f"{PIPELINES}/{self.id}/schedule")

    def delete(self) -> None:
        """Deletes a pipeline that has ended. Its experiments stay."""
        self._session.delete(f"{PIPELINES}/{self.id}")

    def experiments(self, step: str | None = None) -> Iterable[int]:
        """The numbers of its experiments, or of a step's."""
        for one in self.describe()["steps"]:
            if step is None or one["name"] == step:
                yield from (x["id"] for x in one["experiments"] if x["id"] is not None)
