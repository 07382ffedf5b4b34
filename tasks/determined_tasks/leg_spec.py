"""What a leg of a task is told: the service's launch order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any


@dataclass(frozen=True)
class LegSpec:
    """One allocation of one task, as ``POST /internal/v1/agents/{id}/work`` hands it out.

    ``entrypoint`` is as in the experiment configuration. ``env`` holds ``DET_*`` variables that only the
    service knows, ``environment_variables`` the user's ``KEY=VALUE`` items. ``checkpoint``: of the
    ``latest_checkpoint``, its ``resources`` and ``checksums``, and its ``storage`` where that is not the
    experiment's.
    """

    allocation_id: str
    task_id: str
    entrypoint: str | list[str]
    session_token: str
    cluster_id: str
    task_type: str = "TRIAL"
    experiment_id: int | None = None
    trial_id: int | None = None
    run_id: int = 1
    slot_ids: list[int] = field(default_factory=list)
    resource_pool: str = "default"
    model_def_hash: str | None = None
    config: dict[str, Any] = field(default_factory=dict)
    hparams: dict[str, Any] = field(default_factory=dict)
    trial_seed: int = 0
    latest_checkpoint: str | None = None
    steps_completed: int = 0
    checkpoint: dict[str, Any] | None = None
    owner: str = "determined"
    cluster_name: str = ""
    env: dict[str, str] = field(default_factory=dict)
    environment_variables: list[str] = field(default_factory=list)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> LegSpec:
        """Keys that are not known here are ignored: the service may be newer.

        Raises TypeError when a required one is missing.
        """
        known = {item.name for item in fields(cls)}
        return cls(**{key: value for key, value in data.items() if key in known})

    def user_environment(self) -> dict[str, str]:
        """``environment_variables`` as a dict; an item without ``=`` is the empty string."""
        pairs = (item.partition("=") for item in self.environment_variables)
        return {name: value for name, _, value in pairs if name}
