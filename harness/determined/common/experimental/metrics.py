"""The SDK's metrics, at the place of early releases."""

from __future__ import annotations

from determined.experimental.client import TrainingMetrics, TrialMetrics, ValidationMetrics

__all__ = [
    "TrainingMetrics",
    "TrialMetrics",
    "ValidationMetrics",
]
