"""The tracking store: experiments, runs, metrics and logged models over our tables.

It reads everything. It writes what has a meaning on our side, by requests to the service; the rest it refuses
(403) with a sentence that says what to do instead. Features of MLflow beyond training are in
:mod:`determined_registry.mlflow.absent`.
"""

from __future__ import annotations

import time
import uuid as uuids
from collections.abc import Sequence
from typing import Any

from mlflow.entities import Experiment, LoggedModelStatus, Run, ViewType
from mlflow.entities.lifecycle_stage import LifecycleStage
from mlflow.exceptions import MlflowException
from mlflow.protos.databricks_pb2 import RESOURCE_ALREADY_EXISTS
from mlflow.store.entities.paged_list import PagedList
from mlflow.store.tracking import (
    SEARCH_LOGGED_MODEL_MAX_RESULTS_DEFAULT,
    SEARCH_MAX_RESULTS_DEFAULT,
    SEARCH_MAX_RESULTS_THRESHOLD,
)
from mlflow.utils.name_utils import _generate_random_name
from mlflow.utils.validation import (
    _validate_batch_log_data,
    _validate_batch_log_limits,
    _validate_experiment_name,
    _validate_metric,
    _validate_param,
    _validate_param_keys_unique,
    _validate_tag,
)

from determined_registry.mlflow import inputs, names, service, spool
from determined_registry.mlflow.absent import Absent
from determined_registry.mlflow.database import Reader
from determined_registry.mlflow.experiments import DEFAULT, Experiments, check_id
from determined_registry.mlflow.logged_models import LoggedModels
from determined_registry.mlflow.runs import Runs, status_of
from determined_registry.mlflow.service import invalid, refuse

RUN_NAME = "mlflow.runName"
_STATES = {
    "RUNNING": "STATE_RUNNING",
    "SCHEDULED": "STATE_RUNNING",
    "FINISHED": "STATE_COMPLETED",
    "FAILED": "STATE_ERROR",
    "KILLED": "STATE_CANCELED",
}


