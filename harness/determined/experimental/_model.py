"""Models of the registry, and their versions."""

from __future__ import annotations

import datetime
import json
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from determined.common.api import pages
from determined.common.api.session import Session
from determined.common.nonfinite import numbers
from determined.experimental._checkpoint import Checkpoint
from determined.experimental._enums import DownloadMode, ModelSortBy, OrderBy
from determined.experimental._metrics import TrialMetrics, parse_reports, parse_time

MODELS = "/api/v1/models"
LATEST = -1


def model_path(model: str | int) -> str:
    """The address of a model, by its name or id."""
    return f"{MODELS}/{quote(str(model), safe='')}"


class ModelVersion:
    """A version of a model: a checkpoint that is kept under a number. Attributes are as of the last
    :meth:`reload`.

    Attributes:
        model_name, model_id: its model.
        model_version, model_version_id: its number, from 1 on, and its id among all versions of all models.
        checkpoint: its :class:`Checkpoint`.
        name, comment, notes, metadata, labels: what users noted.
        tags: ``{key: text}``, as MLflow has them.
        aliases: the names that stand for this version now.
        username, creation_time, last_updated_time: who registered it, and when.
        lineage: the experiment, trial and data that it comes from (keys as in the REST API), ``{}`` in lists.
        document: the service's JSON, including fields that are not attributes.
    """

    def __init__(self, session: Session, model_version: int, model_name: str) -> None:
        self._session = session
        self.model_version = model_version
        self.model_name = model_name
        self.model_id: int | None = None
        self.model_version_id: int | None = None
        self.checkpoint: Checkpoint | None = None
        self.name: str | None = None
        self.comment: str | None = None
        self.notes: str | None = None
        self.metadata: dict[str, Any] | None = None
        self.labels: list[str] | None = None
        self.tags: dict[str, str] = {}
        self.aliases: list[str] = []
        self.username: str | None = None
        self.creation_time: datetime.datetime | None = None
        self.last_updated_time: datetime.datetime | None = None
        self.lineage: dict[str, Any] = {}
        self.document: dict[str, Any] = {}

    @classmethod
    def _from_json(cls, data: dict[str, Any], session: Session) -> ModelVersion:
        version = cls(session, data["version"], data["model"]["name"])
        version._fill(data)
        return version

    def _fill(self, data: dict[str, Any]) -> None:
        self.document = data
        self.model_name = data["model"]["name"]
        self.model_id = data["model"]["id"]
        self.model_version_id = data["id"]
        self.checkpoint = Checkpoint._from_json(data["checkpoint"], self._session)
        self.name = data.get("name") or ""
        self.comment = data.get("comment") or ""
        self.notes = data.get("notes") or ""
        self.metadata = numbers(data.get("metadata") or {})
        self.labels = list(data.get("labels") or [])
        self.tags = data.get("tags") or {}
        self.aliases = data.get("aliases") or []
        self.username = data.get("username")
        self.creation_time = parse_time(data.get("creationTime"))
        self.last_updated_time = parse_time(data.get("lastUpdatedTime"))
        self.lineage = data.get("lineage") or {}

    @property
    def _path(self) -> str:
        # The id stays, also when the model is renamed.
        return f"{model_path(self.model_id or self.model_name)}/versions/{self.model_version}"

    def reload(self) -> None:
        """Fetches all attributes again. Raises NotFoundException."""
        self._fill(self._session.get(self._path)["modelVersion"])

    def download(self, path: str | None = None, mode: DownloadMode = DownloadMode.AUTO) -> str:
        """``checkpoint.download(path, mode)``, see :meth:`Checkpoint.download`."""
        if self.checkpoint is None:
            self.reload()
        assert self.checkpoint is not None
        return self.checkpoint.download(path, mode)

    def set_name(self, name: str) -> None:
        """Gives the version a second name."""
        self._patch(name=name)

    def set_comment(self, comment: str) -> None:
        """Says in a line what is new in the version."""
        self._patch(comment=comment)

    def set_notes(self, notes: str) -> None:
        """Replaces the notes."""
        self._patch(notes=notes)

    def set_labels(self, labels: Iterable[str]) -> None:
        """Replaces the labels."""
        self._patch(labels=list(labels))

    def set_metadata(self, metadata: dict[str, Any]) -> None:
        """Replaces the metadata."""
        self._patch(metadata=metadata)

    def _patch(self, **changes: Any) -> None:
        self._fill(self._session.patch(self._path, json=changes)["modelVersion"])

    def set_tags(self, tags: dict[str, str | None]) -> None:
        """Sets these tags and keeps the others; None deletes one."""
        answer = self._session.patch(f"{self._path}/tags", json={"tags": tags})
        self._fill(answer["modelVersion"])

    def delete(self) -> None:
        """Deletes the version, not its checkpoint. Its number is never given again."""
        self._session.delete(self._path)

    def iter_metrics(self, group: str | None = None) -> Iterator[TrialMetrics]:
        """What trials have reported that use this version (they say so with
        ``core_context.experimental.report_task_using_model_version``), of one group or all.

        Its own training's reports are those of ``checkpoint.get_metrics()``.
        """
        params = {"metricGroup": group, "trialSourceInfoType": "TRIAL_SOURCE_INFO_TYPE_INFERENCE"}
        given = {name: value for name, value in params.items() if value is not None}
        yield from parse_reports(self._session.get(f"{self._path}/metrics", params=given))

    get_metrics = iter_metrics

    def __repr__(self) -> str:
        return f"ModelVersion(model_name={self.model_name!r}, model_version={self.model_version})"


