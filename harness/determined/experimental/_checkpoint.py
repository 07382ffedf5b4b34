"""A checkpoint: its attributes at the service, and its files."""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from determined import errors
from determined.common.api import pages
from determined.common.api.session import Session
from determined.experimental._enums import (
    CheckpointSortBy,
    CheckpointState,
    DownloadMode,
    OrderBy,
)
from determined.experimental._metrics import TrialMetrics, iter_metrics, numbers, parse_time

CHECKPOINTS = "/api/v1/checkpoints"


def _as_json(metadata: dict[str, Any]) -> dict[str, Any]:
    # Imported here: the Core API is more than `det` and most scripts need.
    from determined.core._metadata import as_json

    return as_json(metadata)


@dataclass
class CheckpointTrainingMetadata:
    """The training that wrote a checkpoint, and the validation that belongs to it.

    ``validation_metrics`` is ``{"avgMetrics": {metric: value}, …}``, empty without a validation at
    the same step.
    """

    experiment_config: dict[str, Any]
    experiment_id: int | None
    trial_id: int | None
    hparams: dict[str, Any]
    validation_metrics: dict[str, Any]

    @classmethod
    def _from_json(cls, data: dict[str, Any]) -> CheckpointTrainingMetadata:
        return cls(
            experiment_config=data.get("experimentConfig") or {},
            experiment_id=data.get("experimentId"),
            trial_id=data.get("trialId"),
            hparams=data.get("hparams") or {},
            validation_metrics=numbers(data.get("validationMetrics") or {}),
        )


