"""Checkpoints as MLflow's logged models."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from typing import Any
from uuid import UUID

from mlflow.entities import LoggedModel, LoggedModelStatus, Metric
from mlflow.utils.mlflow_tags import MLFLOW_MODEL_VERSIONS, MLFLOW_USER
from mlflow.utils.search_utils import SearchLoggedModelsPaginationToken, SearchLoggedModelsUtils

from determined_registry.mlflow import names
from determined_registry.mlflow.database import Reader
from determined_registry.mlflow.service import invalid, missing

_SELECT = """
    SELECT c.uuid, c.experiment_id, c.trial_id, c.state, c.report_time, c.steps_completed,
           c.metadata AS user_metadata, c.reason, t.hparams, m.params, coalesce(m.native, false) AS native,
           u.username,
           (SELECT jsonb_agg(jsonb_build_object('name', r.name, 'version', v.version)
                ORDER BY r.name, v.version)
            FROM model_versions v JOIN models r ON r.id = v.model_id
            WHERE v.checkpoint_uuid = c.uuid) AS versions,
           (SELECT coalesce(jsonb_agg(jsonb_build_array(x.group_name, x.metrics,
                round(extract(epoch FROM x.end_time) * 1000)) ORDER BY x.id), '[]')
            FROM metrics x WHERE x.trial_id = c.trial_id AND x.group_name = 'validation'
              AND x.steps_completed = c.steps_completed AND NOT x.archived) AS reports
    FROM checkpoints c JOIN trials t ON t.id = c.trial_id JOIN experiments e ON e.id = t.experiment_id
    JOIN users u ON u.id = e.owner_id LEFT JOIN mlflow_runs m ON m.trial_id = t.id
    WHERE c.state <> 'DELETED'"""
_METRICS = """
    SELECT checkpoint_uuid, trial_id, key, moment, step, value, dataset_name, dataset_digest
    FROM mlflow_model_metrics WHERE checkpoint_uuid = ANY(:uuids)
    ORDER BY moment, step, key, trial_id"""
_STATUS = {
    "ACTIVE": LoggedModelStatus.PENDING,
    "ERROR": LoggedModelStatus.FAILED,
}


class LoggedModels:
    """Reads checkpoints of trials."""

    def __init__(self, db: Reader) -> None:
        self._db = db

    def get(self, model_id: str, allow_deleted: bool = False) -> LoggedModel:
        """Raises MlflowException (404)."""
        row = self.row(model_id)
        (found,) = self._entities([row])
        if not allow_deleted and _said(row).get("deleted"):
            raise missing(f"Logged model with ID {model_id!r}")
        return found

    def row(self, model_id: str) -> Any:
        """The checkpoint's row. Raises MlflowException (404)."""
        uuid = names.checkpoint_of(model_id)
        row = (
            None
            if uuid is None
            else self._db.first(f"{_SELECT} AND c.uuid = :uuid", {"uuid": uuid})
        )
        if row is None:
            raise missing(f"Logged model with ID {model_id!r}")
        return row

    def search(
        self,
        experiment_ids: Sequence[str],
        filter_string: str | None,
        datasets: Sequence[dict[str, Any]] | None,
        limit: int,
        order_by: Sequence[dict[str, Any]] | None,
        page_token: str | None,
    ) -> tuple[list[LoggedModel], str | None]:
        """A page of the models that match, and the next page's token."""
        offset = 0
        if page_token:
            token = SearchLoggedModelsPaginationToken.decode(page_token)
            token.validate(list(experiment_ids), filter_string, order_by)
            offset = token.offset
        if datasets and not all(one.get("dataset_name") for one in datasets):
            raise invalid("`dataset_name` in the `datasets` clause must be specified.")
        ids = [one for text in experiment_ids if (one := names.number(text)) is not None]
        rows = self._db.all(f"{_SELECT} AND c.experiment_id = ANY(:ids)", {"ids": ids})
        found = self._entities([row for row in rows if not _said(row).get("deleted")])
        found = SearchLoggedModelsUtils.filter_logged_models(found, filter_string, datasets)
        found = SearchLoggedModelsUtils.sort(found, order_by)
        following = None
        if len(found) > offset + limit:
            following = SearchLoggedModelsPaginationToken(
                list(experiment_ids), filter_string, order_by, offset + limit
            ).encode()
        return found[offset : offset + limit], following

    def _entities(self, rows: Sequence[Any]) -> list[LoggedModel]:
        said: dict[UUID, list[Metric]] = defaultdict(list)
        for one in self._db.all(_METRICS, {"uuids": [row.uuid for row in rows]}):
            said[one.checkpoint_uuid].append(
                Metric(
                    one.key,
                    one.value,
                    one.moment,
                    one.step,
                    model_id=names.model_id_of(one.checkpoint_uuid),
                    dataset_name=one.dataset_name,
                    dataset_digest=one.dataset_digest,
                    run_id=str(one.trial_id),
                )
            )
        return [_entity(row, said[row.uuid]) for row in rows]


def _said(row: Any) -> dict[str, Any]:
    found = (row.user_metadata or {}).get(names.SAID)
    return found if isinstance(found, dict) else {}


def _entity(row: Any, metrics: list[Metric]) -> LoggedModel:
    """``metrics``: what runs have said of it."""
    said = _said(row)
    model_id = names.model_id_of(row.uuid)
    made = names.millis(row.report_time)
    if said:
        params = dict(said.get("params") or {})
        tags = dict(said.get("tags") or {})
    else:
        params = {**dict(names.flat(row.hparams or {})), **(row.params or {})}
        tags = {
            f"metadata.{key}": names.param_text(value) for key, value in row.user_metadata.items()
        }
        tags |= {"determined.checkpoint": str(row.uuid), MLFLOW_USER: row.username}
    # The registry is the source of this fact, not the client that registered a version.
    tags.pop(MLFLOW_MODEL_VERSIONS, None)
    if row.versions:
        tags[MLFLOW_MODEL_VERSIONS] = json.dumps(row.versions)
    # A model logged by a client has the metrics that runs report of it; a trial's checkpoint also has the
    # trial's metrics at its step.
    measured = [
        Metric(
            names.shown_key(group, name, row.native),
            number,
            int(moment),
            row.steps_completed,
            model_id=model_id,
            run_id=str(row.trial_id),
        )
        for group, reported, moment in (() if said else row.reports)
        for name, value in reported.items()
        if (number := names.metric_value(value)) is not None
    ]
    return LoggedModel(
        experiment_id=str(row.experiment_id),
        model_id=model_id,
        name=said.get("name") or f"checkpoint-{row.steps_completed}",
        artifact_location=f"mlflow-artifacts:/checkpoints/{row.uuid}",
        creation_timestamp=said.get("created") or made,
        last_updated_timestamp=made,
        model_type=said.get("model_type") or None,
        source_run_id=str(row.trial_id),
        status=_STATUS.get(row.state, LoggedModelStatus.READY),
        status_message=row.reason,
        tags=tags,
        params=params,
        metrics=[*measured, *metrics],
    )
