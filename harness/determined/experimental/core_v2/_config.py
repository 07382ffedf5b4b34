"""The configuration of a script's unmanaged experiment."""

from __future__ import annotations

import dataclasses
import uuid
import warnings
from typing import Any

from determined import storage


@dataclasses.dataclass
class Config:
    """The configuration of an unmanaged experiment. On the cluster it is ignored.

    Attributes:
        name: the experiment's name, by default a random one.
        hparams: the trial's hyperparameters.
        data, description, labels, workspace, project, searcher: as in an experiment configuration;
            ``searcher`` has the metric by which trials are compared.
        checkpoint_storage: a path, a URL, or a section as in the configuration; by default a directory
            in the user's data directory.
        external_experiment_id: a name by which another trial, or the script when it starts again,
            finds the experiment.
        external_trial_id: the same for the trial: a script that starts again continues it. Needs
            ``external_experiment_id``.
    """

    name: str | None = None
    hparams: dict[str, Any] | None = None
    data: dict[str, Any] | None = None
    description: str | None = None
    labels: list[str] | None = None
    workspace: str | None = None
    project: str | None = None
    checkpoint_storage: str | dict[str, Any] | None = None
    searcher: dict[str, Any] | None = None
    external_experiment_id: str | None = None
    external_trial_id: str | None = None


class DefaultConfig(Config):
    """The name of :class:`Config` in early releases."""

    def __init__(self, **kwargs: Any) -> None:
        _deprecated("DefaultConfig is deprecated: use Config")
        super().__init__(**kwargs)


class UnmanagedConfig(Config):
    """The part of :class:`Config` that was separate in early releases."""

    def __init__(self, **kwargs: Any) -> None:
        _deprecated("UnmanagedConfig is deprecated: use Config")
        super().__init__(**kwargs)


def merged(
    config: Config | None, defaults: Config | None, unmanaged: Config | None
) -> Config | None:
    """The configuration from the three arguments; None if there is none."""
    if defaults is not None or unmanaged is not None:
        _deprecated("the arguments defaults and unmanaged are deprecated: use config")
    if config is not None:
        return config
    if defaults is None or unmanaged is None:
        return defaults
    # The fields that only the second had are used if the first does not set them.
    names = ("workspace", "project", "external_experiment_id", "external_trial_id")
    changes = {name: getattr(defaults, name) or getattr(unmanaged, name) for name in names}
    values = {field.name: getattr(defaults, field.name) for field in dataclasses.fields(Config)}
    return Config(**{**values, **changes})


def _deprecated(text: str) -> None:
    warnings.warn(text, FutureWarning, stacklevel=4)


def experiment_config(
    config: Config, checkpoint_storage: str | dict[str, Any] | None
) -> dict[str, Any]:
    """The experiment configuration for the service, which adds the defaults.

    Raises ValueError for a storage that is neither a path nor a known URL.
    """
    section = checkpoint_storage or config.checkpoint_storage or _default_storage()
    if isinstance(section, str):
        section = storage.from_string(section, on_cluster=False)
    return {
        "name": config.name or f"unmanaged-{uuid.uuid4().hex[:8]}",
        "data": config.data or {},
        "description": config.description or "",
        "labels": config.labels or [],
        "workspace": config.workspace or "",
        "project": config.project or "",
        "searcher": config.searcher or {"name": "single", "metric": "unmanaged"},
        "checkpoint_storage": section,
        "hyperparameters": config.hparams or {},
    }


def _default_storage() -> str:
    from platformdirs import user_data_path

    return str(user_data_path("determined") / "checkpoints")