class TrackingStore(Absent):
    """MLflow's view of experiments, trials, metrics and checkpoints; see the module's docstring."""

    def __init__(self, store_uri: str) -> None:
        super().__init__()
        db = Reader(store_uri)
        self._experiments = Experiments(db)
        self._runs = Runs(db)
        self._models = LoggedModels(db)

    # Experiments

    def get_experiment(self, experiment_id: str) -> Experiment:
        """Raises MlflowException (404)."""
        if str(experiment_id) != DEFAULT:
            return self._experiments.get(experiment_id)
        found = self._experiments.by_name(_default_name())
        if found is not None:
            return found
        return Experiment(
            DEFAULT, _default_name(), "mlflow-artifacts:/experiments/0", LifecycleStage.ACTIVE
        )

    def get_experiment_by_name(self, experiment_name: str) -> Experiment | None:
        return self._experiments.by_name(experiment_name)

    def search_experiments(
        self,
        view_type: int = ViewType.ACTIVE_ONLY,
        max_results: int = SEARCH_MAX_RESULTS_DEFAULT,
        filter_string: str | None = None,
        order_by: Sequence[str] | None = None,
        page_token: str | None = None,
    ) -> PagedList[Experiment]:
        _check_page(max_results)
        return PagedList(
            *self._experiments.search(view_type, max_results, filter_string, order_by, page_token)
        )

    def create_experiment(
        self, name: str, artifact_location: str | None = None, tags: Sequence[Any] | None = None
    ) -> str:
        """An unmanaged experiment of the user's; its artifacts go to the cluster's checkpoint storage.

        Raises MlflowException: there is one of this name, or an artifact location is given.
        """
        _validate_experiment_name(name)
        if artifact_location:
            refuse(
                "artifacts go to the cluster's checkpoint storage: leave artifact_location out of "
                "create_experiment"
            )
        if self._experiments.by_name(name) is not None:
            raise MlflowException(
                f"Experiment(name={name}) already exists.", RESOURCE_ALREADY_EXISTS
            )
        body = {"name": name, "tags": {tag.key: tag.value for tag in tags or ()}}
        found = service.ask("POST", "/api/v1/mlflow/experiments", body, taken=name)
        return str(found["experimentId"])

    def delete_experiment(self, experiment_id: str) -> None:
        """Hides (archives) it, as ``restore_experiment`` undoes."""
        self._change_experiment(experiment_id, {"archived": True})

    def restore_experiment(self, experiment_id: str) -> None:
        self._change_experiment(experiment_id, {"archived": False})

    def rename_experiment(self, experiment_id: str, new_name: str) -> None:
        _validate_experiment_name(new_name)
        other = self._experiments.by_name(new_name)
        if other is not None and other.experiment_id != str(experiment_id):
            raise MlflowException(
                f"Experiment(name={new_name}) already exists.", RESOURCE_ALREADY_EXISTS
            )
        self._change_experiment(experiment_id, {"name": new_name})

    def set_experiment_tag(self, experiment_id: str, tag: Any) -> None:
        """Raises MlflowException (400) for a deleted experiment."""
        found = self._active_experiment(experiment_id)
        self._change_experiment(found.experiment_id, {"tags": {tag.key: str(tag.value)}})

    def delete_experiment_tag(self, experiment_id: str, key: str) -> None:
        """Raises MlflowException: 400 for a deleted experiment, 404 for a tag that is not there."""
        found = self._active_experiment(experiment_id)
        if key not in found.tags:
            raise service.no_tag(key, f"experiment {experiment_id}")
        self._change_experiment(found.experiment_id, {"tags": {key: None}})

    def _active_experiment(self, experiment_id: str) -> Any:
        found = self.get_experiment(experiment_id)
        if found.lifecycle_stage != LifecycleStage.ACTIVE:
            raise invalid(
                f"The experiment {found.experiment_id} must be in the 'active' state. "
                f"Current state is {found.lifecycle_stage}."
            )
        return found

    def _change_experiment(self, experiment_id: str, change: dict[str, Any]) -> None:
        found = self.get_experiment(experiment_id)
        service.ask("PATCH", f"/api/v1/mlflow/experiments/{found.experiment_id}", change)

    # Runs

    def get_run(self, run_id: str) -> Run:
        """Raises MlflowException (404)."""
        return self._runs.get(run_id)

    def _search_runs(
        self,
        experiment_ids: Sequence[str],
        filter_string: str | None,
        run_view_type: int,
        max_results: int | None,
        order_by: Sequence[str] | None,
        page_token: str | None,
    ) -> tuple[list[Run], str | None]:
        if max_results is not None:
            _check_page(max_results)
        ids = [str(one) for one in experiment_ids]
        for one in ids:
            check_id(one)
        if DEFAULT in ids:
            ids.append(self.get_experiment(DEFAULT).experiment_id)
        return self._runs.search(
            ids, filter_string, run_view_type, max_results, order_by, page_token
        )

    def create_run(
        self,
        experiment_id: str,
        user_id: str | None,
        start_time: int | None,
        tags: Sequence[Any] | None,
        run_name: str | None,
    ) -> Run:
        """A trial of an unmanaged experiment of the user's. It belongs to the user who is logged in
        (``user_id`` has no effect), and begins now.

        Raises MlflowException (403) for an experiment of the cluster's own: its trials are the searcher's.
        """
        found = self._active_experiment(experiment_id)
        number = found.experiment_id
        if number == DEFAULT:
            body = {"name": found.name, "tags": {}}
            number = service.ask("POST", "/api/v1/mlflow/experiments", body)["experimentId"]
        given = {tag.key: str(tag.value) for tag in tags or ()}
        named = given.get(RUN_NAME)
        if run_name and named and run_name != named:
            raise invalid(
                "Both 'run_name' argument and 'mlflow.runName' tag are specified, but with different values "
                f"(run_name='{run_name}', mlflow.runName='{named}')."
            )
        name = run_name or named or _generate_random_name()
        made = service.ask(
            "POST",
            f"/api/v1/mlflow/experiments/{number}/runs",
            {"name": name, "tags": {**given, RUN_NAME: name}},
        )
        return self.get_run(str(made["trialId"]))

    def update_run_info(
        self, run_id: str, run_status: Any, end_time: int | None, run_name: str | None
    ) -> Any:
        """The run's name; its state too, if an MLflow client started it. The state of a trial that the
        cluster runs is the cluster's: it stays as it is.
        """
        trial = self._active(run_id)
        if run_name:
            self._change_run(trial, {"name": run_name})
        if run_status is not None and trial.native:
            self._end(trial, status_of(run_status))
        return self.get_run(run_id).info

    @staticmethod
    def _end(trial: Any, status: str) -> None:
        body = {"state": _STATES[status]}
        service.ask("PATCH", f"/api/v1/mlflow/runs/{trial.id}/state", body)

    def delete_run(self, run_id: str) -> None:
        """Hides it, as ``restore_run`` undoes."""
        self._change_run(self._runs.trial(run_id), {"deleted": True})

    def restore_run(self, run_id: str) -> None:
        self._change_run(self._runs.trial(run_id), {"deleted": False})

    def set_tag(self, run_id: str, tag: Any) -> None:
        key, value = _validate_tag(tag.key, tag.value).key, str(tag.value)
        change: dict[str, Any] = {"tags": {key: value}}
        if key == RUN_NAME:
            change["name"] = value
        self._change_run(self._active(run_id), change)

    def delete_tag(self, run_id: str, key: str) -> None:
        trial = self._active(run_id)
        if key not in self.get_run(run_id).data.tags:
            raise service.no_tag(key, f"run with id {run_id}")
        self._change_run(trial, {"tags": {key: None}})

    def log_param(self, run_id: str, param: Any) -> None:
        param = _validate_param(param.key, param.value)
        self.log_batch(run_id, [], [param], [])

    def log_metric(self, run_id: str, metric: Any) -> None:
        _validate_metric(metric.key, metric.value, metric.timestamp, metric.step)
        self.log_batch(run_id, [metric], [], [])

    def log_batch(
        self, run_id: str, metrics: Sequence[Any], params: Sequence[Any], tags: Sequence[Any]
    ) -> None:
        """Raises MlflowException (400) for a parameter that has another value already."""
        metrics, params, tags = _validate_batch_log_data(metrics, params, tags)
        _validate_batch_log_limits(metrics, params, tags)
        _validate_param_keys_unique(params)
        trial = self._active(run_id)
        service.ask(
            "POST",
            f"/api/v1/mlflow/runs/{trial.id}/batch",
            {
                "metrics": [
                    {
                        "key": one.key,
                        "value": names.json_number(one.value),
                        "timestamp": one.timestamp,
                        "step": one.step or 0,
                        "model_id": one.model_id,
                        "dataset_name": one.dataset_name,
                        "dataset_digest": one.dataset_digest,
                    }
                    for one in metrics
                ],
                "params": [{"key": one.key, "value": one.value} for one in params],
                "tags": [{"key": one.key, "value": str(one.value)} for one in tags],
            },
        )

    def log_inputs(
        self,
        run_id: str,
        datasets: Sequence[Any] | None = None,
        models: Sequence[Any] | None = None,
    ) -> None:
        kept = inputs.to_keep(datasets, models)
        if kept:
            self._change_run(self._active(run_id), {"inputs": kept})

    def _search_datasets(self, experiment_ids: Sequence[str]) -> list[Any]:
        """The data sets that runs have said they used, each once."""
        return self._runs.data_sets([str(one) for one in experiment_ids])

    def log_outputs(self, run_id: str, models: Sequence[Any]) -> None:
        """At which step. A checkpoint is an output of its trial anyway, and of no other's.

        Raises MlflowException (403) for the model of another run.
        """
        trial = self._active(run_id)
        rows = [self._models.row(one.model_id) for one in models]
        for one, row in zip(models, rows, strict=True):
            if row.trial_id != trial.id:
                refuse(
                    f"model {one.model_id} is the output of run {row.trial_id}: log it to that run"
                )
        for one, row in zip(models, rows, strict=True):
            if one.step != row.steps_completed:
                self._say(row, {"step": one.step})

    def record_logged_model(self, run_id: str, mlflow_model: Any) -> None:
        """Clients before MLflow 3 say so in a tag, which nobody reads any more."""
        self._active(run_id)

    def _active(self, run_id: str) -> Any:
        trial = self._runs.trial(run_id)
        if trial.deleted or trial.archived:
            raise invalid(
                f"The run {run_id} must be in the 'active' state. Current state is deleted."
            )
        return trial

    @staticmethod
    def _change_run(trial: Any, change: dict[str, Any]) -> None:
        service.ask("PATCH", f"/api/v1/mlflow/runs/{trial.id}", change)

    # Metrics

    def get_metric_history(
        self,
        run_id: str,
        metric_key: str,
        max_results: int | None = None,
        page_token: str | None = None,
    ) -> PagedList[Any]:
        return PagedList(*self._runs.history(run_id, metric_key, max_results, page_token))

    def get_metric_history_bulk(
        self, run_ids: Sequence[str], metric_key: str, max_results: int
    ) -> list[Any]:
        """Of several runs, ``max_results`` points in all, in the order of the runs' ids."""
        from mlflow.entities.metric import MetricWithRunId

        found: list[Any] = []
        for run_id in sorted(run_ids):
            points, _ = self._runs.history(run_id, metric_key, max(0, max_results - len(found)))
            found += [MetricWithRunId(one, run_id) for one in points]
        return found

    def get_metric_history_bulk_interval(
        self,
        run_ids: Sequence[str],
        metric_key: str,
        max_results: int,
        start_step: int | None,
        end_step: int | None,
    ) -> list[Any]:
        """At most ``max_results`` points of each run, spread evenly over the steps."""
        if (start_step is None) != (end_step is None):
            raise invalid("Both start_step and end_step must be specified, or neither of them.")
        steps = None if start_step is None or end_step is None else (start_step, end_step)
        return [
            point
            for run_id in run_ids
            for point in self._runs.sample(run_id, metric_key, max(1, max_results), steps)
        ]

    def get_metric_history_bulk_interval_from_steps(
        self, run_id: str, metric_key: str, steps: Sequence[int], max_results: int
    ) -> list[Any]:
        from mlflow.entities.metric import MetricWithRunId

        wanted = set(steps)
        points, _ = self._runs.history(run_id, metric_key)
        chosen = sorted(
            (one for one in points if one.step in wanted),
            key=lambda one: (one.step, one.timestamp, one.value),
        )
        return [MetricWithRunId(one, run_id) for one in chosen[:max_results]]

    # Logged models

    def get_logged_model(self, model_id: str, allow_deleted: bool = False) -> Any:
        return self._models.get(model_id, allow_deleted)

    def search_logged_models(
        self,
        experiment_ids: Sequence[str],
        filter_string: str | None = None,
        datasets: Sequence[dict[str, Any]] | None = None,
        max_results: int | None = None,
        order_by: Sequence[dict[str, Any]] | None = None,
        page_token: str | None = None,
    ) -> PagedList[Any]:
        limit = max_results or SEARCH_LOGGED_MODEL_MAX_RESULTS_DEFAULT
        return PagedList(
            *self._models.search(
                experiment_ids, filter_string, datasets, limit, order_by, page_token
            )
        )

    def create_logged_model(
        self,
        experiment_id: str,
        name: str | None = None,
        source_run_id: str | None = None,
        tags: Sequence[Any] | None = None,
        params: Sequence[Any] | None = None,
        model_type: str | None = None,
    ) -> Any:
        """A checkpoint of the run whose files are still to come. Without a run it gets a new one, which ends
        with it: every checkpoint of ours is a trial's.
        """
        name = name or _generate_random_name()
        alone = not source_run_id
        if alone:
            source_run_id = self.create_run(experiment_id, None, None, None, name).info.run_id
        trial = self._active(str(source_run_id))
        uuid = uuids.uuid4()
        said = {
            "name": name,
            "model_type": model_type,
            "created": round(time.time() * 1000),
            "tags": {one.key: one.value for one in tags or ()},
            "params": {one.key: one.value for one in params or ()},
            names.SAID_ALONE: alone,
        }
        _report(trial, uuid, "STATE_ACTIVE", {names.SAID: said})
        return self._models.get(names.model_id_of(uuid))

    def finalize_logged_model(self, model_id: str, status: Any) -> Any:
        """READY: the files that were sent become the checkpoint, in its storage."""
        from determined_registry.mlflow.artifacts import Artifacts

        with spool.completing(self._models.row(model_id).uuid):
            row = self._models.row(model_id)
            if row.state != "ACTIVE":
                Artifacts.of_server().forget(row.uuid)
                return self._models.get(model_id)
            trial = self._runs.trial(str(row.trial_id))
            # What was said of the model stays: a report adds to the metadata.
            metadata = {"steps_completed": row.steps_completed}
            is_ready = LoggedModelStatus(status) == LoggedModelStatus.READY
            if is_ready:
                manifest = Artifacts.of_server().store(row.uuid)
                _report(
                    trial,
                    row.uuid,
                    "STATE_COMPLETED",
                    metadata,
                    resources={path: str(size) for path, size in manifest.resources.items()},
                    checksums=dict(manifest.checksums),
                )
            else:
                _report(trial, row.uuid, "STATE_ERROR", metadata)
            Artifacts.of_server().forget(row.uuid)
            if (row.user_metadata.get(names.SAID) or {}).get(names.SAID_ALONE):
                self._end(trial, "FINISHED" if is_ready else "FAILED")
        return self._models.get(model_id)

    def set_logged_model_tags(self, model_id: str, tags: Sequence[Any]) -> None:
        row = self._models.row(model_id)
        self._say(row, {"tags": {one.key: str(one.value) for one in tags}})

    def delete_logged_model_tag(self, model_id: str, key: str) -> None:
        row = self._models.row(model_id)
        if key not in ((row.user_metadata.get(names.SAID) or {}).get("tags") or {}):
            raise service.missing(f"tag {key!r} of logged model {model_id}")
        self._say(row, {"tags": {key: None}})

    def log_logged_model_params(self, model_id: str, params: Sequence[Any]) -> None:
        self._say(self._models.row(model_id), {"params": {one.key: one.value for one in params}})

    def set_model_versions_tags(self, name: str, version: Any, model_id: str) -> None:
        """The tag of a model that says as which version it is registered."""
        # A number, as MLflow's own store and clients write it.
        super().set_model_versions_tags(name, int(version), model_id)

    def delete_logged_model(self, model_id: str) -> None:
        """Hides it; `det checkpoint delete` removes its files."""
        row = self._models.row(model_id)
        self._say(row, {"deleted": True})

    @staticmethod
    def _say(row: Any, change: dict[str, Any]) -> None:
        service.ask("PATCH", f"/api/v1/mlflow/models/{row.uuid}", change)

    def filter_active_experiment_ids(self, experiment_ids: Sequence[str]) -> list[str]:
        found = []
        for one in experiment_ids:
            try:
                known = self.get_experiment(one)
            except MlflowException:
                continue
            if known.lifecycle_stage == LifecycleStage.ACTIVE:
                found.append(str(one))
        return found


def _check_page(max_results: int) -> None:
    if not 1 <= max_results <= SEARCH_MAX_RESULTS_THRESHOLD:
        raise invalid(
            f"Invalid value {max_results} for parameter 'max_results' supplied. It must be at least 1 and "
            f"at most {SEARCH_MAX_RESULTS_THRESHOLD}"
        )


def _default_name() -> str:
    """Of scripts that name no experiment each user has one: nobody adds runs to another's."""
    user = service.user_of_request.get()
    return f"Default of {user}" if user else "Default"


def _report(
    trial: Any, uuid: uuids.UUID, state: str, metadata: dict[str, Any], **files: Any
) -> None:
    """The checkpoint's record; the service looks whether it may be the trial's."""
    body = {"uuid": str(uuid), "state": state, "metadata": metadata, **files}
    if trial.unmanaged:
        body["taskId"] = trial.task_id
    else:
        body["allocationId"] = f"{trial.task_id}.{trial.run_count}"
    service.ask("POST", "/api/v1/checkpoints", body)
