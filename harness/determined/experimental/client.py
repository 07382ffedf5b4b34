"""The SDK as plain functions: ``from determined.experimental import client``.

The first call logs in like :class:`Determined` without arguments. To choose the service and the user,
call :func:`login` first.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from determined._absent import absent
from determined.experimental import _later
from determined.experimental._checkpoint import Checkpoint
from determined.experimental._determined import Config, Determined
from determined.experimental._enums import (
    CheckpointOrderBy,
    CheckpointSortBy,
    CheckpointState,
    DownloadMode,
    ExperimentOrderBy,
    ExperimentSortBy,
    ExperimentState,
    LogLevel,
    ModelOrderBy,
    ModelSortBy,
    ModelVersionOrderBy,
    OrderBy,
    TrialOrderBy,
    TrialSortBy,
    TrialState,
)
from determined.experimental._experiment import Experiment, ExperimentReference
from determined.experimental._metrics import TrainingMetrics, TrialMetrics, ValidationMetrics
from determined.experimental._model import AliasMove, Model, ModelVersion
from determined.experimental._trial import Trial, TrialReference
from determined.experimental._user import User

__all__ = [
    "AliasMove",
    "Checkpoint",
    "CheckpointOrderBy",
    "CheckpointSortBy",
    "CheckpointState",
    "Determined",
    "DownloadMode",
    "Experiment",
    "ExperimentOrderBy",
    "ExperimentReference",
    "ExperimentSortBy",
    "ExperimentState",
    "LogLevel",
    "Model",
    "ModelOrderBy",
    "ModelSortBy",
    "ModelVersion",
    "ModelVersionOrderBy",
    "OrderBy",
    "TrainingMetrics",
    "Trial",
    "TrialMetrics",
    "TrialOrderBy",
    "TrialReference",
    "TrialSortBy",
    "TrialState",
    "User",
    "ValidationMetrics",
    "create_experiment",
    "create_model",
    "create_user",
    "get_checkpoint",
    "get_experiment",
    "get_model",
    "get_model_by_id",
    "get_model_labels",
    "get_models",
    "get_session_username",
    "get_trial",
    "get_user_by_id",
    "get_user_by_name",
    "iter_trials_metrics",
    "list_experiments",
    "list_models",
    "list_users",
    "login",
    "logout",
    "stream_trials_metrics",
    "stream_trials_training_metrics",
    "stream_trials_validation_metrics",
    "whoami",
]

__getattr__ = absent(__name__, _later.CLIENT)

_determined: Determined | None = None


def login(
    master: str | None = None,
    user: str | None = None,
    password: str | None = None,
    cert_path: str | None = None,
    cert_name: str | None = None,
    noverify: bool = False,
) -> None:
    """Logs in; the arguments are those of :class:`Determined`.

    Raises RuntimeError if there is a login already: two services in one process need two Determined
    objects.
    """
    global _determined
    if _determined is not None:
        raise RuntimeError(
            "login() must come before the other functions of client, and only once;"
            " make Determined objects for more than one login"
        )
    _determined = Determined(master, user, password, cert_path, cert_name, noverify)


def logout() -> None:
    """Ends the login; the next call logs in again."""
    global _determined
    _logged_in().logout()
    _determined = None


def _logged_in() -> Determined:
    global _determined
    if _determined is None:
        _determined = Determined()
    return _determined


def whoami() -> User:
    """The user who is logged in."""
    return _logged_in().whoami()


def get_session_username() -> str:
    """The name of the user who is logged in."""
    return _logged_in().get_session_username()


def list_users(active: bool | None = None) -> list[User]:
    """All users, or only the active or inactive ones if ``active`` is given."""
    return _logged_in().list_users(active)


def create_user(
    username: str, admin: bool, password: str | None = None, remote: bool = False
) -> User:
    """Creates a user, for administrators only. See :meth:`Determined.create_user`."""
    return _logged_in().create_user(username, admin, password, remote)


def get_user_by_id(user_id: int) -> User:
    """Raises NotFoundException."""
    return _logged_in().get_user_by_id(user_id)


def get_user_by_name(user_name: str) -> User:
    """Raises NotFoundException."""
    return _logged_in().get_user_by_name(user_name)


def create_experiment(
    config: Config,
    model_dir: str | Path | None = None,
    includes: Iterable[str | Path] | None = None,
    project_id: int | None = None,
    template: str | None = None,
    parent_id: int | None = None,
    paused: bool = False,
) -> Experiment:
    """Submits an experiment; see :meth:`Determined.create_experiment`."""
    return _logged_in().create_experiment(
        config, model_dir, includes, project_id, template, parent_id, paused
    )


def get_experiment(experiment_id: int) -> Experiment:
    """Raises NotFoundException."""
    return _logged_in().get_experiment(experiment_id)


def list_experiments(**filters: Any) -> list[Experiment]:
    """The experiments that match; see :meth:`Determined.list_experiments`."""
    return _logged_in().list_experiments(**filters)


def get_trial(trial_id: int) -> Trial:
    """Raises NotFoundException."""
    return _logged_in().get_trial(trial_id)


def get_checkpoint(uuid: str) -> Checkpoint:
    """Raises NotFoundException."""
    return _logged_in().get_checkpoint(uuid)


def create_model(
    name: str, description: str | None = "", metadata: dict[str, Any] | None = None
) -> Model:
    """Adds a model to the registry; see :meth:`Determined.create_model`."""
    return _logged_in().create_model(name, description, metadata)


def get_model(identifier: str | int) -> Model:
    """A model by its name or id. Raises NotFoundException."""
    return _logged_in().get_model(identifier)


def get_model_by_id(model_id: int) -> Model:
    """Raises NotFoundException."""
    return _logged_in().get_model(model_id)


def list_models(
    sort_by: ModelSortBy = ModelSortBy.NAME,
    order_by: OrderBy = OrderBy.ASCENDING,
    name: str | None = None,
    description: str | None = None,
    model_id: int | None = None,
    workspace_names: list[str] | None = None,
    workspace_ids: list[int] | None = None,
) -> list[Model]:
    """The models that match; see :meth:`Determined.list_models`."""
    return _logged_in().list_models(
        sort_by, order_by, name, description, model_id, workspace_names, workspace_ids
    )


get_models = list_models


def get_model_labels() -> list[str]:
    """The labels of all models, the most used ones first."""
    return _logged_in().get_model_labels()


def iter_trials_metrics(trial_ids: list[int], group: str) -> Iterator[TrialMetrics]:
    """Every report of ``group`` by these trials."""
    return _logged_in().iter_trials_metrics(trial_ids, group)


stream_trials_metrics = iter_trials_metrics


def stream_trials_training_metrics(trial_ids: list[int]) -> Iterator[TrialMetrics]:
    """Every training report by these trials."""
    return _logged_in().stream_trials_training_metrics(trial_ids)


def stream_trials_validation_metrics(trial_ids: list[int]) -> Iterator[TrialMetrics]:
    """Every validation report by these trials."""
    return _logged_in().stream_trials_validation_metrics(trial_ids)
