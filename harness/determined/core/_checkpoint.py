"""Saving and loading checkpoints."""

from __future__ import annotations

import contextlib
import datetime
import enum
import json
import logging
import os
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from determined import errors
from determined._info import ClusterInfo
from determined.core._connection import Connection
from determined.core._distributed import DistributedContext
from determined.core._metrics import Unsupported, plain
from determined.core._reporter import Reporter
from determined.storage import Manifest, StorageManager

logger = logging.getLogger("determined.core")

METADATA_FILE = "metadata.json"


class DownloadMode(enum.Enum):
    """LocalWorkersShareDownload: one download per machine, all its workers see the same directory.
    NoSharedDownload: each worker downloads for itself.
    """

    LocalWorkersShareDownload = "LOCAL_WORKERS_SHARE_DOWNLOAD"
    NoSharedDownload = "NO_SHARED_DOWNLOAD"


class CheckpointContext:
    """Checkpoints: directories of files with metadata, immutable once stored.

    The service is told of a checkpoint last, when all its files are safe in the storage; metrics
    reported before are stored by then. On the cluster, ``metadata`` must contain the integer
    ``steps_completed``. All methods raise errors.StorageError with path and reason when the storage
    refuses, errors.CheckpointNotFound, errors.CheckpointCorrupted.
    """

    def __init__(
        self,
        dist: DistributedContext,
        storage: StorageManager,
        connection: Connection,
        reporter: Reporter,
        info: ClusterInfo,
        after_store: Callable[[], None],
        storage_section: dict[str, Any] | None = None,
    ) -> None:
        self._dist = dist
        self._storage = storage
        self._connection = connection
        self._reporter = reporter
        self._info = info
        # TensorBoard files travel with checkpoints.
        self._after_store = after_store
        # What the service must know to find the files again; None: the experiment's storage.
        self._storage_section = storage_section

    def upload(
        self,
        ckpt_dir: str | os.PathLike[str] | None,
        metadata: dict[str, Any] | None = None,
        *,
        shard: bool = False,
        selector: Callable[[str], bool] | None = None,
    ) -> str:
        """Store a copy of ``ckpt_dir``; the checkpoint's uuid.

        ``selector`` gets relative paths (directories end in "/") and says which to store. With
        ``shard`` every worker calls and gives its part of one checkpoint, or None for no files.
        """
        if ckpt_dir is None and not shard:
            raise ValueError("upload(None) is for shard=True only: there are no files to store")
        self._check_caller("upload", shard)
        metadata = self._plain_metadata(metadata)
        content = json.dumps(metadata, indent=2).encode()
        storage_id = str(uuid.uuid4())
        extra = {METADATA_FILE: content}
        if ckpt_dir is None:
            with self._storage.store(storage_id) as staging:
                (staging.path / METADATA_FILE).write_bytes(content)
            assert staging.manifest is not None
            manifest = staging.manifest
        else:
            manifest = self._storage.upload(Path(ckpt_dir), storage_id, selector, extra)
        self._report_checkpoint(storage_id, manifest, metadata)
        return storage_id

    @contextlib.contextmanager
    def store_path(
        self, metadata: dict[str, Any] | None = None, *, shard: bool = False
    ) -> Iterator[tuple[Path, str]]:
        """``with …store_path({"steps_completed": n}) as (path, uuid):`` write the files to ``path``.

        The checkpoint is stored when the block ends; an exception in the block leaves none.
        ``metadata`` may be completed within the block.
        """
        self._check_caller("store_path", shard)
        self._plain_metadata(metadata)
        storage_id = str(uuid.uuid4())
        with self._storage.store(storage_id) as staging:
            yield staging.path, storage_id
            final = self._plain_metadata(metadata)
            (staging.path / METADATA_FILE).write_text(json.dumps(final, indent=2))
        assert staging.manifest is not None
        self._report_checkpoint(storage_id, staging.manifest, final)

    def download(
        self,
        storage_id: str,
        ckpt_dir: str | os.PathLike[str],
        download_mode: DownloadMode = DownloadMode.LocalWorkersShareDownload,
        *,
        selector: Callable[[str], bool] | None = None,
    ) -> None:
        """Copy a checkpoint's files into ``ckpt_dir``; sizes and checksums are verified."""

        def download() -> None:
            self._storage.download(str(storage_id), Path(ckpt_dir), selector)

        if self._shares(download_mode):
            with self._first_worker_of_machine():
                if self._dist.local_rank == 0:
                    download()
        else:
            download()

    @contextlib.contextmanager
    def restore_path(
        self,
        storage_id: str,
        download_mode: DownloadMode = DownloadMode.LocalWorkersShareDownload,
        *,
        selector: Callable[[str], bool] | None = None,
    ) -> Iterator[Path]:
        """A directory with the checkpoint's files, to be read within the block.

        Where the storage is a file system it is the checkpoint itself, whole whatever ``selector``
        says, with sizes verified: do not write to it.
        """
        if not self._shares(download_mode):
            with self._storage.restore_path(str(storage_id)) as path:
                yield path
            return
        with contextlib.ExitStack() as exits:
            local: Path | None = None
            with self._first_worker_of_machine():
                if self._dist.local_rank == 0:
                    local = exits.enter_context(self._storage.restore_path(str(storage_id)))
            yield Path(self._dist.broadcast_local(local))
            # The files stay until all have read them. Who ends in an exception is not waited for.
            self._dist.allgather_local(None)

    def _shares(self, download_mode: DownloadMode) -> bool:
        mode = DownloadMode(download_mode)
        return mode == DownloadMode.LocalWorkersShareDownload and self._dist.local_size > 1

    @contextlib.contextmanager
    def _first_worker_of_machine(self) -> Iterator[None]:
        """What its first worker raises in the block, all workers of the machine raise."""
        error: Exception | None = None
        try:
            yield
        except Exception as raised:
            if self._dist.local_rank:
                raise
            error = raised
        theirs = self._dist.broadcast_local(None if error is None else (type(error), str(error)))
        if error is not None:
            raise error
        if theirs is not None:
            kind, message = theirs
            if issubclass(kind, errors.StorageError):
                raise kind(message)
            raise errors.WorkerError(
                f"the first worker of this machine: {kind.__name__}: {message}"
            )

    def get_metadata(self, storage_id: str) -> dict[str, Any]:
        """The metadata given when the checkpoint was stored, with later changes by users."""
        from determined.common.api.errors import NotFoundException

        try:
            answer = self._connection.get(f"/api/v1/checkpoints/{storage_id}")
        except NotFoundException as error:
            raise errors.CheckpointNotFound(str(error)) from None
        metadata: dict[str, Any] = answer["checkpoint"].get("metadata") or {}
        return metadata

    def delete(self, storage_id: str) -> None:
        """Remove a checkpoint's files, then mark it deleted. May be repeated."""
        self._storage.delete(str(storage_id))
        self._report_deleted(str(storage_id))

    def _check_caller(self, method: str, shard: bool) -> None:
        if shard and self._dist.size > 1:
            raise NotImplementedError(
                f"{method}(shard=True) by {self._dist.size} workers is not in this release: gather what "
                "belongs in the checkpoint, and let the chief store it without shard=True"
            )
        if self._dist.rank != 0 and not shard:
            raise RuntimeError(f"only the chief may call {method}() without shard=True")

    def _plain_metadata(self, metadata: dict[str, Any] | None) -> dict[str, Any]:
        """A copy as JSON. Raises ValueError and TypeError for what cannot be stored."""
        try:
            copied: dict[str, Any] = plain(metadata or {})
        except Unsupported as error:
            raise TypeError(f"checkpoint metadata must be JSON: {error}") from None
        self._check_metadata(copied)
        return copied

    def _check_metadata(self, metadata: dict[str, Any]) -> None:
        steps = metadata.get("steps_completed")
        if not isinstance(steps, int) or isinstance(steps, bool):
            raise ValueError(
                "checkpoint metadata must contain the integer steps_completed, e.g. "
                f"metadata={{'steps_completed': batches_trained}}; found {steps!r}"
            )

    def _report_checkpoint(
        self, storage_id: str, manifest: Manifest, metadata: dict[str, Any]
    ) -> None:
        from determined.common.api.errors import APIException

        self._reporter.flush()
        self._after_store()
        body = {
            "uuid": storage_id,
            "taskId": self._info.task_id,
            "allocationId": self._info.allocation_id,
            "reportTime": datetime.datetime.now(datetime.UTC).isoformat(),
            # 64-bit numbers are strings in Determined's JSON.
            "resources": {path: str(size) for path, size in manifest.resources.items()},
            "checksums": dict(manifest.checksums),
            "metadata": metadata,
            "state": "STATE_COMPLETED",
        }
        if self._storage_section is not None:
            body["storage"] = self._storage_section
        try:
            self._connection.post("/api/v1/checkpoints", json=body)
        except (errors.AllocationEnded, APIException) as error:
            # Refused for certain: nobody will ever know of these files. Without an answer, the
            # service may have taken it.
            if isinstance(error, errors.AllocationEnded) or error.status_code is not None:
                self._storage.delete(storage_id)
                self._storage.reported(storage_id)
            raise
        with contextlib.suppress(errors.StorageError):  # it is stored, and known
            self._storage.reported(storage_id)
        logger.info("checkpoint %s stored", storage_id)

    def _report_deleted(self, storage_id: str) -> None:
        body = {"checkpoints": [{"uuid": storage_id, "resources": {"resources": {}}}]}
        self._connection.patch("/api/v1/checkpoints", json=body)


class DummyCheckpointContext(CheckpointContext):
    """Off-cluster: checkpoints in local storage, known to nobody else."""

    def __init__(self, dist: DistributedContext, storage: StorageManager) -> None:
        self._dist = dist
        self._storage = storage

    def get_metadata(self, storage_id: str) -> dict[str, Any]:
        with self._storage.restore_path(str(storage_id)) as path:
            try:
                metadata: dict[str, Any] = json.loads((path / METADATA_FILE).read_bytes())
            except FileNotFoundError:
                return {}
        return metadata

    def _check_metadata(self, metadata: dict[str, Any]) -> None:
        """Anything goes: there is no service to show it."""

    def _report_checkpoint(
        self, storage_id: str, manifest: Manifest, metadata: dict[str, Any]
    ) -> None:
        logger.info("checkpoint %s stored", storage_id)

    def _report_deleted(self, storage_id: str) -> None:
        logger.info("checkpoint %s deleted", storage_id)
