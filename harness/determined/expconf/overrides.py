"""``--config a.b.c=value``: setting single fields on the command line."""

import copy
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, overload

from determined.expconf import paths
from determined.expconf.document import Document, load_yaml
from determined.expconf.paths import Path
from determined.expconf.plain import plain_copy
from determined.expconf.problems import ConfigError, Problem, show

SOURCE = "--config"


@overload
def apply_overrides(data: Document, overrides: Iterable[str]) -> Document: ...
@overload
def apply_overrides(data: Mapping[str, Any], overrides: Iterable[str]) -> dict[str, Any]: ...
def apply_overrides(
    data: Mapping[str, Any] | Document, overrides: Iterable[str]
) -> dict[str, Any] | Document:
    """Set fields of a configuration.

    Args:
        data: the configuration; it is not changed.
        overrides: texts such as ``searcher.max_trials=8``. The value is YAML, and null if it is empty.
            A number in the path is a position in a list (``bind_mounts.0.read_only=true``). Missing
            mappings are created.

    Returns:
        A changed copy of the same type as ``data``; a document keeps the lines of unchanged values.

    Raises:
        ConfigError: a text has another form, or its path leads through a value that is not a mapping.
    """
    changed = copy.deepcopy(data.data) if isinstance(data, Document) else plain_copy(data)
    marks = dict(data.marks) if isinstance(data, Document) else {}
    set_here: set[Path] = set()
    problems = []
    for override in overrides:
        try:
            path = _set(changed, override)
        except ValueError as error:
            problems.append(Problem("", None, override, None, None, str(error), SOURCE))
            continue
        set_here.add(path)
        # The line of a replaced value would point to text that no longer counts.
        marks = {place: mark for place, mark in marks.items() if place[: len(path)] != path}
    if problems:
        raise ConfigError(problems)
    if not isinstance(data, Document):
        return changed
    return replace(data, data=changed, marks=marks, overridden=data.overridden | set_here)


def _set(data: dict[str, Any], override: str) -> Path:
    """Set one field; returns its path. Raises ValueError with a text for the user."""
    name, equals, text = override.partition("=")
    steps = [step.strip() for step in name.split(".")]
    if not equals or not all(steps):
        raise ValueError(f"{override!r} is not of the form a.b.c=value")
    value = _value(text, override)
    holder: Any = data
    path: list[str | int] = []
    for step in steps[:-1]:
        key = _key(holder, step, path, override)
        if isinstance(holder, dict) and holder.get(key) is None:
            holder[key] = {}
        holder = holder[key]
        path.append(key)
        if not isinstance(holder, dict | list):
            where, found = paths.render(tuple(path)), show(holder)
            raise ValueError(f"{override!r}: {where} is {found}, which has no fields to set")
    key = _key(holder, steps[-1], path, override)
    holder[key] = value
    return (*path, key)


def _key(holder: Any, step: str, path: list[str | int], override: str) -> str | int:
    if isinstance(holder, dict):
        return step
    where = paths.render(tuple(path))
    if not step.isdigit() or int(step) >= len(holder):
        items = f"0 to {len(holder) - 1}" if holder else "none, because it is empty"
        raise ValueError(f"{override!r}: {where} is a list; its items are {items}, found {step!r}")
    return int(step)


def _value(text: str, override: str) -> Any:
    try:
        # The blank line keeps block scalars and multi-line mappings legal.
        return load_yaml(f"value: {text}").data["value"]
    except ConfigError:
        pass
    try:
        indented = text.replace("\n", "\n  ")
        return load_yaml(f"value:\n  {indented}").data["value"]
    except ConfigError as error:
        reason = error.problems[0].message
        raise ValueError(f"{override!r}: the value is not usable: {reason}") from None
