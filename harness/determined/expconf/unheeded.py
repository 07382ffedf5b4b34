"""Which fields of a configuration are stored but not heeded where it is to run, and why: one table.

What is told at submission, at the top of a trial's log and in ``det experiment describe`` comes from here.
Every field of the format stands in :data:`ROWS` or in :data:`HEEDED`; a new field needs a decision.
"""

from __future__ import annotations

import functools
import posixpath
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from determined.expconf.config import ExperimentConfig

PROCESSES = "determined-process"
"""The type of agents that run processes (``worker_type``); the others run containers."""
ORDERS = {
    "priority": "by priority",
    "fair_share": "by fair shares",
    "round_robin": "in turns (round robin)",
    "first_in_first_out": "first in, first out",
}
"""How a pool serves, by the type of its scheduler."""
HEEDS_PRIORITY, HEEDS_WEIGHT = ("priority",), ("fair_share",)

# A path that begins so: in quotes, or where no name goes on. A relative one could be any word otherwise.
_PATH = r"(?:(?<=['\"])|(?<![\w./-])(?=\S*/))(?:\./)?{}(?=$|[^\w.-])"

ONLY = "Uncategorized"
"""The one workspace, and its project."""
MOST_NAMED = 3
NAMED_CHARS = 200
"""So many mounts are named in a sentence, each path of them with so many characters at most."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Where something is to run. None: not known, and nothing is said that depends on it.

    ``scheduler``: the type of the resource pool's. ``worker_type``: of its agents. ``is_task``: it is no
    experiment but a command, a notebook and so on.
    """

    pool: str = ""
    scheduler: str | None = None
    worker_type: str | None = None
    is_task: bool = False


@dataclass(frozen=True, slots=True)
class Row:
    """Fields that the same surroundings heed or do not: ``why`` not, in words; None if they are heeded."""

    fields: tuple[str, ...]
    why: Callable[[Mapping[str, Any], Surroundings], str | None]
    detail: Callable[[Mapping[str, Any]], str] | None = None
    """What else to say of those that are not heeded."""


def unheeded(
    config: Mapping[str, Any], where: Surroundings, *, all_that_is_there: bool = False
) -> list[str]:
    """A sentence for each group of fields that the (complete) ``config`` sets to something else than the
    default (``all_that_is_there``: or to the default), and that are not heeded ``where`` it is to run."""
    found = []
    for row in ROWS:
        given = [
            name
            for name in row.fields
            if is_given(config, name) or (all_that_is_there and value_of(config, name) is not None)
        ]
        why = row.why(config, where) if given else None
        if why is not None:
            named = ", ".join(_with_number(name, value_of(config, name)) for name in given)
            verb = "is" if len(given) == 1 else "are"
            detail = row.detail(config) if row.detail else ""
            found.append(f"{named} {verb} stored but not heeded: {why}{detail}")
    return found


def _with_number(name: str, value: Any) -> str:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return f"{name} ({value:g})" if is_number else name


def unmounted(config: Mapping[str, Any], text: str, where: Surroundings) -> str | None:
    """In words, that a path in ``text`` (why a process failed) lies below a mount that is not there."""
    if where.worker_type != PROCESSES:
        return None
    for mount in config.get("bind_mounts") or ():
        place = posixpath.normpath(str(mount.get("container_path")))
        if re.search(_PATH.format(re.escape(place)), text):
            return (
                f"{_shown(place)} of bind_mounts is not mounted: resource pool {where.pool!r} has agents "
                f"that run processes, where the directory is {_shown(mount.get('host_path'))}"
            )
    return None


def value_of(config: Mapping[str, Any], name: str) -> Any:
    """The value at a dotted name; None if there is none."""
    found: Any = config
    for part in name.split("."):
        found = found.get(part) if isinstance(found, Mapping) else None
    return found


def is_given(config: Mapping[str, Any], name: str) -> bool:
    """Whether the configuration has something else there than the default."""
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
    return {
        name: value.model_dump(mode="json") if hasattr(value, "model_dump") else value
        for name, value in made.items()
    }


def _shown(path: Any) -> str:
    text = str(path)
    return text if len(text) <= NAMED_CHARS else text[:NAMED_CHARS] + "…"


def _no_containers(_: Mapping[str, Any], where: Surroundings) -> str | None:
    if where.worker_type != PROCESSES:
        return None
    return (
        f"resource pool {where.pool!r} has agents that run processes, and only those that run containers do "
        "(docs/agent.md)"
    )


def _mounts(config: Mapping[str, Any]) -> str:
    mounts = list(config.get("bind_mounts") or ())
    if not mounts:
        return ""
    named = [
        f"{_shown(one.get('container_path'))} (on the machine: {_shown(one.get('host_path'))})"
        for one in mounts[:MOST_NAMED]
    ]
    more = f" and {len(mounts) - MOST_NAMED} more" if len(mounts) > MOST_NAMED else ""
    verb = "is" if len(mounts) == 1 else "are"
    return f"; {', '.join(named)}{more} {verb} not mounted"


def _priority(_: Mapping[str, Any], where: Surroundings) -> str | None:
    return not_served(where, HEEDS_PRIORITY)


def _weight(_: Mapping[str, Any], where: Surroundings) -> str | None:
    if where.is_task:
        # A fair share is at least the slots of one allocation, and never more than what is wanted.
        return "a task has all of its slots or waits for them; weights share slots out among experiments"
    return not_served(where, HEEDS_WEIGHT)


def not_served(where: Surroundings, heeding: tuple[str, ...]) -> str | None:
    """Why the pool's scheduler, if it is none of ``heeding``, does not look at the field."""
    if where.scheduler is None or where.scheduler in heeding:
        return None
    return f"resource pool {where.pool!r} serves {ORDERS[where.scheduler]}"


def _one_workspace(config: Mapping[str, Any], _: Surroundings) -> str | None:
    named = [config.get("workspace") or ONLY, config.get("project") or ONLY]
    if named == [ONLY, ONLY]:
        return None
    shown = " / ".join(map(_shown, named))
    return (
        f"this cluster has one workspace and one project, both {ONLY!r}, and the experiment is there, not in "
        f"{shown}; tell experiments apart by labels and names"
    )


ROWS: tuple[Row, ...] = (
    Row(("workspace", "project"), _one_workspace),
    Row(("resources.priority",), _priority),
    Row(("resources.weight",), _weight),
    Row(
        (
            "bind_mounts",
            "environment.image",
            "environment.force_pull_image",
            "environment.registry_auth",
            "environment.add_capabilities",
            "environment.drop_capabilities",
            "resources.devices",
            "resources.shm_size",
        ),
        _no_containers,
        _mounts,
    ),
)
