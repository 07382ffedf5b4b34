"""The registry store: our models and versions as MLflow's registered models.

Changes go through the service, whose rules are the registry's own (:mod:`determined_registry.models`): a
version is a COMPLETED checkpoint, and its number is its own for ever.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

from mlflow.entities.model_registry import (
    ModelVersion,
    ModelVersionTag,
    RegisteredModel,
    RegisteredModelAlias,
    RegisteredModelTag,
)
from mlflow.exceptions import MlflowException
from mlflow.prompt.constants import IS_PROMPT_TAG_KEY
from mlflow.prompt.registry_utils import add_prompt_filter_string
from mlflow.protos.databricks_pb2 import RESOURCE_ALREADY_EXISTS
from mlflow.store.entities.paged_list import PagedList
from mlflow.utils.search_utils import SearchModelUtils, SearchModelVersionUtils, SearchUtils
from mlflow.utils.validation import (
    _validate_model_alias_name,
    _validate_model_name,
    _validate_model_version,
    _validate_model_version_tag,
    _validate_registered_model_tag,
)

from determined.expconf.masking import masked_for_others
from determined_registry.mlflow import names
from determined_registry.mlflow.absent import NO_PROMPTS, AbsentFromRegistry
from determined_registry.mlflow.database import Reader
from determined_registry.mlflow.service import ask, invalid, missing, refuse

MOST = 200_000
"""Models or versions on a page."""


def _tags(table: str) -> str:
    """The tags of a row: its own, and its labels and metadata by prefixes."""
    return f"""
        coalesce((SELECT jsonb_object_agg('metadata.' || key, value #>> '{{}}') FROM
        jsonb_each({table}.metadata)
                  WHERE jsonb_typeof(value) NOT IN ('object', 'array', 'null')), '{{}}')
        || coalesce((SELECT jsonb_object_agg('{names.LABEL}' || label, 'true')
                     FROM jsonb_array_elements_text({table}.labels) AS label), '{{}}')
        || {table}.tags"""


_MODELS = f"""
    SELECT m.id, m.name, m.description, m.created_at, m.updated_at, {_tags("m")}
           || CASE WHEN m.archived THEN jsonb_build_object('determined.archived', 'true') ELSE '{{}}' END
           AS tags, coalesce((SELECT jsonb_object_agg(a.alias, a.version) FROM model_aliases a
                     WHERE a.model_id = m.id), '{{}}') AS aliases
    FROM models m"""
_VERSIONS = f"""
    SELECT v.model_id, m.name, v.version, v.created_at, v.updated_at, v.comment, v.checkpoint_uuid, v.source,
           u.username, c.trial_id, c.steps_completed, c.experiment_id, e.name AS experiment,
           e.config -> 'data' AS data, e.model_def_hash, coalesce(r.native, false) AS native, {_tags("v")}
           || CASE WHEN v.name = '' THEN '{{}}' ELSE jsonb_build_object('determined.name', v.name) END AS
           tags, coalesce((SELECT jsonb_agg(a.alias ORDER BY a.alias) FROM model_aliases a
                     WHERE a.model_id = v.model_id AND a.version = v.version), '[]') AS aliases
    FROM model_versions v JOIN models m ON m.id = v.model_id JOIN users u ON u.id = v.owner_id
    JOIN checkpoints c ON c.uuid = v.checkpoint_uuid LEFT JOIN experiments e ON e.id = c.experiment_id
    LEFT JOIN mlflow_runs r ON r.trial_id = c.trial_id"""
_UUID = "[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}"
_SOURCES = (
    re.compile(r"models:/(?P<model>m-[0-9a-f]{32})/?"),
    re.compile(rf"mlflow-artifacts:/+(?:[^/]*/)??checkpoints/(?P<uuid>{_UUID})/?"),
    re.compile(
        rf"(?:mlflow-artifacts:/+trials|runs:)/(?P<run>\d+)/checkpoints/(?P<uuid>{_UUID})/?"
    ),
)


class RegistryStore(AbsentFromRegistry):
    """MLflow's view of models, versions, aliases and tags; see the module's docstring."""

    def __init__(self, store_uri: str, tracking_uri: str | None = None) -> None:
        super().__init__(store_uri, tracking_uri)
        self._db = Reader(store_uri)

    # Models

    def get_registered_model(self, name: str) -> RegisteredModel:
        """Raises MlflowException (404)."""
        _validate_model_name(name)
        row = self._db.first(f"{_MODELS} WHERE lower(m.name) = lower(:name)", {"name": name})
        if row is None:
            raise missing(f"Registered Model with name={name}")
        return self._models([row])[0]

    def search_registered_models(
        self,
        filter_string: str | None = None,
        max_results: int | None = None,
        order_by: Sequence[str] | None = None,
        page_token: str | None = None,
    ) -> PagedList[RegisteredModel]:
        rows = self._db.all(_MODELS)
        wanted = add_prompt_filter_string(filter_string, is_prompt=False)
        # Their versions are read for the page alone.
        found = SearchModelUtils.filter([_model(row, []) for row in rows], wanted)
        # As MLflow's own store in SQL calls it; its helpers know the long name alone.
        order = [
            re.sub(r"^\s*timestamp\b", "last_updated_timestamp", one) for one in order_by or ()
        ]
        page = _page(SearchModelUtils.sort(found, order), max_results, page_token)
        by_name = {row.name: row for row in rows}
        return PagedList(self._models([by_name[one.name] for one in page]), page.token)

    def _models(self, rows: Sequence[Any]) -> list[RegisteredModel]:
        latest = self._db.all(
            f"""
            {_VERSIONS} WHERE v.model_id = ANY(:ids) AND v.version =
                (SELECT max(w.version) FROM model_versions w WHERE w.model_id = v.model_id)
            """,
            {"ids": [row.id for row in rows]},
        )
        newest = {row.model_id: [_version(row)] for row in latest}
        return [_model(row, newest.get(row.id, [])) for row in rows]

    def create_registered_model(
        self,
        name: str,
        tags: Sequence[Any] | None = None,
        description: str | None = None,
        deployment_job_id: str | None = None,
    ) -> RegisteredModel:
        _validate_model_name(name)
        given = {tag.key: tag.value for tag in tags or ()}
        for tag in tags or ():
            _validate_registered_model_tag(tag.key, tag.value)
        if IS_PROMPT_TAG_KEY in given:
            refuse(NO_PROMPTS)
        if self._db.first("SELECT 1 FROM models WHERE lower(name) = lower(:name)", {"name": name}):
            raise MlflowException(
                f"Registered Model (name={name}) already exists.", RESOURCE_ALREADY_EXISTS
            )
        body = {"name": name, "description": description or "", "tags": given}
        ask("POST", "/api/v1/models", body, taken=name)
        return self.get_registered_model(name)

    def update_registered_model(
        self, name: str, description: str | None, deployment_job_id: str | None = None
    ) -> RegisteredModel:
        self.get_registered_model(name)
        if description is not None:
            ask("PATCH", _path(name), {"description": description})
        return self.get_registered_model(name)

    def rename_registered_model(self, name: str, new_name: str) -> RegisteredModel:
        _validate_model_name(new_name)
        self.get_registered_model(name)
        ask("PATCH", _path(name), {"name": new_name}, taken=new_name)
        return self.get_registered_model(new_name)

    def delete_registered_model(self, name: str) -> None:
        """With its versions; their checkpoints stay."""
        self.get_registered_model(name)
        ask("DELETE", _path(name))

    def set_registered_model_tag(self, name: str, tag: Any) -> None:
        _validate_registered_model_tag(tag.key, tag.value)
        self.get_registered_model(name)
        ask("PATCH", f"{_path(name)}/tags", {"tags": {tag.key: str(tag.value)}})

    def delete_registered_model_tag(self, name: str, key: str) -> None:
        _validate_registered_model_tag(key, "")
        self.get_registered_model(name)
        ask("PATCH", f"{_path(name)}/tags", {"tags": {key: None}})

    # Versions

    def create_model_version(
        self,
        name: str,
        source: str,
        run_id: str | None = None,
        tags: Sequence[Any] | None = None,
        run_link: str | None = None,
        description: str | None = None,
        local_model_path: str | None = None,
        model_id: str | None = None,
    ) -> ModelVersion:
        """Registers the checkpoint that ``model_id`` or ``source`` names.

        Raises MlflowException (400) for a source that is not a checkpoint; (403) for what the service
        refuses.
        """
        self.get_registered_model(name)
        for tag in tags or ():
            _validate_model_version_tag(tag.key, tag.value)
        body = {
            "checkpointUuid": str(self._checkpoint(source, model_id)),
            "comment": description or "",
            "tags": {tag.key: str(tag.value) for tag in tags or ()},
        }
        made = ask("POST", f"{_path(name)}/versions", body)
        return self.get_model_version(name, str(made["modelVersion"]["version"]))

    def _checkpoint(self, source: str, model_id: str | None) -> Any:
        if model_id:
            source = f"models:/{model_id}"
        for pattern in _SOURCES:
            found = pattern.fullmatch(source or "")
            if found is None:
                continue
            given = found.groupdict()
            return given["uuid"] if "uuid" in given else names.checkpoint_of(given["model"])
        # A version of a model, as copies of versions name it.
        copied = re.fullmatch(r"models:/([^/@]+)/(\d+)", source or "")
        if copied is not None:
            return self._version_row(copied[1], copied[2]).checkpoint_uuid
        raise invalid(
            f"source {source!r} is not a checkpoint, and only checkpoints are registered here: log the model "
            f"with log_model, or give models:/m-<checkpoint>, or runs:/<trial>/checkpoints/<uuid>"
        )

    def get_model_version(self, name: str, version: Any) -> ModelVersion:
        """Raises MlflowException (404)."""
        return _version(self._version_row(name, version))

    def _version_row(self, name: str, version: Any) -> Any:
        _validate_model_name(name)
        number = _validate_model_version(version)
        row = None
        if int(number) < 2**31:
            row = self._db.first(
                f"{_VERSIONS} WHERE lower(m.name) = lower(:name) AND v.version = :version",
                {"name": name, "version": int(number)},
            )
        if row is None:
            raise missing(f"Model Version (name={name}, version={version})")
        return row

    def get_latest_versions(
        self, name: str, stages: Sequence[str] | None = None
    ) -> list[ModelVersion]:
        """The latest version. Stages do not exist here, so only "None" finds one."""
        if stages and not {one.lower() for one in stages} & {"none"}:
            self.get_registered_model(name)
            return []
        return list(self.get_registered_model(name).latest_versions or ())

    def get_model_version_download_uri(self, name: str, version: Any) -> str:
        return str(self.get_model_version(name, version).source)

    def get_model_version_by_alias(self, name: str, alias: str) -> ModelVersion:
        """Raises MlflowException (404)."""
        _validate_model_alias_name(alias)
        found = self.get_registered_model(name).aliases.get(alias)
        if found is None:
            raise invalid(f"Registered model alias {alias} not found.")
        return self.get_model_version(name, found)

    def search_model_versions(
        self,
        filter_string: str | None = None,
        max_results: int | None = None,
        order_by: Sequence[str] | None = None,
        page_token: str | None = None,
    ) -> PagedList[ModelVersion]:
        found = [_version(row) for row in self._db.all(_VERSIONS)]
        wanted = add_prompt_filter_string(filter_string, is_prompt=False)
        order = order_by or ["last_updated_timestamp DESC", "name ASC", "version_number DESC"]
        try:
            found = SearchModelVersionUtils.filter(found, wanted)
        except ValueError as error:
            raise invalid(
                f"filter: version_number is compared with whole numbers: {error}"
            ) from error
        return _page(SearchModelVersionUtils.sort(found, order), max_results, page_token)

    def update_model_version(
        self, name: str, version: Any, description: str | None
    ) -> ModelVersion:
        self.get_model_version(name, version)
        ask("PATCH", _path(name, version), {"comment": description or ""})
        return self.get_model_version(name, version)

    def transition_model_version_stage(
        self, name: str, version: Any, stage: str, archive_existing_versions: bool
    ) -> ModelVersion:
        """Raises MlflowException (403)."""
        refuse(
            f"versions have no stages here, as in MLflow since 2.9: set the alias instead, "
            f"set_registered_model_alias({name!r}, {stage.lower()!r}, {str(version)!r})"
        )

    def delete_model_version(self, name: str, version: Any) -> None:
        """Its number never returns; its checkpoint stays."""
        self.get_model_version(name, version)
        ask("DELETE", _path(name, version))

    def set_model_version_tag(self, name: str, version: Any, tag: Any) -> None:
        _validate_model_version_tag(tag.key, tag.value)
        self.get_model_version(name, version)
        ask("PATCH", f"{_path(name, version)}/tags", {"tags": {tag.key: str(tag.value)}})

    def delete_model_version_tag(self, name: str, version: Any, key: str) -> None:
        self.get_model_version(name, version)
        ask("PATCH", f"{_path(name, version)}/tags", {"tags": {key: None}})

    # Aliases

    def set_registered_model_alias(self, name: str, alias: str, version: Any) -> None:
        _validate_model_alias_name(alias)
        self.get_model_version(name, version)
        ask("PUT", f"{_path(name)}/aliases/{quote(alias, safe='')}", {"version": int(version)})

    def delete_registered_model_alias(self, name: str, alias: str) -> None:
        """Of an alias that there is not nothing is left to do, as in MLflow."""
        _validate_model_alias_name(alias)
        if alias in self.get_registered_model(name).aliases:
            ask("DELETE", f"{_path(name)}/aliases/{quote(alias, safe='')}")

    def _await_model_version_creation(self, mv: Any, await_creation_for: Any) -> None:
        """Return at once: a version is complete as soon as it exists."""


def _path(name: str, version: Any = None) -> str:
    path = f"/api/v1/models/{quote(name, safe='')}"
    return path if version is None else f"{path}/versions/{int(version)}"


def _page(found: Sequence[Any], most: int | None, page_token: str | None) -> PagedList[Any]:
    if not isinstance(most, int) or not 1 <= most <= MOST:
        raise invalid(f"max_results must be a whole number from 1 to {MOST}, not {most!r}")
    start = SearchUtils.parse_start_offset_from_page_token(page_token)
    end = start + most
    token = SearchUtils.create_page_token(end) if end < len(found) else None
    return PagedList(found[start:end], token)


def _model(row: Any, latest: list[ModelVersion]) -> RegisteredModel:
    return RegisteredModel(
        name=row.name,
        creation_timestamp=names.millis(row.created_at),
        last_updated_timestamp=names.millis(row.updated_at),
        description=row.description,
        latest_versions=latest,
        tags=[RegisteredModelTag(key, str(value)) for key, value in row.tags.items()],
        aliases=[RegisteredModelAlias(alias, str(at)) for alias, at in row.aliases.items()],
    )


def _lineage(row: Any) -> dict[str, str]:
    """The version's origin as tags; empty for a model that an MLflow client logged, whose run has them."""
    if row.native:
        return {}
    found = {
        "checkpoint": row.checkpoint_uuid,
        "steps": row.steps_completed,
        "trial": row.trial_id,
        "experiment": names.experiment_name(row.experiment or "", row.experiment_id)
        if row.experiment_id is not None
        else None,
        "code": row.model_def_hash,
    }
    # Whoever reads tags is not asked whose experiment it is.
    data = masked_for_others({"data": row.data or {}})["data"]
    found |= {f"data.{key}": value for key, value in names.flat(data)}
    return {f"determined.{key}": str(value) for key, value in found.items() if value is not None}


def _version(row: Any) -> ModelVersion:
    return ModelVersion(
        name=row.name,
        # A number, as in MLflow's own store: filters and orders compare it.
        version=row.version,
        creation_timestamp=names.millis(row.created_at) or 0,
        last_updated_timestamp=names.millis(row.updated_at),
        description=row.comment,
        user_id=row.username,
        current_stage="None",
        source=row.source or f"mlflow-artifacts:/checkpoints/{row.checkpoint_uuid}",
        run_id=None if row.trial_id is None else str(row.trial_id),
        tags=[
            ModelVersionTag(key, str(value)) for key, value in {**row.tags, **_lineage(row)}.items()
        ],
        aliases=list(row.aliases),
        model_id=names.model_id_of(row.checkpoint_uuid),
    )
