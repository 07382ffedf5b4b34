"""The fields of each section, from which the suggestion for a misspelled field is taken."""

import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, get_args

from typing_extensions import TypeAliasType

from determined.expconf import legacy
from determined.expconf.base import MEMBER_MARK, Section
from determined.expconf.config import ExperimentConfig
from determined.expconf.plugins import PluginError
from determined.expconf.searcher import PluginSearcher, plugin_names, plugin_section


@dataclass(frozen=True, eq=False)
class FileFormat:
    """A kind of configuration file.

    ``sections``: the sections of ``root`` whose fields people write at the top by mistake; ``renamed``:
    today's path of each renamed field, and the earlier last name; ``listing``: where all fields are listed,
    for messages that cannot list them.
    """

    root: type[Section]
    sections: tuple[str, ...]
    listing: str
    renamed: Mapping[tuple[str | int, ...], str] = field(default_factory=dict)


EXPERIMENT = FileFormat(
    ExperimentConfig,
    ("environment", "resources", "searcher", "profiling", "reproducibility"),
    "`det experiment schema`",
    legacy.RENAMED,
)


def sections_at(
    location: tuple[str | int, ...], root: type[Section] = ExperimentConfig
) -> list[type[Section]]:
    """The sections that can stand at a location of pydantic's errors (with its union members).

    There are several if the location ends before a union's member is chosen, and none below free-form
    values.
    """
    here: list[type[Section]] = [root]
    for step in location:
        if isinstance(step, int):
            continue
        if step.startswith(MEMBER_MARK):
            here = [section for section in here if section.__name__ == step[len(MEMBER_MARK) :]]
            continue
        if any(step not in section.model_fields for section in here):
            # Inside a mapping with free keys, such as a group of hyperparameters.
            continue
        here = [
            found
            for section in here
            for found in sections_in(section.model_fields[step].annotation)
        ]
    return here


def of_kind(path: tuple[str | int, ...], tag: str, kind: object) -> list[type[Section]]:
    """The sections that a value of the tag chooses from the union at ``path``; none if unknown."""
    found = [
        section
        for section in sections_at(path)
        if kind in get_args(section.model_fields[tag].annotation)
    ]
    return found or (plugged_in(kind) if path == ("searcher",) else [])


def plugged_in(name: object) -> list[type[Section]]:
    """The section of a searcher that an installed package offers, if it can be imported."""
    try:
        section = plugin_section(name)
    except PluginError:
        return []
    return [] if section is None else [section]


def with_plugins(sections: list[type[Section]], name: object) -> list[type[Section]]:
    """``sections`` with the plug-ins' sections in place of their placeholder.

    Of the plug-in called ``name``, if that one was chosen; of all, while none is.
    """
    if PluginSearcher not in sections:
        return sections
    chosen = [name] if len(sections) == 1 else plugin_names()
    plugged = [section for one in chosen for section in plugged_in(one)]
    return [section for section in sections if section is not PluginSearcher] + plugged


def names(sections: list[type[Section]]) -> list[str]:
    """The field names of sections, in order, without those that are no longer used."""
    current = [section for section in sections if not section.retired]
    fields = {
        name: None
        for section in current or sections
        for name, field in section.model_fields.items()
        if not field.exclude
    }
    return list(fields)


def known(sections: list[type[Section]], key: str) -> bool:
    """True if one of the sections has the field."""
    return any(key in section.model_fields for section in sections)


@functools.cache
def elsewhere(form: FileFormat = EXPERIMENT) -> dict[str, str]:
    """The path of each top-level field and of each field of a top-level section."""
    found = {name: name for name in names([form.root])}
    for name in form.sections:
        for inner in names(sections_at((name,), form.root)):
            found.setdefault(inner, f"{name}.{inner}")
    return found


def sections_in(annotation: Any) -> Iterator[type[Section]]:
    """All sections in a type, including those in unions, lists and annotations."""
    if isinstance(annotation, TypeAliasType):
        annotation = annotation.__value__
    if isinstance(annotation, type) and issubclass(annotation, Section):
        yield annotation
        return
    for argument in get_args(annotation):
        if not isinstance(argument, str):
            yield from sections_in(argument)
