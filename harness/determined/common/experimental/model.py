"""The SDK's models, at the place of early releases."""

from __future__ import annotations

from determined.experimental.client import Model, ModelOrderBy, ModelSortBy, ModelVersion

__all__ = [
    "Model",
    "ModelOrderBy",
    "ModelSortBy",
    "ModelVersion",
]
