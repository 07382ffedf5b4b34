"""The SDK's experiments, at the place of early releases."""

from __future__ import annotations

from determined.experimental.client import (
    Experiment,
    ExperimentOrderBy,
    ExperimentReference,
    ExperimentSortBy,
    ExperimentState,
)

__all__ = [
    "Experiment",
    "ExperimentOrderBy",
    "ExperimentReference",
    "ExperimentSortBy",
    "ExperimentState",
]
