"""A query of experiments as a condition in SQL: :func:`matches`. Every value is a bound parameter."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from operator import eq, ge, gt, le, lt
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB, JSONPATH

from determined_registry.database.tables import (
    experiments,
    metric_summaries,
    projects,
    trials,
    users,
    workspaces,
)
from determined_service.base.errors import BadRequest
from determined_service.views.experiments import SHOWN_STATE
from determined_service.views.query_terms import Comparison, Field, Term, Word
from determined_service.views.values import state_filter

e, t, s = experiments.c, trials.c, metric_summaries.c
Condition = sa.ColumnElement[bool]

BEST = "metric"
"""In a comparison, the best value of the searcher's metric."""
HYPERPARAMETER = "hp."
"""Before the name of a hyperparameter that is a metric's name too."""
STATES = (
    "ACTIVE",
    "QUEUED",
    "STARTING",
    "RUNNING",
    "PAUSED",
    "STOPPING_CANCELED",
    "STOPPING_KILLED",
    "STOPPING_COMPLETED",
    "STOPPING_ERROR",
    "COMPLETED",
    "CANCELED",
    "ERROR",
    "DELETING",
    "DELETE_FAILED",
)
_OPERATORS: dict[str, Callable[[Any, Any], Any]] = {"<": lt, "<=": le, ">": gt, ">=": ge, "=": eq}
_IDS = re.compile(r"(\d{0,9})\.\.(\d{0,9})|(\d{1,9})", re.ASCII)


def matches(terms: Sequence[Term]) -> list[Condition]:
    """The conditions on a row of experiments. Raises BadRequest."""
    found = []
    for term in terms:
        condition = _condition(term.what)
        # NULL (a metric that there is not) does not hold, so its opposite does.
        found.append(~sa.func.coalesce(condition, False) if term.negated else condition)
    return found


def _condition(what: Word | Field | Comparison) -> Condition:
    match what:
        case Word(text):
            return _word(text)
        case Field(name, values):
            return _FIELDS[name](values)
        case Comparison():
            return _compared(what)


def _word(text: str) -> Condition:
    found = [
        e.name.icontains(text, autoescape=True),
        e.description.icontains(text, autoescape=True),
        # First in all labels at once, which is quick, then in each one.
        sa.and_(
            sa.cast(e.labels, sa.Text).icontains(_in_json(text), autoescape=True), _label_with(text)
        ),
        _owned(
            users.c.username.icontains(text, autoescape=True)
            | users.c.display_name.icontains(text, autoescape=True)
        ),
    ]
    if re.fullmatch(r"\d{1,9}", text, re.ASCII):
        found.append(e.id == int(text))
    return sa.or_(*found)


def _owned(wanted: Condition) -> Condition:
    return e.owner_id.in_(sa.select(users.c.id).where(wanted))


def _label_with(text: str) -> Condition:
    label = sa.func.jsonb_array_elements_text(e.labels).table_valued("label").render_derived()
    return sa.exists(
        sa.select(sa.literal(1))
        .select_from(label)
        .where(label.c.label.icontains(text, autoescape=True))
    )


def _in_json(text: str) -> str:
    # As Postgres writes a text inside of JSON.
    return json.dumps(text, ensure_ascii=False)[1:-1]


def _ids(values: tuple[str, ...]) -> Condition:
    found: list[Condition] = []
    for value in values:
        match = _IDS.fullmatch(value)
        if match is None:
            raise BadRequest(f"query: id:{value[:40]} is not an id; give id:7, id:7..20, or id:7..")
        first, last, only = match.groups()
        if only:
            found.append(e.id == int(only))
        else:
            found.append(sa.and_(e.id >= int(first or 0), e.id <= int(last or 2**31 - 1)))
    return sa.or_(*found)


def _states(values: tuple[str, ...]) -> Condition:
    given = [value.upper().removeprefix("STATE_") for value in values]
    for name in given:
        if name not in STATES:
            known = ", ".join(one.lower() for one in STATES)
            raise BadRequest(f"query: there is no state {name[:40].lower()!r}; choose {known}")
    return state_filter(e.state, SHOWN_STATE, given)


def _labels(values: tuple[str, ...]) -> Condition:
    return sa.or_(*(e.labels.contains([value]) for value in values))


