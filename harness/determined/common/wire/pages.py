"""Addresses of the service's own pages, below its own."""

from __future__ import annotations

HOME = "/det"


def experiment(experiment_id: int) -> str:
    return f"{HOME}/experiments/{experiment_id}"


def trial(trial_id: int) -> str:
    return f"{HOME}/trials/{trial_id}"
