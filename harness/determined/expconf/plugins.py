"""Searchers of installed packages, whose ``searcher`` sections are described by the packages' models.

A package offers a class under the entry-point group ``determined.searchers``. The ``config_model`` of the
class (a pydantic model) has the fields of its ``searcher`` section. Packages are read only if a
configuration names a searcher that is not built in.
"""

import functools
import sys
from importlib.metadata import EntryPoint, entry_points
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, MinLen
from pydantic import BaseModel, ConfigDict, create_model
from pydantic.fields import FieldInfo

from determined.expconf.base import WHOLE, Section
from determined.expconf.length import SearcherLength

GROUP = "determined.searchers"

#: The least bounds of a field of this name, whichever searcher declares it.
_AT_LEAST = {
    "max_concurrent_trials": Ge(0),
    "max_time": Ge(1),
    "max_trials": Ge(1),
    "time_metric": MinLen(1),
}


class PluginError(Exception):
    """An installed searcher cannot be used; the text has the reason and the package."""


def offered() -> dict[str, EntryPoint]:
    """The searchers of installed packages by name, sorted."""
    return _offered(tuple(sys.path))


@functools.cache
def _offered(_: tuple[str, ...]) -> dict[str, EntryPoint]:
    """Reading all packages takes some 10 ms, so it is done once for each state of the import path."""
    points = sorted(entry_points(group=GROUP), key=lambda point: point.name)
    return {point.name: point for point in points}


@functools.cache
def section_of(point: EntryPoint, base: type[Section]) -> type[Section]:
    """The model of a ``searcher`` section that names the searcher behind an entry point.

    It has the fields of ``base`` and those of the searcher's ``config_model``. They are read like all fields:
    strictly, null means "not given", and unknown fields are refused unless the model allows them.
    ``max_length`` is a length as for the built-in searchers, with any type in the model. A searcher without a
    model accepts any field.

    Raises:
        PluginError: the package cannot be imported, or its ``config_model`` is not a model.
    """
    package = f"package {point.dist.name!r}" if point.dist else "an unknown package"
    whose = f"searcher {point.name!r} of {package} ({point.value})"
    try:
        model = getattr(point.load(), "config_model", None)
    except Exception as error:  # importing a foreign module may raise anything
        reason = f"{type(error).__name__}: {error}"
        raise PluginError(f"the {whose} cannot be imported: {reason}") from error
    fields: dict[str, Any] = {"name": (Literal[point.name], ...)}
    if model is None:
        bases: Any = (base, _Open)
        says = "A searcher of an installed package; its further fields are free."
        return create_model(_class_name(point.name), __base__=bases, __doc__=says, **fields)
    if not (isinstance(model, type) and issubclass(model, BaseModel)):
        raise PluginError(f"config_model of the {whose} is {model!r}, not a pydantic model")
    bases = (base, model, _Open if model.model_config.get("extra") == "allow" else _Closed)
    # The common fields are this package's and come first, even if the model declares them too.
    common = {name: (info.annotation, info) for name, info in base.model_fields.items()}
    own = {name: _as_ours(name, info) for name, info in model.model_fields.items()}
    fields = {**common, **own, **common, **fields}
    try:
        return create_model(
            _class_name(point.name), __base__=bases, __doc__=model.__doc__, **fields
        )
    except (TypeError, ValueError, NameError) as error:
        raise PluginError(f"config_model of the {whose} cannot be used: {error}") from error


# The last base decides about unknown fields.
class _Open(BaseModel):
    model_config = ConfigDict(extra="allow")


class _Closed(BaseModel):
    model_config = ConfigDict(extra="forbid")


def _as_ours(name: str, info: FieldInfo) -> Any:
    """Convert a field of a package's model: keep its default and bounds, and add the rules of our fields."""
    kinds = set(_alternatives(info.annotation))
    extra: list[Any] = []
    if name == "max_length":
        return (SearcherLength if info.is_required() else SearcherLength | None, _bare(info))
    if int in kinds and float not in kinds:
        extra.append(WHOLE)
    if name in _AT_LEAST and kinds <= {int, float, str, type(None)}:
        extra.append(_AT_LEAST[name])
    kind: Any = info.annotation
    for item in extra:
        kind = Annotated[kind, item]
    return (kind, info)


def _bare(info: FieldInfo) -> FieldInfo:
    """The field without its type's bounds."""
    given: dict[str, Any] = {"description": info.description}
    if not info.is_required():
        given["default"] = info.get_default(call_default_factory=True, validated_data={})
    return FieldInfo(**given)


def _alternatives(annotation: Any) -> tuple[Any, ...]:
    return get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)


def _class_name(name: str) -> str:
    words = "".join(part.capitalize() for part in name.replace("-", "_").split("_"))
    return f"{words or 'Plugin'}Searcher"