@dataclass(frozen=True)
class AliasMove:
    """One move of an alias. ``from_version`` None: it was new; ``to_version`` None: it was deleted.

    ``document`` is the service's JSON.
    """

    alias: str
    from_version: int | None
    to_version: int | None
    username: str
    time: datetime.datetime | None
    document: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)


class Model:
    """A model of the registry: a name under which checkpoints are kept as versions. Attributes are as of the
    last :meth:`reload`.

    Attributes:
        model_id, name: its id, and its name, which is unique whatever its case.
        description, notes, metadata, labels: what users noted.
        tags: ``{key: text}``, as MLflow has them.
        aliases: ``{alias: version}``.
        creation_time, last_updated_time, username: when it was made and changed, and by whom it was made.
        num_versions: how many versions it has.
        archived: whether it changes no more.
        workspace_id: its workspace.
        document: the service's JSON, including fields that are not attributes.
    """

    def __init__(self, session: Session, name: str) -> None:
        self._session = session
        self.name = name
        self.model_id: int | None = None
        self.description: str | None = None
        self.notes: str | None = None
        self.creation_time: datetime.datetime | None = None
        self.last_updated_time: datetime.datetime | None = None
        self.metadata: dict[str, Any] | None = None
        self.labels: list[str] | None = None
        self.tags: dict[str, str] = {}
        self.aliases: dict[str, int] = {}
        self.username: str | None = None
        self.workspace_id: int | None = None
        self.archived: bool | None = None
        self.num_versions: int | None = None
        self.document: dict[str, Any] = {}

    @classmethod
    def _from_json(cls, data: dict[str, Any], session: Session) -> Model:
        model = cls(session, data["name"])
        model._fill(data)
        return model

    def _fill(self, data: dict[str, Any]) -> None:
        self.document = data
        self.name = data["name"]
        self.model_id = data["id"]
        self.description = data.get("description") or ""
        self.notes = data.get("notes") or ""
        self.creation_time = parse_time(data.get("creationTime"))
        self.last_updated_time = parse_time(data.get("lastUpdatedTime"))
        self.metadata = numbers(data.get("metadata") or {})
        self.labels = list(data.get("labels") or [])
        self.tags = data.get("tags") or {}
        self.aliases = data.get("aliases") or {}
        self.username = data.get("username")
        self.workspace_id = data.get("workspaceId")
        self.archived = bool(data.get("archived"))
        self.num_versions = data.get("numVersions")

    @property
    def _path(self) -> str:
        return model_path(self.model_id or self.name)

    def reload(self) -> None:
        """Fetches all attributes again. Raises NotFoundException."""
        self._fill(self._session.get(self._path)["model"])

    # Versions.

    def get_version(self, version: int | str = LATEST) -> ModelVersion | None:
        """A version by its number, or by an alias; -1 is the latest one, None if there is none yet.

        Raises NotFoundException.
        """
        if version == LATEST:
            params = {"limit": 1, "sortBy": "SORT_BY_VERSION", "orderBy": "ORDER_BY_DESC"}
            found = self._session.get(f"{self._path}/versions", params=params)["modelVersions"]
            if not found:
                return None
            version = found[0]["version"]
        where = f"aliases/{quote(version, safe='')}" if isinstance(version, str) else None
        answer = self._session.get(f"{self._path}/{where or f'versions/{version}'}")
        return ModelVersion._from_json(answer["modelVersion"], self._session)

    def list_versions(self, order_by: OrderBy = OrderBy.DESC) -> list[ModelVersion]:
        """All versions by their numbers, the latest first unless ``order_by`` says otherwise."""
        params = {"sortBy": "SORT_BY_VERSION", "orderBy": order_by.value}
        found = pages.read(self._session, f"{self._path}/versions", "modelVersions", params)
        return [ModelVersion._from_json(data, self._session) for data in found]

    get_versions = list_versions

    def delete_version(self, version: int) -> None:
        """As :meth:`ModelVersion.delete`, of the version with this number."""
        self._session.delete(f"{self._path}/versions/{version}")

    def register_version(self, checkpoint_uuid: str) -> ModelVersion:
        """Makes a COMPLETED checkpoint the next version. From then on nobody can delete the checkpoint.

        Raises NotFoundException; ForbiddenException unless model and checkpoint are the caller's own;
        APIException (409) when the checkpoint is not whole.
        """
        # The id lets the service recognise a request that is sent again after a lost answer.
        body = {"checkpointUuid": checkpoint_uuid, "requestId": str(uuid.uuid4())}
        answer = self._session.post(f"{self._path}/versions", json=body)
        return ModelVersion._from_json(answer["modelVersion"], self._session)

    # Aliases.

    def set_alias(self, alias: str, version: int) -> int | None:
        """The alias (such as "champion") stands for ``version`` from now on.

        Returns the version that it stood for, None if it is new. Raises NotFoundException,
        BadRequestException.
        """
        answer = self._session.put(self._alias(alias), json={"version": version})
        self.aliases = {**self.aliases, alias: version}
        before: int | None = answer["fromVersion"]
        return before

    def delete_alias(self, alias: str) -> int | None:
        """Returns the version that it stood for; None when that answer was lost on its way. Raises
        NotFoundException.
        """
        before: int | None = self._session.delete(self._alias(alias)).get("fromVersion")
        self.aliases = {name: number for name, number in self.aliases.items() if name != alias}
        return before

    def _alias(self, alias: str) -> str:
        return f"{self._path}/aliases/{quote(alias, safe='')}"

    def alias_history(self, alias: str | None = None) -> list[AliasMove]:
        """The moves of all aliases, or of one, oldest first."""
        found = pages.read(self._session, f"{self._path}/alias-history", "moves", {"alias": alias})
        return [
            AliasMove(
                alias=move["alias"],
                from_version=move["fromVersion"],
                to_version=move["toVersion"],
                username=move["username"],
                time=parse_time(move["time"]),
                document=move,
            )
            for move in found
        ]

    # What users note.

    def report_live_metric(
        self, metric: str, *values: float, version: int | None = None
    ) -> int | None:
        """Says how the model does where it is used: the events ``live_metric`` of its retraining go by it.

        Args:
            values: one or more, the oldest first.
            version: that is used; None: the champion.

        Returns the version that they were noted of.
        """
        body = {"metric": metric, "values": list(values), "version": version}
        answer = self._session.post(f"{self._path}/retraining/live-metrics", json=body)
        noted: int | None = answer["version"]
        return noted

    def add_metadata(self, metadata: dict[str, Any]) -> None:
        """Adds top-level keys; an existing key gets the new value."""
        self._change_metadata({"metadata": metadata})

    def remove_metadata(self, keys: list[str]) -> None:
        """Removes top-level keys; a missing key is not an error."""
        given: Any = keys
        if isinstance(given, str) or not all(isinstance(key, str) for key in given):
            raise ValueError(f"remove_metadata() takes a list of keys, not {keys!r}")
        self._change_metadata({"remove": list(keys)})

    def _change_metadata(self, change: dict[str, Any]) -> None:
        # The service merges: whoever adds something else at the same time loses nothing.
        self._fill(self._session.patch(f"{self._path}/metadata", json=change)["model"])

    def set_labels(self, labels: Iterable[str]) -> None:
        """Replaces the labels."""
        if isinstance(labels, str):
            raise ValueError(f"set_labels() takes a list of labels, not {labels!r}")
        self._patch(labels=list(labels))

    def set_description(self, description: str) -> None:
        """Replaces the description."""
        self._patch(description=description)

    def set_notes(self, notes: str) -> None:
        """Replaces the notes."""
        self._patch(notes=notes)

    def set_name(self, name: str) -> None:
        """Renames the model. Raises APIException (409) when the name is taken."""
        self._patch(name=name)

    def set_tags(self, tags: dict[str, str | None]) -> None:
        """Sets these tags and keeps the others; None deletes one."""
        self._fill(self._session.patch(f"{self._path}/tags", json={"tags": tags})["model"])

    def _patch(self, **changes: Any) -> None:
        self._fill(self._session.patch(self._path, json=changes)["model"])

    def archive(self) -> None:
        """From now on it takes no versions and changes no more."""
        self._session.post(f"{self._path}/archive")
        self.archived = True

    def unarchive(self) -> None:
        """Lets an archived model change again."""
        self._session.post(f"{self._path}/unarchive")
        self.archived = False

    def move_to_workspace(self, workspace_name: str) -> None:
        """Moves it to the workspace of that name. Raises NotFoundException with the nearest name."""
        self._patch(workspaceName=workspace_name)

    def delete(self) -> None:
        """Deletes the model, its versions and aliases, not the checkpoints."""
        self._session.delete(self._path)

    def __repr__(self) -> str:
        metadata = json.dumps(self.metadata, default=str)
        return f"Model(id={self.model_id}, name={self.name!r}, metadata={metadata})"


