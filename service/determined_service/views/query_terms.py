"""The query of a list of experiments, as terms: :func:`read_query`.

``resnet label:vision,baseline -state:error lr<0.01 metric<=0.1 "two words"``: every term must hold, and a
``-`` before a term turns it round. A term is a word, ``FIELD:VALUE[,VALUE…]``, or ``NAME OP VALUE``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from determined.common.wire.checks import show
from determined_service.base.errors import BadRequest

QUERY_CHARS = 1_000
TERMS = 20
VALUES = 50
"""Values of one field, with commas between them."""

FIELDS = (
    "id",
    "name",
    "description",
    "label",
    "owner",
    "state",
    "pool",
    "searcher",
    "project",
    "workspace",
)
OPERATORS = ("<=", ">=", "<", ">", "=")
_QUOTED = r'"(?:[^"\\]|\\.)*"'
_TERM = re.compile(rf"-?(?:{_QUOTED}|[^\s\"])+")
_FIELD = re.compile(r"([a-z]+):(.*)", re.DOTALL)
_COMPARISON = re.compile(rf"((?:{_QUOTED}|[^<>=\"])+?)(<=|>=|<|>|=)(.*)", re.DOTALL)
_PART = re.compile(rf"(?:{_QUOTED}|[^,\"])+")


@dataclass(frozen=True, slots=True)
class Word:
    """A text that the name, the description, a label or the owner's name contains."""

    text: str


@dataclass(frozen=True, slots=True)
class Field:
    """One of :data:`FIELDS` has one of the values."""

    name: str
    values: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Comparison:
    """A hyperparameter or a metric compared with a value. ``number``: the value, if it is one."""

    name: str
    operator: str
    value: str
    number: float | None


@dataclass(frozen=True, slots=True)
class Term:
    """``negated``: the experiments for which it does not hold."""

    what: Word | Field | Comparison
    negated: bool


def read_query(text: str) -> list[Term]:
    """The terms of a query, in order. Raises BadRequest, which names the place and what is allowed."""
    if len(text) > QUERY_CHARS:
        raise BadRequest(f"query: {len(text)} characters, at most {QUERY_CHARS} are allowed")
    if "\0" in text:
        raise BadRequest("query: a NUL character is not allowed")
    found: list[Term] = []
    place = 0
    while place < len(text):
        if text[place].isspace():
            place += 1
            continue
        match = _TERM.match(text, place)
        if match is None:
            raise _refused(place, text[place:], 'the quotation mark has no second one: "two words"')
        if len(found) == TERMS:
            raise _refused(place, text[place:], f"at most {TERMS} terms are allowed")
        found.append(_term(match[0], place))
        place = match.end()
    return found


def _term(text: str, place: int) -> Term:
    negated = text.startswith("-") and len(text) > 1
    body = text[1:] if negated else text
    field = _FIELD.fullmatch(body)
    if field is not None and field[1] in FIELDS:
        return Term(_field(field[1], field[2], place, text), negated)
    compared = _COMPARISON.fullmatch(body)
    if compared is not None:
        return Term(_comparison(compared[1], compared[2], compared[3], place, text), negated)
    if body[0] in "<>=":
        raise _refused(place, text, "a name stands before the sign, without a space: lr<0.01")
    if field is not None and not field[2].startswith("//"):
        raise _refused(
            place,
            text,
            f"there is no field {field[1]}; choose {', '.join(FIELDS)}, or write it in quotes",
        )
    return Term(Word(_plain(body)), negated)


def _field(name: str, given: str, place: int, text: str) -> Field:
    values = tuple(_plain(one[0]) for one in _PART.finditer(given))
    if not values:
        raise _refused(place, text, f"a value follows the colon: {name}:VALUE")
    if len(values) > VALUES:
        raise _refused(place, text, f"{len(values)} values, at most {VALUES} are allowed")
    return Field(name, values)


def _comparison(name: str, operator: str, value: str, place: int, text: str) -> Comparison:
    value = _plain(value)
    number = as_number(value)
    if value.startswith("=") or not value:
        raise _refused(
            place, text, f"a value follows one of the signs {' '.join(OPERATORS)}: lr<0.01"
        )
    if number is None and operator != "=":
        raise _refused(
            place, text, f"{show(value)} is not a number; texts are compared with = only"
        )
    return Comparison(_plain(name), operator, value, number)


def as_number(text: str) -> float | None:
    """The number that a text is; None: it is none."""
    if not re.fullmatch(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,3})?", text, re.ASCII):
        return None
    return float(text)


def _plain(text: str) -> str:
    """A text without its quotation marks."""
    return re.sub(_QUOTED, lambda one: re.sub(r"\\(.)", r"\1", one[0][1:-1]), text)


def _refused(place: int, text: str, why: str) -> BadRequest:
    return BadRequest(f"query, at character {place + 1}, {show(text)}: {why}")