class Checkpoint:
    """A checkpoint at the service. Attributes are as of the last :meth:`reload`.

    Attributes:
        uuid: its name at the service and in storage.
        task_id, allocation_id, report_time: the task that wrote it, and the time.
        resources: ``{path: bytes}``; directories end in ``/``.
        checksums: ``{path: "sha256:<hex>"}`` of what was written; may be empty.
        storage: the ``checkpoint_storage`` section of its storage; None for the experiment's.
        reason: the reason of the state ERROR.
        metadata: ``steps_completed`` and the values that the training added.
        state: a :class:`CheckpointState`.
        training: a :class:`CheckpointTrainingMetadata`.
        document: the service's JSON, including fields that are not attributes.
    """

    def __init__(self, session: Session, uuid: str) -> None:
        self._session = session
        self.uuid = uuid
        self.task_id: str | None = None
        self.allocation_id: str | None = None
        self.report_time: datetime.datetime | None = None
        self.resources: dict[str, int] | None = None
        self.checksums: dict[str, str] = {}
        self.storage: dict[str, Any] | None = None
        self.reason: str | None = None
        self.metadata: dict[str, Any] | None = None
        self.state: CheckpointState | None = None
        self.training: CheckpointTrainingMetadata | None = None
        self.document: dict[str, Any] = {}

    @classmethod
    def _from_json(cls, data: dict[str, Any], session: Session) -> Checkpoint:
        checkpoint = cls(session, data["uuid"])
        checkpoint._fill(data)
        return checkpoint

    def _fill(self, data: dict[str, Any]) -> None:
        self.document = data
        self.task_id = data.get("taskId")
        self.allocation_id = data.get("allocationId")
        self.report_time = parse_time(data.get("reportTime"))
        # Sizes are 64-bit numbers, which the JSON of the REST API writes as strings.
        sizes = (data.get("resources") or {}).items()
        self.resources = {path: int(size) for path, size in sizes}
        self.checksums = data.get("checksums") or {}
        self.storage = data.get("storage")
        self.reason = data.get("reason")
        self.metadata = numbers(data.get("metadata") or {})
        self.state = CheckpointState(data["state"])
        self.training = CheckpointTrainingMetadata._from_json(data.get("training") or {})

    @property
    def trial_id(self) -> int | None:
        """The trial that wrote the checkpoint; None if another task wrote it."""
        return self.training.trial_id if self.training else None

    def reload(self) -> None:
        """Fetches all attributes again. Raises NotFoundException."""
        self._fill(self._session.get(f"{CHECKPOINTS}/{self.uuid}")["checkpoint"])

    def download(self, path: str | None = None, mode: DownloadMode = DownloadMode.AUTO) -> str:
        """Copies the files to ``path`` (default ``checkpoints/<uuid>``); returns that path.

        The size of every file is verified, and its checksum if that is known. ``metadata.json`` is
        written beside the files. If the directory already has all files, nothing is copied.

        ``DownloadMode.DIRECT`` reads the storage from here, ``MASTER`` asks the service for the files, and
        ``AUTO`` does the former, or the latter where the storage cannot be read from here. A download
        through the service goes on where it was when the service was restarted meanwhile, and where the last
        one to the same path was when that was killed.

        Raises:
            CheckpointStateException: the checkpoint's state says that files are missing.
            CheckpointCorrupted: files in the storage are missing or damaged.
            NoDirectStorageAccess, CheckpointNotFound, StorageError: this machine cannot read the storage
                (``DIRECT``), or not write to ``path``.
            ProxiedDownloadFailed: the service refuses, or does not answer (``MASTER``).
            MultipleDownloadsFailed: neither way works (``AUTO``).
        """
        # Imported here: only downloads need the storages.
        from determined.experimental._download import fetch, fetch_somehow
        from determined.experimental._local_files import METADATA_FILE
        from determined.experimental._proxied import fetch_through_service

        if self.state is None:
            self.reload()
        if self.state not in (CheckpointState.COMPLETED, CheckpointState.PARTIALLY_DELETED):
            raise errors.CheckpointStateException(
                f"checkpoint {self.uuid} cannot be downloaded: it is {self.state}"
            )
        mode = DownloadMode(mode)
        target = Path(path) if path is not None else Path("checkpoints") / self.uuid
        config = self.training.experiment_config if self.training else {}
        storage = self.storage or config.get("checkpoint_storage") or {}
        resources = self.resources or {}
        if mode is DownloadMode.MASTER:
            fetch_through_service(self._session, self.uuid, target)
        elif mode is DownloadMode.DIRECT:
            fetch(self.uuid, storage, resources, self.checksums, target)
        else:
            fetch_somehow(self._session, self.uuid, storage, resources, self.checksums, target)
        self.write_metadata_file(str(target / METADATA_FILE))
        return str(target)

    def write_metadata_file(self, path: str) -> None:
        """Writes ``metadata`` to ``path`` as JSON."""
        text = json.dumps(_as_json(self.metadata or {}), indent=2)
        Path(path).write_text(text + "\n")

    def add_metadata(self, metadata: dict[str, Any]) -> None:
        """Adds top-level keys; an existing key gets the new value."""
        self._change_metadata({"metadata": _as_json(metadata)})

    def remove_metadata(self, keys: list[str]) -> None:
        """Removes top-level keys; a missing key is not an error."""
        self._change_metadata({"remove": list(keys)})

    def _known_metadata(self) -> dict[str, Any]:
        if self.metadata is None:
            self.reload()
        return self.metadata or {}

    def _change_metadata(self, change: dict[str, Any]) -> None:
        # The service merges: whoever adds something else at the same time loses nothing.
        answer = self._session.patch(f"{CHECKPOINTS}/{self.uuid}/metadata", json=change)
        self.metadata = numbers(answer["checkpoint"].get("metadata") or {})

    def get_metrics(self, group: str | None = None) -> Iterable[TrialMetrics]:
        """The reports of ``group`` (default: validation) at the checkpoint's own step."""
        if self.training is None:
            self.reload()
        if self.trial_id is None:
            return
        step = self._known_metadata().get("steps_completed")
        for report in iter_metrics(self._session, [self.trial_id], group or "validation"):
            if report.steps_completed == step:
                yield report

    def delete(self) -> int | None:
        """Starts to delete the checkpoint; from now on no trial can start from it. May be repeated.

        Returns the deletion's id, or None if the checkpoint is deleted already. Once its files are
        deleted, its state is DELETED (after :meth:`reload`).
        """
        return delete(self._session, [self.uuid])

    def remove_files(self, globs: list[str]) -> int | None:
        """Starts to delete the files that match one of ``globs``, relative to the checkpoint (``**``
        crosses directories). Its state becomes PARTIALLY_DELETED, or DELETED if no file is left. Without
        globs nothing is deleted: size and state become those of the files that are in the storage.

        Returns the same as :meth:`delete`.
        """
        return remove_files(self._session, [self.uuid], globs)

    def __repr__(self) -> str:
        return f"Checkpoint(uuid={self.uuid!r}, trial_id={self.trial_id})"


