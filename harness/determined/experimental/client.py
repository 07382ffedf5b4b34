"""The SDK as plain functions: ``from determined.experimental import client``.

The first call logs in like :class:`Determined` without arguments. To choose the service and the user,
call :func:`login` first.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Concatenate, ParamSpec, TypeVar

from determined._absent import absent
from determined.common.wire.kinds import TaskKind
from determined.experimental import _later
from determined.experimental._checkpoint import Checkpoint
from determined.experimental._cluster import Agent
from determined.experimental._determined import Determined
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
from determined.experimental._retraining import Retraining, RetrainingRun
from determined.experimental._task import Task
from determined.experimental._template import Template
from determined.experimental._trial import Trial, TrialReference
from determined.experimental._user import User
from determined.experimental._workspace import Project, ResourcePool, Workspace

__all__ = [
    "Agent",
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
    "Project",
    "ResourcePool",
    "Retraining",
    "RetrainingRun",
    "Task",
    "TaskKind",
    "Template",
    "TrainingMetrics",
    "Trial",
    "TrialMetrics",
    "TrialOrderBy",
    "TrialReference",
    "TrialSortBy",
    "TrialState",
    "User",
    "ValidationMetrics",
    "Workspace",
    "accounting",
    "accounting_csv",
    "change_experiments",
    "clear_cluster_message",
    "create_access_token",
    "create_experiment",
    "create_generic_task",
    "create_model",
    "create_retraining",
    "create_template",
    "create_user",
    "create_workspace",
    "delete_checkpoints",
    "delete_workspace",
    "explain_job",
    "find_experiments",
    "get_checkpoint",
    "get_cluster_config",
    "get_cluster_message",
    "get_experiment",
    "get_model",
    "get_model_by_id",
    "get_model_labels",
    "get_models",
    "get_retraining",
    "get_session_username",
    "get_task",
    "get_template",
    "get_trial",
    "get_user_by_id",
    "get_user_by_name",
    "get_user_defaults",
    "get_workspace",
    "iter_experiments",
    "iter_jobs",
    "iter_service_log",
    "iter_trials_metrics",
    "launch_task",
    "list_access_tokens",
    "list_agents",
    "list_allocations",
    "list_experiments",
    "list_models",
    "list_notebook_files",
    "list_resource_pools",
    "list_retrainings",
    "list_task_ids",
    "list_tasks",
    "list_templates",
    "list_users",
    "list_workspaces",
    "login",
    "logout",
    "preview_notebook",
    "preview_search",
    "remove_checkpoint_files",
    "set_cluster_message",
    "set_template",
    "set_user_defaults",
    "stream_trials_metrics",
    "stream_trials_training_metrics",
    "stream_trials_validation_metrics",
    "update_jobs",
    "wait_for_deletion",
    "whoami",
    "write_report",
]

__getattr__ = absent(__name__, _later.CLIENT)

_determined: Determined | None = None

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


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


def _function(
    method: Callable[Concatenate[Determined, Parameters], Result],
) -> Callable[Parameters, Result]:
    """The method as a function, of the process's one login."""

    @functools.wraps(method)
    def function(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        return method(_logged_in(), *args, **kwargs)

    # What help() and editors show: without self.
    signature = inspect.signature(method)
    shown = list(signature.parameters.values())[1:]
    function.__signature__ = signature.replace(parameters=shown)  # type: ignore[attr-defined]
    function.__module__, function.__qualname__ = __name__, method.__name__
    return function


whoami = _function(Determined.whoami)
get_session_username = _function(Determined.get_session_username)
list_users = _function(Determined.list_users)
get_user_defaults = _function(Determined.get_user_defaults)
set_user_defaults = _function(Determined.set_user_defaults)
create_user = _function(Determined.create_user)
get_user_by_id = _function(Determined.get_user_by_id)
get_user_by_name = _function(Determined.get_user_by_name)

create_workspace = _function(Determined.create_workspace)
get_workspace = _function(Determined.get_workspace)
list_workspaces = _function(Determined.list_workspaces)
delete_workspace = _function(Determined.delete_workspace)

create_experiment = _function(Determined.create_experiment)
get_experiment = _function(Determined.get_experiment)
list_experiments = _function(Determined.list_experiments)
iter_experiments = _function(Determined.iter_experiments)
find_experiments = _function(Determined.find_experiments)
change_experiments = _function(Determined.change_experiments)
write_report = _function(Determined.write_report)
get_trial = _function(Determined.get_trial)
get_checkpoint = _function(Determined.get_checkpoint)
delete_checkpoints = _function(Determined.delete_checkpoints)
remove_checkpoint_files = _function(Determined.remove_checkpoint_files)
wait_for_deletion = _function(Determined.wait_for_deletion)

create_model = _function(Determined.create_model)
get_model = _function(Determined.get_model)
get_model_by_id = _function(Determined.get_model_by_id)
list_models = _function(Determined.list_models)
get_models = list_models
get_model_labels = _function(Determined.get_model_labels)

list_tasks = _function(Determined.list_tasks)
get_task = _function(Determined.get_task)
launch_task = _function(Determined.launch_task)
preview_notebook = _function(Determined.preview_notebook)
create_generic_task = _function(Determined.create_generic_task)
list_allocations = _function(Determined.list_allocations)
list_task_ids = _function(Determined.list_task_ids)
list_notebook_files = _function(Determined.list_notebook_files)

list_agents = _function(Determined.list_agents)
list_resource_pools = _function(Determined.list_resource_pools)
iter_jobs = _function(Determined.iter_jobs)
update_jobs = _function(Determined.update_jobs)
explain_job = _function(Determined.explain_job)
accounting = _function(Determined.accounting)
accounting_csv = _function(Determined.accounting_csv)
iter_service_log = _function(Determined.iter_service_log)
get_cluster_config = _function(Determined.get_cluster_config)
get_cluster_message = _function(Determined.get_cluster_message)
set_cluster_message = _function(Determined.set_cluster_message)
clear_cluster_message = _function(Determined.clear_cluster_message)
preview_search = _function(Determined.preview_search)

create_retraining = _function(Determined.create_retraining)
get_retraining = _function(Determined.get_retraining)
list_retrainings = _function(Determined.list_retrainings)

create_access_token = _function(Determined.create_access_token)
list_access_tokens = _function(Determined.list_access_tokens)
create_template = _function(Determined.create_template)
set_template = _function(Determined.set_template)
get_template = _function(Determined.get_template)
list_templates = _function(Determined.list_templates)

iter_trials_metrics = _function(Determined.iter_trials_metrics)
stream_trials_metrics = iter_trials_metrics
stream_trials_training_metrics = _function(Determined.stream_trials_training_metrics)
stream_trials_validation_metrics = _function(Determined.stream_trials_validation_metrics)
