"""The targets of MLflow's entry points. Their modules are imported when MLflow asks for a store, not before:
while MLflow loads entry points, parts of it are half imported."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from determined_registry.mlflow.registry import RegistryStore
    from determined_registry.mlflow.tracking import TrackingStore


def tracking_store(store_uri: str, artifact_uri: str | None = None) -> TrackingStore:
    """The store of experiments and runs for ``determined+postgresql://…``."""
    from determined_registry.mlflow.tracking import TrackingStore

    return TrackingStore(store_uri)


def registry_store(store_uri: str, tracking_uri: str | None = None) -> RegistryStore:
    """The store of registered models for ``determined+postgresql://…``."""
    from determined_registry.mlflow.registry import RegistryStore

    return RegistryStore(store_uri)


def artifact_repository(
    artifact_uri: str, tracking_uri: str | None = None, registry_uri: str | None = None
) -> Any:
    """The files of runs and checkpoints, as one tree."""
    from determined_registry.mlflow.artifacts import Artifacts

    return Artifacts(artifact_uri, tracking_uri, registry_uri)
