"""Lists the fields of a configuration that are stored but have no effect where it is to run, and why.

The remarks at submission, at the top of a trial's log and of ``det experiment describe`` come from here; the
table is :mod:`determined.expconf.heeding`.
"""

from __future__ import annotations

import functools
import posixpath
import re
from collections.abc import Iterator, Mapping
from typing import Any

from determined.expconf.config import ExperimentConfig
from determined.expconf.document import load_yaml
from determined.expconf.heeding import DROPPED, PROCESSES, ROWS, Surroundings, shown
from determined.expconf.problems import ConfigError
from determined.expconf.searcher import AdaptiveAshaSearcher
from determined.expconf.storage import SharedFsStorage

_QUOTED = re.compile(r"'([^'\n]*)'|\"([^\"\n]*)\"")
_WORD = re.compile(r"[^\s'\"]+")
PATH_CHARS = 4096
"""No path is longer."""
LONG_CHARS = 20_000
"""Longer texts take too long to be parsed once more just for a remark."""
_MAYBE_DROPPED = re.compile(rf"\b({'|'.join(name.rpartition('.')[2] for name in DROPPED)})\b")


def unheeded(
    config: Mapping[str, Any], where: Surroundings, *, all_that_is_there: bool = False
) -> list[str]:
    """A sentence for each group of fields that the (complete) ``config`` sets to something else than the
    default (``all_that_is_there``: or to the default), and that are ignored ``where`` it will run."""
    found = []
    for row in ROWS:
        if callable(row.fields):
            given = row.fields(config)
        else:
            given = [
                name
                for name in row.fields
                if is_given(config, name)
                or (all_that_is_there and value_of(config, name) is not None)
            ]
        why = row.why(config, where) if given else None
        if why is not None:
            named = ", ".join(_with_number(name, value_of(config, name)) for name in given)
            verb = "is" if len(given) == 1 else "are"
            detail = row.detail(config) if row.detail else ""
            found.append(f"{named} {verb} stored but ignored: {why}{detail}")
    return found


def _with_number(name: str, value: Any) -> str:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return f"{name} ({value:g})" if is_number else name


def unmounted(config: Mapping[str, Any], text: str, where: Surroundings) -> str | None:
    """In words, that a path in ``text`` (why a process failed) lies below a mount that is not there."""
    if where.worker_type != PROCESSES or where.no_mounts is None:
        return None
    mounts = {
        posixpath.normpath(str(mount.get("container_path"))): mount
        for mount in config.get("bind_mounts") or ()
    }
    for path in _paths(text):
        if path in mounts:
            host = mounts[path].get("host_path")
            return (
                f"{shown(path)} of bind_mounts is not mounted, because the agent can mount "
                f"nothing; there the directory is {shown(host)}"
            )
    return None


def _paths(text: str) -> Iterator[str]:
    """The quoted parts of the text and the words that look like paths, each with all directories above it."""
    quoted = [one or other for one, other in _QUOTED.findall(text)]
    words = [word.strip("().,:;") for word in _WORD.findall(text)]
    for given in [*quoted, *(word for word in words if "/" in word)]:
        if len(given) > PATH_CHARS:
            continue
        path = posixpath.normpath(given)
        while path not in ("", "/", "."):
            yield path
            path = posixpath.dirname(path)


def value_of(config: Mapping[str, Any], name: str) -> Any:
    """The value at a dotted name; None if there is none."""
    found: Any = config
    for part in name.split("."):
        found = found.get(part) if isinstance(found, Mapping) else None
    return found


def is_given(config: Mapping[str, Any], name: str) -> bool:
    """True if the configuration sets the field to something else than the default."""
    value = value_of(config, name)
    return value is not None and value != value_of(_defaults(), name)


@functools.cache
def _defaults() -> Mapping[str, Any]:
    fields = ExperimentConfig.model_fields.items()
    made = {
        name: field.get_default(call_default_factory=True)
        for name, field in fields
        if not field.is_required()
    }
    plain = {
        name: value.model_dump(mode="json") if hasattr(value, "model_dump") else value
        for name, value in made.items()
    }
    # Of the sections that are one of several kinds, those defaults that rows ask for.
    return plain | {
        "searcher": {
            name: AdaptiveAshaSearcher.model_fields[name].default for name in ("mode", "max_rungs")
        },
        "checkpoint_storage": {"propagation": SharedFsStorage.model_fields["propagation"].default},
    }


def dropped(text: str) -> list[str]:
    """:func:`dropped_fields` of the text of an experiment's configuration."""
    if len(text) > LONG_CHARS or not _MAYBE_DROPPED.search(text):
        return []
    try:
        given = load_yaml(text).data
    except ConfigError:
        return []
    return dropped_fields(given)


def dropped_fields(given: Mapping[str, Any]) -> list[str]:
    """A sentence for each field of an experiment's configuration, as given, that is read and not stored."""
    return [
        f"{name} is ignored: {instead}"
        for name, instead in DROPPED.items()
        if value_of(given, name) is not None
    ]
