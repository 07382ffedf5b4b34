"""Every name of tests/symbols.txt can be imported, and called as it says."""

from __future__ import annotations

import ast
import dataclasses
import enum
import importlib
import importlib.util
import inspect
import sys
import types
from pathlib import Path
from typing import Any

import pytest

TABLE = Path(__file__).parents[1] / "symbols.txt"


def table() -> list[tuple[str, str]]:
    """(module, line) of every line."""
    found, module = [], ""
    for line in TABLE.read_text().splitlines():
        if line.startswith("["):
            module = line.strip("[]")
        elif line and not line.startswith("#"):
            found.append((module, line))
    return found


LINES = [pytest.param(*one, id=": ".join(one).replace(" ", "")[:80]) for one in table()]


def test_the_table_is_whole() -> None:
    lines = table()
    assert len(lines) == len(set(lines)) > 400


@pytest.mark.parametrize(("module", "line"), LINES)
def test_symbol(module: str, line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if module == "determined.pytorch.deepspeed":
        deepspeed_or_a_stand_in(monkeypatch)
    if line.startswith("!"):
        check_refused(module, line[1:])
    elif ": " in line:
        name, _, members = line.partition(": ")
        check_members(find(module, name), members.split())
    elif "(" in line:
        name, _, rest = line.partition("(")
        owner = name.rpartition(".")[0]
        check_parameters(find(module, owner) if owner else None, find(module, name), line, rest)
    elif "." in line:
        owner, _, name = line.rpartition(".")
        check_attribute(find(module, owner), name)
    else:
        find(module, line)


@pytest.fixture(autouse=True)
def keras_on_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERAS_BACKEND", "torch")


def deepspeed_or_a_stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """Our names are refused without the package, and have their signatures without its help."""
    if importlib.util.find_spec("deepspeed") is None:
        monkeypatch.setitem(sys.modules, "deepspeed", types.ModuleType("deepspeed"))


def find(module: str, name: str) -> Any:
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    return found


def check_refused(module: str, line: str) -> None:
    name, _, words = line.partition(" ")
    with pytest.raises(ImportError) as caught:
        found = importlib.import_module(module)
        getattr(found, name)
    assert not isinstance(caught.value, ModuleNotFoundError), f"there is no {caught.value.name}"
    assert words in str(caught.value)
    assert f"{module}.{name}".strip(".") in str(caught.value)


def check_members(found: type[enum.Enum], members: list[str]) -> None:
    assert set(members) <= set(found.__members__)


def check_attribute(owner: type, name: str) -> None:
    """An attribute of the class, or one that its instances get: in ``__init__`` or what that calls."""
    fields = [field.name for field in dataclasses.fields(owner)] if _is_data(owner) else []
    if hasattr(owner, name) or name in fields:
        return
    codes = [
        function.__code__
        for cls in owner.__mro__
        for function in vars(cls).values()
        if inspect.isfunction(function)
    ]
    assert any(name in code.co_names for code in codes), f"{owner} sets no {name}"


def _is_data(owner: type) -> bool:
    return dataclasses.is_dataclass(owner)


def check_parameters(owner: Any, found: Any, line: str, text: str) -> None:
    """The table's parameters come first and in their order, each with its kind and default."""
    wanted = _wanted(text.removesuffix(")"))
    signature = list(inspect.signature(found).parameters.values())
    is_method = isinstance(owner, type) and inspect.isfunction(
        inspect.getattr_static(owner, found.__name__, None)
    )
    if is_method:
        signature = signature[1:]
    given = {parameter.name: parameter for parameter in signature}
    for name, (kind, default) in wanted.items():
        assert name in given, f"{line}: there is no {name} among {list(given)}"
        parameter = given[name]
        if kind is not None:
            assert parameter.kind.name == kind, f"{line}: {name} is {parameter.kind.name}"
        if default != "...":
            assert _shown(parameter) == default, f"{line}: {name} is {_shown(parameter)}"
        elif kind not in ("VAR_POSITIONAL", "VAR_KEYWORD"):
            assert _shown(parameter) is not None, f"{line}: {name} has no default"
    order = [name for name in given if name in wanted]
    assert order == list(wanted), f"{line}: they come as {order}"
    for name in given.keys() - wanted.keys():
        optional = given[name].default is not inspect.Parameter.empty
        assert optional or given[name].kind.name.startswith("VAR_"), f"{line}: {name} is new"


def _wanted(text: str) -> dict[str, tuple[str | None, str | None]]:
    """{name: (kind, default as written)} of a list of parameters."""
    arguments = ast.parse(f"def f({text}): pass").body[0].args  # type: ignore[attr-defined]
    found: dict[str, tuple[str | None, str | None]] = {}
    positional = arguments.args
    defaults = [None] * (len(positional) - len(arguments.defaults)) + arguments.defaults
    for argument, default in zip(positional, defaults, strict=True):
        found[argument.arg] = ("POSITIONAL_OR_KEYWORD", _written(default))
    if arguments.vararg:
        found[arguments.vararg.arg] = ("VAR_POSITIONAL", None)
    for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        found[argument.arg] = ("KEYWORD_ONLY", _written(default))
    if arguments.kwarg:
        found[arguments.kwarg.arg] = ("VAR_KEYWORD", None)
    return found


def _written(default: ast.expr | None) -> str | None:
    return None if default is None else ast.unparse(default)


def _shown(parameter: inspect.Parameter) -> str | None:
    """The default as the table writes it; None: there is none."""
    if parameter.default is inspect.Parameter.empty:
        return None
    if isinstance(parameter.default, enum.Enum):
        return parameter.default.name
    return repr(parameter.default)
