"""What a script says of its experiment."""

from __future__ import annotations

import dataclasses
import uuid
import warnings
from typing import Any

from determined import storage


@dataclasses.dataclass
class Config:
    """An unmanaged experiment; on the cluster it is ignored, the experiment has its configuration.

    Attributes:
        name: as lists show it, by default one made up.
        hparams: the trial's hyperparameters.
        data, description, labels, workspace, project, searcher: as in an experiment configuration;
            ``searcher`` names the metric to compare trials by.
        checkpoint_storage: a path, a URL, or a section as in the configuration; by default a directory of
            the user's.
        external_experiment_id: a name under which the experiment is found again, by another trial of
            it or when the script starts again.
        external_trial_id: the same for the trial: a script that starts again goes on with it.
            Needs ``external_experiment_id``.
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
    """What early releases called :class:`Config`."""

    def __init__(self, **kwargs: Any) -> None:
        _deprecated("DefaultConfig is deprecated: use Config")
        super().__init__(**kwargs)


class UnmanagedConfig(Config):
    """The part of :class:`Config` that early releases had apart."""

    def __init__(self, **kwargs: Any) -> None:
        _deprecated("UnmanagedConfig is deprecated: use Config")
        super().__init__(**kwargs)


def merged(
    config: Config | None, defaults: Config | None, unmanaged: Config | None
) -> Config | None:
    """The one configuration of the three arguments; None: there is none."""
    if defaults is not None or unmanaged is not None:
        _deprecated("the arguments defaults and unmanaged are deprecated: use config")
    if config is not None:
        return config
    if defaults is None or unmanaged is None:
        return defaults
    # What only the second one used to have counts where the first has nothing.
    names = ("workspace", "project", "external_experiment_id", "external_trial_id")
    changes = {name: getattr(defaults, name) or getattr(unmanaged, name) for name in names}
    values = {field.name: getattr(defaults, field.name) for field in dataclasses.fields(Config)}
    return Config(**{**values, **changes})


def _deprecated(text: str) -> None:
    warnings.warn(text, FutureWarning, stacklevel=4)


def experiment_config(
    config: Config, checkpoint_storage: str | dict[str, Any] | None
) -> dict[str, Any]:
    """The experiment configuration for the service, which fills in the rest.

    Raises ValueError for a storage that is no path and no known URL.
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
