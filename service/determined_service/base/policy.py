"""A cluster's config policies: :class:`Policies`. What they do: :mod:`~determined_service.base.policies`."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

EXPERIMENT, TASKS = "EXPERIMENT", "NTSC"
"""Kinds of workload, by their names in the API."""
_WORDS = {EXPERIMENT: "experiment", TASKS: "tasks"}


@dataclass(frozen=True, slots=True)
class ConfigPolicy:
    """``workspace``: its name; None: the global one. ``content``: JSON."""

    workload: str
    workspace: str | None
    content: bytes

    @property
    def whose(self) -> str:
        """The policy in words."""
        if self.workspace is None:
            return "the global config policy"
        return f"the config policy of workspace {self.workspace}"

    @property
    def advice(self) -> str:
        """What the end of a refusal says."""
        where = "" if self.workspace is None else f" -w {shlex.quote(self.workspace)}"
        return f"det config-policies describe {_WORDS[self.workload]}{where} shows it"

    @property
    def invariant(self) -> dict[str, Any]:
        """Values that win, as they were written."""
        return orjson.loads(self.content).get("invariant_config") or {}

    @property
    def max_slots(self) -> int | None:
        return (self._constraints.get("resources") or {}).get("max_slots")

    @property
    def priority_limit(self) -> int | None:
        return self._constraints.get("priority_limit")

    @property
    def _constraints(self) -> dict[str, Any]:
        return orjson.loads(self.content).get("constraints") or {}


Held = tuple[ConfigPolicy, ...]
"""The policies that hold for something, the strongest first; mostly none."""


@dataclass(frozen=True, slots=True)
class Policies:
    """All of a cluster: by workload and workspace (None: global) its JSON."""

    known: Mapping[tuple[str, int | None], bytes] = field(default_factory=dict)

    def of(self, workload: str, workspace_id: int, workspace: str) -> Held:
        """Those that hold in the workspace of that id and name."""
        if not self.known:
            return ()
        found: dict[str | None, bytes | None] = {
            None: self.known.get((workload, None)),
            workspace: self.known.get((workload, workspace_id)),
        }
        return tuple(
            ConfigPolicy(workload, name, content)
            for name, content in found.items()
            if content is not None
        )
