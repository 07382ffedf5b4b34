"""A document to a plan. Every mistake is found, and told with its place: :func:`read`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from determined.common.pipeline import conditions, references
from determined.common.pipeline.kinds import (
    COMMAND,
    COMMON,
    EXPERIMENT,
    FILES,
    KINDS,
    mistakes,
    read_value,
)
from determined.common.pipeline.linking import check_order, check_size, linked
from determined.common.pipeline.plan import PipelinePlan, PlannedStep
from determined.common.pipeline.problems import Problems
from determined.common.pipeline.references import PARAMS, ReferenceError_
from determined.common.wire import limits
from determined.expconf.document import Document
from determined.expconf.paths import Path
from determined.expconf.problems import ConfigError, nearest

FIELDS = ("name", "params", "model_dir", "steps", "schedule", "on")
# What is sent: configurations instead of paths, and which files instead of directories.
SENT_FIELDS = ("name", "steps", "schedule", "on")

Load = Callable[[str], Document]
"""The configuration at a path that stands in the document. Raises ConfigError."""


@dataclass(frozen=True)
class Draft:
    """A plan with where its parts come from. ``places``: by step, its place in the document.

    ``files``: by step, its model directory and the further files, as they are written there.
    """

    plan: PipelinePlan
    document: Document
    places: dict[str, int]
    configs: dict[str, Document] = field(default_factory=dict)
    files: dict[str, tuple[str | None, tuple[str, ...]]] = field(default_factory=dict)


def read(
    document: Document, load: Load | None = None, params: Mapping[str, Any] | None = None
) -> Draft:
    """Reads a pipeline. ``load``: reads the configurations that ``experiment`` names; None: the document was
    sent, and holds them. ``params``: in the place of the document's own.

    Raises ConfigError with all mistakes.
    """
    return _Reader(document, load, dict(params or {})).read()


class _Reader:
    def __init__(self, document: Document, load: Load | None, params: dict[str, Any]) -> None:
        self.document, self.load, self.given = document, load, params
        self.data = document.data
        self.problems = Problems(document)
        self.params: dict[str, Any] = {}
        self.configs: dict[str, Document] = {}
        self.files: dict[str, tuple[str | None, tuple[str, ...]]] = {}

    def read(self) -> Draft:
        problems = self.problems
        problems.keys((), self.data, FIELDS if self.load else SENT_FIELDS)
        name = self._name(("name",), self.data.get("name"), limits.NAME_CHARS)
        if self.load:
            self._read_params()
        again = self._again()
        listed = self.data.get("steps")
        if not isinstance(listed, list) or not listed:
            problems.expected(("steps",), "a list of steps", listed)
            problems.finish()
        assert isinstance(listed, list)
        if len(listed) > limits.PIPELINE_STEPS:
            problems.expected(("steps",), f"at most {limits.PIPELINE_STEPS} steps", len(listed))
            problems.finish()
        steps: dict[str, PlannedStep] = {}
        places: dict[str, int] = {}
        for place, given in enumerate(listed):
            step = self._step(("steps", place), given)
            if step is None:
                continue
            if step.name in steps:
                first = places[step.name]
                line = self.document.nearest_line(("steps", first, "name"))
                where = f"line {line}" if line else f"steps[{first}]"
                problems.add(
                    ("steps", place, "name"),
                    f"{step.name!r} is the name of two steps (the first: {where})",
                )
                continue
            steps[step.name], places[step.name] = step, place
        linked_steps = {
            name: linked(problems, ("steps", places[name]), step, steps)
            for name, step in steps.items()
        }
        check_order(problems, linked_steps, places)
        check_size(problems, linked_steps)
        problems.finish()
        plan = PipelinePlan(name or "", tuple(linked_steps.values()), *again)
        return Draft(plan, self.document, places, self.configs, self.files)

    def _again(self) -> tuple[dict[str, Any] | None, tuple[dict[str, Any], ...]]:
        """The schedule and the events; the service knows what they may be."""
        schedule, events = self.data.get("schedule"), self.data.get("on") or []
        if schedule is not None and not isinstance(schedule, dict):
            what = 'a mapping such as {cron: "0 3 * * *", timezone: Europe/Berlin}'
            self.problems.expected(("schedule",), what, schedule)
            schedule = None
        if not isinstance(events, list) or not all(isinstance(one, dict) for one in events):
            self.problems.expected(("on",), "a list such as [{alias: {model: base}}]", events)
            events = []
        return schedule, tuple(events)

    def _name(self, path: Path, value: Any, most: int) -> str | None:
        if not isinstance(value, str) or not value.strip() or len(value) > most:
            self.problems.expected(path, f"a text of 1 to {most} characters", value)
            return None
        return value

    def _read_params(self) -> None:
        declared = self.data.get("params") or {}
        if not isinstance(declared, dict):
            self.problems.expected(("params",), "a mapping of names to values", declared)
            return
        for name in self.given:
            if name not in declared:
                self.problems.unknown(
                    ("params",), name, declared, f"{name!r} is not a parameter of this pipeline"
                )
        self.params = {name: self.given.get(name, value) for name, value in declared.items()}
        for name, value in self.params.items():
            if value is None:
                self.problems.add(
                    ("params", name), f"this parameter has no value: give one with --param {name}=…"
                )

    def _step(self, path: Path, given: Any) -> PlannedStep | None:
        problems = self.problems
        if not isinstance(given, dict):
            problems.expected(path, "a mapping such as {name: …, experiment: …}", given)
            return None
        found = [kind for kind in KINDS if kind in given]
        problems.keys(path, given, self._fields(found))
        if len(found) > 1:
            problems.add(path, f"a step is one of {', '.join(KINDS)}: found {' and '.join(found)}")
            return None
        name = given.get("name")
        if not isinstance(name, str) or not references.NAME.fullmatch(name):
            what = "a name of letters, digits, _ and -, at most 64, the first one a letter"
            problems.expected((*path, "name"), what, name)
            return None
        kind = found[0] if found else EXPERIMENT
        config = self._config((*path, kind), kind, given.get(kind), name)
        overrides = given.get("with") or {}
        if not isinstance(overrides, dict):
            problems.expected((*path, "with"), "a mapping of a.b.c to values", overrides)
            overrides = {}
        needs = given.get("needs") or []
        needs = [needs] if isinstance(needs, str) else needs
        if not isinstance(needs, list) or not all(isinstance(one, str) for one in needs):
            problems.expected((*path, "needs"), "a list of names of steps", needs)
            needs = []
        cached = given.get("cached", False)
        if not isinstance(cached, bool):
            problems.expected((*path, "cached"), "true or false", cached)
        if set(FILES) <= set(KINDS[kind].fields):
            self._read_files(path, given, name)
        else:
            self.files[name] = (None, ())
        code = given.get("code")
        if code is not None and not isinstance(code, str):
            problems.expected((*path, "code"), "a text", code)
            code = None
        for_each = given.get("for_each")
        if for_each is not None and not isinstance(for_each, list | str):
            problems.expected((*path, "for_each"), "a list, or a reference to one", for_each)
            for_each = None
        most = given.get("max_concurrent")
        if most is not None:
            most = self._max_concurrent((*path, "max_concurrent"), most, for_each)
        if config is not None:
            strict = kind not in (EXPERIMENT, COMMAND)
            config = self._with_params((*path, kind), config, strict=strict)
        return PlannedStep(
            name,
            config or {},
            self._with_params((*path, "with"), overrides, strict=True),
            tuple(needs),
            self._with_params((*path, "for_each"), for_each, strict=True),
            cached is True,
            code,
            most,
            self._when((*path, "when"), given.get("when")),
            kind,
        )

    def _fields(self, found: list[str]) -> list[str]:
        """The fields that a step of the kinds ``found`` may have."""
        more = [field for kind in found or KINDS for field in KINDS[kind].fields]
        if not self.load:
            # Files are sent, in the place of the directories that they were in.
            more = [field for field in more if field not in FILES] + ["code"]
        return [*COMMON, *KINDS, *more]

    def _when(self, path: Path, given: Any) -> str | None:
        """The condition, with the parameters' values as they are written there."""
        if given is None:
            return None
        if not isinstance(given, str | bool):
            self.problems.expected(path, "a condition, which is a text", given)
            return None
        text = self._with_params(path, str(given), strict=True, literal=True)
        try:
            conditions.check(text)
        except ReferenceError_ as error:
            self.problems.refer(path, error)
        return str(text)

    def _max_concurrent(self, path: Path, most: Any, for_each: Any) -> int | None:
        if not isinstance(most, int) or isinstance(most, bool) or most < 1:
            self.problems.expected(path, "a whole number from 1", most)
            return None
        if for_each is None:
            self.problems.add(path, "this step has no for_each, so it is one experiment")
        return most

    def _config(self, path: Path, kind: str, given: Any, name: str) -> dict[str, Any] | None:
        if kind != EXPERIMENT:
            return self._value(path, kind, given)
        if isinstance(given, str) and self.load is not None:
            try:
                found = self.load(given)
            except ConfigError as error:
                self.problems.found += error.problems
                return None
            self.configs[name] = found
            return found.data
        if isinstance(given, dict):
            marks = {
                key[len(path) :]: mark
                for key, mark in self.document.marks.items()
                if len(key) > len(path) and key[: len(path)] == path
            }
            self.configs[name] = Document(given, self.document.source, marks)
            return given
        what = "an experiment configuration" + (", or the path of one" if self.load else "")
        self.problems.expected(path, what, given)
        return None

    def _value(self, path: Path, kind: str, given: Any) -> dict[str, Any] | None:
        """The work of a step that runs no experiment."""
        value = read_value(kind, given)
        if not isinstance(value, dict):
            self.problems.expected(path, KINDS[kind].value, given)
            return None
        if (known := KINDS[kind].known) is not None:
            self.problems.keys(path, value, known)
        for at, what, found in mistakes(kind, value):
            self.problems.expected((*path, *at), what, found)
        return value

    def _read_files(self, path: Path, given: dict[str, Any], name: str) -> None:
        folder = given.get("model_dir", self.data.get("model_dir"))
        include = given.get("include") or []
        include = [include] if isinstance(include, str) else include
        if folder is not None and not isinstance(folder, str):
            self.problems.expected((*path, "model_dir"), "the path of a directory", folder)
            folder = None
        if not isinstance(include, list) or not all(isinstance(one, str) for one in include):
            self.problems.expected((*path, "include"), "a list of paths", include)
            include = []
        self.files[name] = (folder, tuple(include))

    def _with_params(self, path: Path, value: Any, *, strict: bool, literal: bool = False) -> Any:
        """``value`` with its parameters put in (``literal``: as they are written in a condition), and every
        reference read once."""

        def find(reference: references.StepReference) -> Any:
            if reference.root != PARAMS:
                return str(reference)
            name = str(reference.path[0])
            if name not in self.params:
                raise ReferenceError_(
                    f"{reference}: {name!r} is not a parameter of this pipeline",
                    name,
                    ", ".join(self.params) or "none",
                    nearest(name, self.params),
                )
            found = self.params[name]
            if literal:
                return repr(found)
            return found if found is not None else ""

        wrong = False
        for at, text, _ in references.found_in(value, strict=strict):
            try:
                find(references.parse(text))
            except ReferenceError_ as error:
                self.problems.refer((*path, *at), error)
                wrong = True
        if wrong:
            return value
        try:
            return references.substitute(value, find, strict=strict, partly=True)
        except ReferenceError_ as error:
            self.problems.refer(path, error)
            return value
