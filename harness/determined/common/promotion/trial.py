"""The trial that evaluates: its configuration, and what it reports. Shared by the service and by flows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

ENTRYPOINT = "python3 -m determined.evaluation"
GROUP = "evaluation"
"""The group of metrics in which it reports."""
COMPARISON, DATA_VERSION = "comparison", "data_version"
LABEL = "evaluation"

# What an evaluation has in common with the training: where and in what it runs.
_TAKEN_OVER = (
    "bind_mounts",
    "checkpoint_storage",
    "data",
    "environment",
    "pbs",
    "project",
    "slurm",
    "workspace",
)
_RESOURCES = ("resource_pool", "priority", "weight", "shm_size", "native_parallel")


def configuration(
    training: Mapping[str, Any], name: str, hyperparameters: Mapping[str, Any]
) -> dict[str, Any]:
    """An experiment of one trial that does what ``hyperparameters`` say (:mod:`determined.evaluation`).

    It runs where the experiment of the configuration ``training`` runs, in the same environment, on one slot.
    """
    given = training.get("resources") or {}
    resources = {field: given[field] for field in _RESOURCES if field in given}
    taken = {field: training[field] for field in _TAKEN_OVER if field in training}
    return {
        **taken,
        "name": name,
        "labels": [LABEL],
        "entrypoint": ENTRYPOINT,
        "hyperparameters": dict(hyperparameters),
        "searcher": {"name": "single", "metric": "done", "max_length": {"batches": 1}},
        "resources": {**resources, "slots_per_trial": 1},
        "max_restarts": 1,
    }