def _in_part(column: sa.ColumnElement[str]) -> Callable[[tuple[str, ...]], Condition]:
    return lambda values: sa.or_(*(column.icontains(one, autoescape=True) for one in values))


def _one_of(column: sa.ColumnElement[Any]) -> Callable[[tuple[str, ...]], Condition]:
    return lambda values: column.in_(values)


def _projects(values: tuple[str, ...]) -> Condition:
    return e.project_id.in_(sa.select(projects.c.id).where(projects.c.name.in_(values)))


def _workspaces(values: tuple[str, ...]) -> Condition:
    of = workspaces.c.id == projects.c.workspace_id
    found = sa.select(projects.c.id).join(workspaces, of).where(workspaces.c.name.in_(values))
    return e.project_id.in_(found)


_FIELDS: dict[str, Callable[[tuple[str, ...]], Condition]] = {
    "id": _ids,
    "name": _in_part(e.name),
    "description": _in_part(e.description),
    "label": _labels,
    "owner": lambda values: _owned(users.c.username.in_(values)),
    "state": _states,
    "pool": _one_of(e.resource_pool),
    "searcher": _one_of(e.searcher_name),
    "project": _projects,
    "workspace": _workspaces,
}


def _compared(what: Comparison) -> Condition:
    if what.name == BEST:
        return _best(what)
    if what.name.startswith(HYPERPARAMETER):
        return _hyperparameter(what, what.name.removeprefix(HYPERPARAMETER))
    if what.number is None:
        return _hyperparameter(what, what.name)
    return sa.or_(_hyperparameter(what, what.name), _metric(what))


def _best(what: Comparison) -> Condition:
    """Some trial's best value compares so; for ``=``, the value of some trial's best validation is it."""
    if what.number is None:
        raise BadRequest(f"query: {BEST} is compared with a number, not with {what.value[:40]!r}")
    compared = _OPERATORS[what.operator](t.searcher_metric_value, _double(what.number))
    # In Postgres, NaN is larger than every number.
    return e.id.in_(
        sa.select(t.experiment_id).where(compared, t.searcher_metric_value != float("nan"))
    )


def _metric(what: Comparison) -> Condition:
    """Some trial reported such a value; for ``=``, as its last one."""
    group, dot, metric = what.name.partition(".")
    named: Condition = s.metric == what.name
    if dot:
        named = sa.or_(named, sa.and_(s.group_name == group, s.metric == metric))
    number = _double(what.number)
    if what.operator == "=":
        compared: Condition = s.last == sa.cast(sa.func.to_jsonb(number), JSONB)
    else:
        side = s.min if what.operator in ("<", "<=") else s.max
        compared = _OPERATORS[what.operator](side, number)
    found = sa.select(t.experiment_id).join(metric_summaries, s.trial_id == t.id)
    return e.id.in_(found.where(named, compared))


def _hyperparameter(what: Comparison, name: str) -> Condition:
    """A trial was given such a value; before there is one, the configuration has it as a constant."""
    sign = "==" if what.operator == "=" else what.operator
    given: dict[str, Any] = {"text": what.value}
    tests = ["@ == $text"] if what.operator == "=" else []
    if what.number is not None:
        given["number"] = what.number
        tests.append(f"@ {sign} $number")
    if what.value in ("true", "false") and what.operator == "=":
        tests.append(f"@ == {what.value}")
    keys = "".join(f".{json.dumps(key)}" for key in name.split("."))
    test = f" ? ({' || '.join(tests)})"
    variables = sa.literal(given, JSONB)

    def holds(column: sa.ColumnElement[Any], path: str) -> Condition:
        wanted = sa.cast(sa.literal(path, sa.Text), JSONPATH)
        return sa.func.jsonb_path_exists(column, wanted, variables, True)

    of_trials = sa.select(t.experiment_id).where(holds(t.hparams, f"${keys}{test}"))
    constants = holds(e.config["hyperparameters"], f"${keys}.val{test}")
    without_trials = e.id.not_in(sa.select(t.experiment_id))
    return sa.or_(e.id.in_(of_trials), sa.and_(without_trials, constants))


def _double(number: float | None) -> sa.ColumnElement[float]:
    return sa.literal(number, sa.Double())