def beginning_with(session: Session, beginning: str, most: int) -> list[str]:
    """The UUIDs that begin so, of checkpoints that the user may see: the first ``most``, sorted.

    Raises BadRequestException for less than four digits, or what cannot be the beginning of a UUID.
    """
    answer = session.get(CHECKPOINTS, params={"uuidBeginning": beginning, "limit": most})
    return list(answer["uuids"])


def delete(session: Session, uuids: Sequence[str]) -> int | None:
    """As :meth:`Checkpoint.delete`, of several in one deletion."""
    answer: dict[str, Any] = session.delete(CHECKPOINTS, json={"checkpointUuids": list(uuids)})
    return answer["deletionId"]


def remove_files(session: Session, uuids: Sequence[str], globs: Sequence[str]) -> int | None:
    """As :meth:`Checkpoint.remove_files`, of several in one deletion."""
    body = {"checkpointUuids": list(uuids), "checkpointGlobs": list(globs)}
    answer: dict[str, Any] = session.post(f"{CHECKPOINTS}/rm", json=body)
    return answer["deletionId"]


def read(
    session: Session,
    path: str,
    sort_by: str | CheckpointSortBy | None,
    order_by: OrderBy | None,
    max_results: int | None,
    states: Sequence[CheckpointState] | None = None,
) -> list[Checkpoint]:
    """A list of checkpoints, sorted by the service.

    Raises ValueError if a metric is given without its order.
    """
    if isinstance(sort_by, str) and order_by is None:
        raise ValueError("sort_by with the name of a metric also needs order_by")
    params = {
        "sortByAttr": sort_by.value if isinstance(sort_by, CheckpointSortBy) else None,
        "sortByMetric": sort_by if isinstance(sort_by, str) else None,
        "orderBy": order_by.value if order_by else None,
        "states": [state.value for state in states] if states else None,
    }
    if sort_by is None:
        params["sortByAttr"] = CheckpointSortBy.SEARCHER_METRIC.value
    found = pages.read(session, path, "checkpoints", params, limit=max_results)
    return [Checkpoint._from_json(data, session) for data in found]


def best_first(
    session: Session,
    path: str,
    sort_by: str | None,
    smaller_is_better: bool | None,
    searcher: dict[str, Any],
) -> Iterator[Checkpoint]:
    """The complete checkpoints of the list, sorted by the metric of ``searcher`` (a configuration's
    section) or by ``sort_by``. Those without the metric come last. Pages are fetched as needed.

    Raises ValueError if only one of ``sort_by`` and ``smaller_is_better`` is given.
    """
    if (sort_by is None) != (smaller_is_better is None):
        raise ValueError("give both of sort_by and smaller_is_better, or neither")
    if smaller_is_better is None:
        smaller_is_better = searcher.get("smaller_is_better", True)
    order = OrderBy.ASC if smaller_is_better else OrderBy.DESC
    params = {
        "states": [CheckpointState.COMPLETED.value],
        "sortByAttr": CheckpointSortBy.SEARCHER_METRIC.value if sort_by is None else None,
        "sortByMetric": sort_by,
        "orderBy": order.value,
    }
    for data in pages.read(session, path, "checkpoints", params, page_size=20):
        yield Checkpoint._from_json(data, session)


def latest(session: Session, path: str) -> Checkpoint | None:
    """The complete checkpoint with the most steps."""
    params = {
        "states": [CheckpointState.COMPLETED.value],
        "sortByAttr": CheckpointSortBy.BATCH_NUMBER.value,
        "orderBy": OrderBy.DESC.value,
    }
    for data in pages.read(session, path, "checkpoints", params, limit=1):
        return Checkpoint._from_json(data, session)
    return None


def none_found(where: str) -> errors.CheckpointNotFound:
    """The error if ``where`` has no checkpoint to choose."""
    return errors.CheckpointNotFound(f"{where} has no completed checkpoint")