class ModelVerbs:
    """The methods of :class:`~determined.experimental.Determined` for the model registry."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def create_model(
        self,
        name: str,
        description: str | None = "",
        metadata: dict[str, Any] | None = None,
        labels: list[str] | None = None,
        workspace_name: str | None = None,
    ) -> Model:
        """Adds a model to the registry. Names are unique, whatever their case.

        Raises BadRequestException; APIException (409) when the name is taken or the workspace is archived;
        NotFoundException for an unknown workspace.
        """
        given = {
            "description": description,
            "metadata": metadata,
            "labels": labels,
            "workspaceName": workspace_name,
        }
        body = {key: value for key, value in given.items() if value is not None}
        # The id lets the service recognise a request that is sent again after a lost answer.
        body |= {"name": name, "requestId": str(uuid.uuid4())}
        return Model._from_json(self._session.post(MODELS, json=body)["model"], self._session)

    def get_model(self, identifier: str | int) -> Model:
        """A model by its name, whatever the case, or by its id. Raises NotFoundException."""
        found = self._session.get(model_path(identifier))["model"]
        return Model._from_json(found, self._session)

    def get_model_by_id(self, model_id: int) -> Model:
        """Raises NotFoundException."""
        return self.get_model(model_id)

    def list_models(
        self,
        sort_by: ModelSortBy = ModelSortBy.NAME,
        order_by: OrderBy = OrderBy.ASCENDING,
        name: str | None = None,
        description: str | None = None,
        model_id: int | None = None,
        workspace_names: list[str] | None = None,
        workspace_ids: list[int] | None = None,
    ) -> list[Model]:
        """The models that match all arguments; ``name`` and ``description`` match a part."""
        params = {
            "sortBy": sort_by.value,
            "orderBy": order_by.value,
            "name": name or None,
            "description": description or None,
            "id": model_id,
            "workspaceNames": workspace_names,
            "workspaceIds": workspace_ids,
        }
        found = pages.read(self._session, MODELS, "models", params)
        return [Model._from_json(data, self._session) for data in found]

    get_models = list_models

    def get_model_labels(self) -> list[str]:
        """The labels of all models that are not archived, the most used ones first."""
        found: list[str] = self._session.get("/api/v1/model/labels")["labels"]
        return found
