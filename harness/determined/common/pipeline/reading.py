"""A document to a plan. Every mistake is found, and told with its place: :func:`read`."""

from __future__ import annotations

import graphlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from determined.common.pipeline import conditions, references
from determined.common.pipeline.kinds import COMMON, EXPERIMENT, KINDS, mistakes, read_value
from determined.common.pipeline.plan import Plan, Step
from determined.common.pipeline.references import ALL, ITEM, PARAMS, STEPS, ReferenceError_
from determined.common.pipeline.resolving import check_items
from determined.common.wire import limits
from determined.expconf import paths
from determined.expconf.document import Document
from determined.expconf.paths import Path
from determined.expconf.problems import ConfigError, Problem, nearest, show

FIELDS = ("name", "params", "model_dir", "steps")
# What is sent: configurations instead of paths, and which files instead of directories.
SENT_FIELDS = ("name", "steps")

Load = Callable[[str], Document]
"""The configuration at a path that stands in the document. Raises ConfigError."""


@dataclass(frozen=True)
class Draft:
    """A plan with where its parts come from. ``places``: by step, its place in the document.

    ``files``: by step, its model directory and the further files, as they are written there.
    """

    plan: Plan
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


class Problems:
    """Collects mistakes in a document."""

    def __init__(self, document: Document) -> None:
        self.document = document
        self.found: list[Problem] = []

    def add(
        self,
        path: Path,
        message: str,
        found: str | None = None,
        allowed: str | None = None,
        suggestion: str | None = None,
    ) -> None:
        line = self.document.nearest_line(path)
        source = self.document.source or None
        one = Problem(paths.render(path), line, found, allowed, suggestion, message, source)
        if one not in self.found:
            self.found.append(one)

    def expected(self, path: Path, what: str, value: Any) -> None:
        self.add(path, f"expected {what}, found {show(value)}", show(value), what)

    def refer(self, path: Path, error: ReferenceError_) -> None:
        self.add(path, str(error), error.found, error.allowed, error.suggestion)

    def unknown(self, path: Path, name: str, allowed: Iterable[str], what: str) -> None:
        listed = list(allowed)
        hint = nearest(name, listed)
        message = what + (f"; did you mean {hint!r}?" if hint else "")
        shown = ", ".join(listed[:40])
        self.add(path, f"{message} (allowed: {shown or 'none'})", name, shown, hint)

    def keys(self, path: Path, data: Mapping[str, Any], allowed: Iterable[str]) -> None:
        for key in data:
            if key not in allowed:
                self.unknown((*path, key), key, allowed, "unknown field")

    def finish(self) -> None:
        """Raises ConfigError if there are any."""
        if self.found:
            self.found.sort(key=lambda one: (one.line is None, one.line or 0))
            raise ConfigError(self.found[: limits.CONFIG_PROBLEMS])


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
        listed = self.data.get("steps")
        if not isinstance(listed, list) or not listed:
            problems.expected(("steps",), "a list of steps", listed)
            problems.finish()
        assert isinstance(listed, list)
        if len(listed) > limits.PIPELINE_STEPS:
            problems.expected(("steps",), f"at most {limits.PIPELINE_STEPS} steps", len(listed))
            problems.finish()
        steps: dict[str, Step] = {}
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
        linked = {
            name: self._linked(("steps", places[name]), step, steps) for name, step in steps.items()
        }
        self._check_order(linked, places)
        self._check_size(linked)
        problems.finish()
        plan = Plan(name or "", tuple(linked.values()))
        return Draft(plan, self.document, places, self.configs, self.files)

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
                    ("params",), name, declared, f"{name!r} is no parameter of this pipeline"
                )
        self.params = {name: self.given.get(name, value) for name, value in declared.items()}
        for name, value in self.params.items():
            if value is None:
                self.problems.add(
                    ("params", name), f"this parameter has no value: give one with --param {name}=…"
                )

    def _step(self, path: Path, given: Any) -> Step | None:
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
        if kind == EXPERIMENT:
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
            config = self._with_params((*path, kind), config, strict=kind != EXPERIMENT)
        return Step(
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
            more = [field for field in more if field not in ("model_dir", "include")] + ["code"]
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
        """What a step that is no experiment is to do."""
        value = read_value(kind, given)
        if not isinstance(value, dict):
            self.problems.expected(path, KINDS[kind].value, given)
            return None
        self.problems.keys(path, value, KINDS[kind].texts)
        for name, what, found in mistakes(kind, value):
            self.problems.expected((*path, name), what, found)
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

        def find(reference: references.Reference) -> Any:
            if reference.root != PARAMS:
                return str(reference)
            name = str(reference.path[0])
            if name not in self.params:
                raise ReferenceError_(
                    f"{reference}: {name!r} is no parameter of this pipeline",
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

    def _linked(self, path: Path, step: Step, steps: Mapping[str, Step]) -> Step:
        """The step with the steps that it refers to among its needs."""
        problems = self.problems
        others = [name for name in steps if name != step.name]
        needs = dict.fromkeys(step.needs)
        for place, name in enumerate(step.needs):
            if name not in steps or name == step.name:
                what = "itself" if name == step.name else f"{name!r}, which is no step"
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
                    if not steps[reference.step].is_experiment:
                        problems.add(
                            place_of,
                            f"{reference}: step {reference.step!r} is no experiment, so it finds nothing: "
                            "name it in needs, to begin after it",
                        )
                    is_value = whole or where == "when"
                    self._check_which(place_of, reference, steps[reference.step], is_value)
        if isinstance(step.for_each, list):
            try:
                check_items(step.for_each)
            except ReferenceError_ as error:
                problems.refer((*path, "for_each"), error)
        elif step.for_each is not None and not any(
            whole for _, _, whole in references.found_in(step.for_each, strict=True)
        ):
            problems.expected((*path, "for_each"), "a list, or a reference to one", step.for_each)
        return replace(step, needs=tuple(needs))

    def _check_which(
        self, path: Path, reference: references.Reference, other: Step, whole: bool
    ) -> None:
        if reference.which is None:
            return
        if other.for_each is None:
            self.problems.add(
                path, f"{reference}: step {other.name!r} has no for_each, so it is one experiment"
            )
        elif isinstance(reference.which, int) and isinstance(other.for_each, list):
            if reference.which >= len(other.for_each):
                self.problems.add(
                    path,
                    f"{reference}: step {other.name!r} has {len(other.for_each)} items, numbered from 0",
                )
        elif reference.which == ALL and not whole:
            self.problems.add(path, f"{reference} is a list, which cannot stand inside of a text")

    def _check_order(self, steps: Mapping[str, Step], places: Mapping[str, int]) -> None:
        order = graphlib.TopologicalSorter({name: step.needs for name, step in steps.items()})
        try:
            order.prepare()
        except graphlib.CycleError as error:
            circle = list(reversed(error.args[1]))
            self.problems.add(
                ("steps", places[circle[0]], "needs"),
                "these steps wait for each other: " + " needs ".join(circle),
            )

    def _check_size(self, steps: Mapping[str, Step]) -> None:
        known = sum(
            len(step.for_each) if isinstance(step.for_each, list) else 1 for step in steps.values()
        )
        if known > limits.PIPELINE_EXPERIMENTS:
            what = f"at most {limits.PIPELINE_EXPERIMENTS} experiments in all"
            self.problems.expected(("steps",), what, known)
