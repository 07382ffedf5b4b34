"""Configurations the searcher tests share."""

from __future__ import annotations

from typing import Any

SPACE: dict[str, Any] = {
    "lr": {"type": "log", "base": 10, "minval": -4, "maxval": -1, "count": 3},
    "net": {
        "layers": {"type": "int", "minval": 1, "maxval": 4, "count": 2},
        "act": {"type": "categorical", "vals": ["relu", "tanh"]},
    },
    "batch": 32,
}


def config(name: str, seed: int = 1, space: dict[str, Any] | None = None, **fields: Any) -> Any:
    """An experiment configuration as far as searchers read it."""
    return {
        "searcher": {"name": name, "metric": "loss", "smaller_is_better": True, **fields},
        "hyperparameters": SPACE if space is None else space,
        "reproducibility": {"experiment_seed": seed},
    }
