"""Experiments as MLflow's entities."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from mlflow.entities import Experiment, ExperimentTag, ViewType
from mlflow.entities.lifecycle_stage import LifecycleStage
from mlflow.utils.search_utils import SearchExperimentsUtils

from determined_registry.mlflow import names
from determined_registry.mlflow.database import Reader
from determined_registry.mlflow.service import invalid, missing

DEFAULT = "0"
"""The experiment id that clients send for a script that names none."""

_DELETED = "(e.archived OR e.state IN ('DELETING', 'DELETE_FAILED'))"
# Of another place than Uncategorized it begins with the names of its workspace and project.
_NAME = """
    coalesce(x.name, CASE WHEN p.id = 1 THEN '' ELSE w.name || '/' || p.name || '/' END
                     || e.name || ' #' || e.id)"""
_TAGS = f"""
    CASE WHEN x.name IS NOT NULL THEN x.tags ELSE
        jsonb_build_object(
            'mlflow.experimentKind', 'custom_model_development', 'determined.state', e.state,
            'determined.owner', u.username)
        || CASE WHEN e.notes || e.description = '' THEN '{{}}'
            ELSE jsonb_build_object('mlflow.note.content', coalesce(nullif(e.notes, ''), e.description)) END
        || coalesce((SELECT jsonb_object_agg('{names.LABEL}' || label, 'true')
                     FROM jsonb_array_elements_text(e.labels) AS label), '{{}}')
        || coalesce(x.tags, '{{}}')
    END"""
_UPDATED = "greatest(coalesce(e.end_time, e.start_time), x.updated_at)"
_SELECT = f"""
    SELECT e.id, {_NAME} AS name, {_DELETED} AS deleted, e.start_time, {_UPDATED} AS updated, {_TAGS} AS tags,
           x.name IS NOT NULL AS native
    FROM experiments e JOIN users u ON u.id = e.owner_id
    JOIN projects p ON p.id = e.project_id JOIN workspaces w ON w.id = p.workspace_id
    LEFT JOIN mlflow_experiments x ON x.experiment_id = e.id"""
_MILLIS = "(extract(epoch FROM {}) * 1000)::bigint"
_ATTRIBUTES = {
    "name": _NAME,
    "experiment_id": "e.id::text",
    "creation_time": _MILLIS.format("e.start_time"),
    "last_update_time": _MILLIS.format(_UPDATED),
}
_SORTED = {
    **_ATTRIBUTES,
    "name": f'{_NAME} COLLATE "C"',
    "experiment_id": "e.id",
}
_SIGNS = {"=": "=", "!=": "<>", ">": ">", ">=": ">=", "<": "<", "<=": "<=", "LIKE": "LIKE"}
_SIGNS |= {"ILIKE": "ILIKE", "IN": "= ANY", "NOT IN": "<> ALL"}


class Experiments:
    """Reads experiments."""

    def __init__(self, db: Reader) -> None:
        self._db = db

    def get(self, experiment_id: str) -> Experiment:
        """Raises MlflowException: 404; 400 for an invalid id."""
        check_id(experiment_id)
        number = names.number(experiment_id)
        row = None
        if number is not None:
            row = self._db.first(f"{_SELECT} WHERE e.id = :id", {"id": number})
        if row is None:
            raise missing(f"Experiment with id={experiment_id}")
        return _entity(row)

    def by_name(self, name: str) -> Experiment | None:
        """The experiment that is shown by this name; None: there is none."""
        row = self._db.first(f"{_SELECT} WHERE x.name = :name", {"name": name})
        numbered = names.numbered(name)
        if row is None and numbered is not None:
            given = {"name": name, "id": numbered[1]}
            row = self._db.first(
                f"{_SELECT} WHERE x.name IS NULL AND e.id = :id AND {_NAME} = :name", given
            )
        return None if row is None else _entity(row)

    def search(
        self,
        view: int,
        limit: int,
        filter_string: str | None,
        order_by: Sequence[str] | None,
        page_token: str | None,
    ) -> tuple[list[Experiment], str | None]:
        """A page of the experiments that match, and the next page's token."""
        given: dict[str, Any] = {}
        wanted = []
        for one in SearchExperimentsUtils.parse_search_filter(filter_string):
            wanted.append(_comparison(one, given))
        stages = set(LifecycleStage.view_type_to_stages(view or ViewType.ACTIVE_ONLY))
        if len(stages) == 1:
            wanted.append(_DELETED if LifecycleStage.DELETED in stages else f"NOT {_DELETED}")
        order = []
        seen = set()
        for text in order_by or ():
            _, key, ascending = SearchExperimentsUtils.parse_order_by_for_search_experiments(text)
            if key not in seen:
                order.append(f"{_SORTED[key]} {'ASC' if ascending else 'DESC'}")
            seen.add(key)
        if not order:
            order.append(f"{_SORTED['creation_time']} DESC")
        order.append("e.id DESC")
        offset = SearchExperimentsUtils.parse_start_offset_from_page_token(page_token)
        rows = self._db.all(
            f"{_SELECT} {'WHERE ' if wanted else ''}{' AND '.join(wanted)} "
            f"ORDER BY {', '.join(order)} LIMIT :limit OFFSET :offset",
            {**given, "limit": limit + 1, "offset": offset},
        )
        token = None
        if len(rows) > limit:
            rows = rows[:limit]
            token = SearchExperimentsUtils.create_page_token(offset + limit)
        return [_entity(row) for row in rows], token


def check_id(experiment_id: str) -> None:
    """Raise MlflowException (400) for an invalid id, as MLflow's own server does."""
    if not re.fullmatch(r"-?\d+", str(experiment_id), re.ASCII):
        raise invalid(
            f"Invalid experiment ID {str(experiment_id)[:80]!r}: an experiment's ID is a number"
        )


def _comparison(one: dict[str, Any], given: dict[str, Any]) -> str:
    kind, key, value = one["type"], one["key"], one.get("value")
    comparator = one["comparator"].upper()
    if kind == "tag":
        given[f"key{len(given)}"] = key
        expression = f"({_TAGS} ->> cast(:key{len(given) - 1} AS text))"
        if comparator in ("IS NULL", "IS NOT NULL"):
            return f"{expression} {comparator}"
    elif key in _ATTRIBUTES:
        expression = _ATTRIBUTES[key]
    else:
        raise invalid(f"experiments cannot be searched by {key!r}")
    if comparator not in _SIGNS:
        raise invalid(f"experiments cannot be searched by {key!r} with {comparator}")
    name = f"value{len(given)}"
    if comparator in ("IN", "NOT IN"):
        given[name] = [str(item) for item in value or ()]
        return f"{expression} {_SIGNS[comparator]} (cast(:{name} AS text[]))"
    if key in ("creation_time", "last_update_time") and kind != "tag":
        given[name] = int(value or 0)
        return f"{expression} {_SIGNS[comparator]} cast(:{name} AS bigint)"
    given[name] = value
    return f"{expression} {_SIGNS[comparator]} cast(:{name} AS text)"


def _entity(row: Any) -> Experiment:
    return Experiment(
        experiment_id=str(row.id),
        name=row.name,
        artifact_location=f"mlflow-artifacts:/experiments/{row.id}",
        lifecycle_stage=LifecycleStage.DELETED if row.deleted else LifecycleStage.ACTIVE,
        tags=[ExperimentTag(key, str(value)) for key, value in row.tags.items()],
        creation_time=names.millis(row.start_time),
        last_update_time=names.millis(row.updated),
    )
