"""The data sets and models that a run said it used: kept as JSON with the run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mlflow.entities import Dataset, DatasetInput, InputTag, LoggedModelInput


def datasets(kept: Sequence[dict[str, Any]] | None) -> list[DatasetInput]:
    """The data sets among the stored inputs."""
    return [
        DatasetInput(
            dataset=Dataset(**one["dataset"]),
            tags=[InputTag(key, value) for key, value in one.get("tags", {}).items()],
        )
        for one in kept or ()
        if "dataset" in one
    ]


def models(kept: Sequence[dict[str, Any]] | None) -> list[LoggedModelInput]:
    """The models among the stored inputs."""
    return [LoggedModelInput(one["model_id"]) for one in kept or () if "model_id" in one]


def to_keep(
    datasets: Sequence[DatasetInput] | None, models: Sequence[LoggedModelInput] | None
) -> list[dict[str, Any]]:
    """The form in which inputs are stored; :func:`datasets` and :func:`models` read it."""
    kept: list[dict[str, Any]] = [
        {
            "dataset": {
                name: getattr(one.dataset, name)
                for name in ("name", "digest", "source_type", "source", "schema", "profile")
            },
            "tags": {tag.key: tag.value for tag in one.tags or ()},
        }
        for one in datasets or ()
    ]
    return kept + [{"model_id": one.model_id} for one in models or ()]
