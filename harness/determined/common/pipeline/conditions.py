"""Conditions of steps, such as ``${steps.search.best.metrics.accuracy} > 0.9``: :func:`check`, :func:`holds`.

Comparisons (``in`` among them) of references, numbers, texts and lists, with ``and``, ``or``, ``not`` and
parentheses, as in Python. The text is parsed, never executed.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from typing import Any

from determined.common.pipeline import references
from determined.common.pipeline.references import ReferenceError_, StepReference

CHARS = 500
_EXAMPLE = "a condition such as ${steps.NAME.best.metrics.accuracy} > 0.9"
_COMPARE: Mapping[type[ast.cmpop], tuple[str, Callable[[Any, Any], Any]]] = {
    ast.Eq: ("==", operator.eq),
    ast.NotEq: ("!=", operator.ne),
    ast.Lt: ("<", operator.lt),
    ast.LtE: ("<=", operator.le),
    ast.Gt: (">", operator.gt),
    ast.GtE: (">=", operator.ge),
    ast.In: ("in", lambda a, b: a in b),
    ast.NotIn: ("not in", lambda a, b: a not in b),
}
_WORDS = {"true": True, "false": False, "null": None}
_PLACE = "reference_{}_"


def check(condition: str) -> None:
    """Raises ReferenceError_ for a condition that cannot be read."""
    _Condition(condition)


def holds(condition: str, find: Callable[[StepReference], Any]) -> bool:
    """True if the condition holds for the values that ``find`` gives to its references. Raises
    ReferenceError_.
    """
    read = _Condition(condition)
    values = {name: find(one) for name, one in read.references.items()}
    return read.truth(read.tree, values)


def shown(condition: str, find: Callable[[StepReference], Any]) -> str:
    """The condition with its values. Items of ``for_each``, which may be secrets, stay references."""

    def value_of(one: StepReference) -> str:
        value = find(one)
        is_item = one.path[:1] == (references.ITEM,)
        return str(one) if is_item else repr(value)

    return str(references.substitute(condition, value_of, strict=True))


class _Condition:
    """A condition that was parsed. ``references``: by the name that stands for each in ``tree``."""

    def __init__(self, text: str) -> None:
        if len(text) > CHARS:
            raise ReferenceError_(f"when: at most {CHARS} characters are allowed", str(len(text)))
        self.references: dict[str, StepReference] = {}

        def name_of(one: StepReference) -> str:
            name = _PLACE.format(len(self.references))
            self.references[name] = one
            return f" {name} "

        source = references.substitute(text, name_of, strict=True)
        try:
            self.tree = ast.parse(source.strip(), mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            raise ReferenceError_(f"when: {text!r} cannot be read: expected {_EXAMPLE}") from None
        self._check(self.tree, text)

    def _check(self, node: ast.expr, text: str) -> None:
        """Raises ReferenceError_ for whatever is not known here."""
        match node:
            case ast.BoolOp(values=inner) | ast.List(elts=inner) | ast.Tuple(elts=inner):
                parts = inner
            case ast.UnaryOp(op=ast.Not() | ast.USub(), operand=one):
                parts = [one]
            case ast.Compare(left=left, ops=ops, comparators=others) if all(
                type(op) in _COMPARE for op in ops
            ):
                parts = [left, *others]
            case ast.Name(id=name) if name in self.references or name in _WORDS:
                parts = []
            case ast.Name(id=name):
                raise ReferenceError_(
                    f"when: unknown word {name!r}: write texts in quotes, and references as "
                    "${steps.NAME.best…}",
                    name,
                )
            case ast.Constant(value=str(value)) if any(one in value for one in self.references):
                raise ReferenceError_(f"when: {text!r}: write references without quotes")
            case ast.Constant(value=bool() | int() | float() | str() | None):
                parts = []
            case _:
                raise ReferenceError_(f"when: {text!r} cannot be read: expected {_EXAMPLE}")
        for one in parts:
            self._check(one, text)

    def truth(self, node: ast.expr, values: Mapping[str, Any]) -> bool:
        found = self._value(node, values)
        if not isinstance(found, bool):
            raise ReferenceError_(
                f"when: {found!r} is neither true nor false: compare it with something", repr(found)
            )
        return found

    def _value(self, node: ast.expr, values: Mapping[str, Any]) -> Any:
        match node:
            case ast.BoolOp(op=ast.And(), values=inner):
                return all(self.truth(one, values) for one in inner)
            case ast.BoolOp(values=inner):
                return any(self.truth(one, values) for one in inner)
            case ast.UnaryOp(op=ast.Not(), operand=one):
                return not self.truth(one, values)
            case ast.UnaryOp(operand=one):
                found = self._value(one, values)
                if isinstance(found, bool) or not isinstance(found, int | float):
                    raise ReferenceError_(f"when: {found!r} is not a number", repr(found))
                return -found
            case ast.Compare(left=left, ops=ops, comparators=others):
                return self._compare(left, ops, others, values)
            case ast.List(elts=inner) | ast.Tuple(elts=inner):
                return [self._value(one, values) for one in inner]
            case ast.Name(id=name):
                return values[name] if name in values else _WORDS[name]
            case ast.Constant(value=value):
                return value
        raise AssertionError(node)  # _check knows no other

    def _compare(
        self,
        left: ast.expr,
        ops: list[ast.cmpop],
        others: list[ast.expr],
        values: Mapping[str, Any],
    ) -> bool:
        before = self._value(left, values)
        for op, other in zip(ops, others, strict=True):
            after = self._value(other, values)
            word, compare = _COMPARE[type(op)]
            try:
                if not compare(before, after):
                    return False
            except TypeError:
                raise ReferenceError_(
                    f"when: {before!r} {word} {after!r}: these cannot be compared"
                ) from None
            before = after
        return True
