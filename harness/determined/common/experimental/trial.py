"""The SDK's trials, at the place of early releases."""

from __future__ import annotations

from determined.experimental.client import (
    Trial,
    TrialOrderBy,
    TrialReference,
    TrialSortBy,
    TrialState,
)

__all__ = [
    "Trial",
    "TrialOrderBy",
    "TrialReference",
    "TrialSortBy",
    "TrialState",
]
