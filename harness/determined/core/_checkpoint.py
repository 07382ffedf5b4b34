"""Saving and loading checkpoints."""

from __future__ import annotations

import contextlib
import datetime
import enum
import json
import logging
import os
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from determined import errors
from determined._info import ClusterInfo
from determined.core._background import Background
from determined.core._connection import Connection
from determined.core._distributed import DistributedContext
from determined.core._everybody import everybody
from determined.core._metadata import METADATA_FILE, as_json, decoded, encoded
from determined.core._reporter import Reporter
from determined.core._sharded_store import ShardedStore
from determined.core._train import check_steps
from determined.storage import Manifest, StorageManager, files

if TYPE_CHECKING:
    from determined.core._states import States

logger = logging.getLogger("determined.core")

LOCAL = "this machine's worker"


class DownloadMode(enum.Enum):
    """LocalWorkersShareDownload: one download per machine; all workers of the machine see the same
    directory. NoSharedDownload: each worker downloads for itself.
    """

    LocalWorkersShareDownload = "LOCAL_WORKERS_SHARE_DOWNLOAD"
    NoSharedDownload = "NO_SHARED_DOWNLOAD"


class CheckpointContext:
    """Checkpoints: directories of files with metadata, immutable once stored.

    A checkpoint is reported to the service last, when all its files are safe in the storage and all metrics
    reported before are stored. On the cluster, ``metadata`` must contain the integer ``steps_completed``.
    All methods raise errors.StorageError with path and reason when the storage refuses,
    errors.CheckpointNotFound, errors.CheckpointCorrupted.

    With ``shard=True`` every worker calls the method and gives its part of one checkpoint. The same file
    from several workers is stored once. Files of the same path with other contents, and metadata of the
    same key with other values, raise errors.CheckpointConflict on every worker, and nothing is stored. If
    one worker fails in another way, every worker raises too.

    With ``wait=False``, and by ``save_state``, the checkpoint is stored in the background. The next call of
    any method here, or the context's ``close()``, waits for it and raises its errors.
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
        self._begin_background()

    def _begin_background(self) -> None:
        self._background = Background()
        # Made with the first state to store, with torch.
        self._states: States | None = None

    def upload(
        self,
        ckpt_dir: str | os.PathLike[str] | None,
        metadata: dict[str, Any] | None = None,
        *,
        shard: bool = False,
        selector: Callable[[str], bool] | None = None,
        wait: bool = True,
    ) -> str:
        """Store a copy of ``ckpt_dir``. Returns the checkpoint's uuid.

        ``selector`` gets relative paths (directories end in "/") and returns whether to store them. With
        ``shard`` ``ckpt_dir`` may be None: no files from this worker. Without ``wait`` the files are only
        copied to a local directory before this returns (the copy shares their blocks where the file system
        can).
        """
        if ckpt_dir is None and not shard:
            raise ValueError(
                "upload(None) has no files to store and needs shard=True; give a directory"
            )
        self._check_caller("upload", shard, wait)
        src = None if ckpt_dir is None else Path(ckpt_dir)
        if shard:
            return self._shards().upload(src, selector, metadata)
        assert src is not None
        self.wait()
        metadata = self._plain_metadata(metadata)
        storage_id = str(uuid.uuid4())
        if wait:
            self._store(storage_id, src, metadata, selector)
            return storage_id
        with contextlib.ExitStack() as exits:
            snapshot = exits.enter_context(files.scratch())
            with files.explained("copy to", snapshot):
                files.copy_tree(src, files.selected(files.list_files(src), selector), snapshot)
            self._store_in_background(storage_id, snapshot, metadata, exits)
        return storage_id

    @contextlib.contextmanager
    def store_path(
        self, metadata: dict[str, Any] | None = None, *, shard: bool = False, wait: bool = True
    ) -> Iterator[tuple[Path, str]]:
        """``with …store_path({"steps_completed": n}) as (path, uuid):`` write the files to ``path``.

        The checkpoint is stored when the block ends; an exception in the block leaves none. ``metadata`` may
        be completed within the block. With ``shard`` every worker has a different ``path``.
        """
        self._check_caller("store_path", shard, wait)
        if shard:
            with self._shards().store_path(metadata) as given:
                yield given
            return
        self.wait()
        self._plain_metadata(metadata)
        storage_id = str(uuid.uuid4())
        if wait:
            with self._storing(storage_id, metadata) as path:
                yield path, storage_id
            return
        with contextlib.ExitStack() as exits:
            path = exits.enter_context(files.scratch())
            with files.written_below(path):
                yield path, storage_id
            self._store_in_background(storage_id, path, self._plain_metadata(metadata), exits)

    def save_state(
        self,
        state: Mapping[str, Any],
        metadata: dict[str, Any] | None = None,
        *,
        shard: bool = False,
        busy: Literal["wait", "skip"] = "wait",
    ) -> str | None:
        """Store ``state`` as it is now, while the training goes on and changes it. Returns the uuid.

        The training stands still for a copy of the state in memory; a thread stores that copy, as
        :meth:`store_path` would with ``torch.save(state, path / "state.pt")``. It takes one copy's memory,
        which is kept for the next call. If more than 0.8 of the available memory were needed, this returns
        only when the checkpoint is stored, with a warning.

        With ``shard`` every worker gives its part, as to ``torch.distributed.checkpoint.save``, which writes
        the files; load them with ``torch.distributed.checkpoint.load(state, checkpoint_id=path)``. This needs
        ``torch.distributed`` in trials of several processes.

        ``busy``: whether to wait, or to store nothing and return None, when the last checkpoint of the
        background is not stored yet. The error of that one, if any, is raised here.

        Raises ValueError, TypeError and what pickling the state raises, e.g. for a lambda.
        """
        from determined.core import _states

        self._check_caller("save_state", shard, wait=True)
        if busy not in ("wait", "skip"):
            raise ValueError(f'save_state(busy=…) is "wait" or "skip", found {busy!r}')
        if shard:
            skips = self._dist.broadcast(busy == "skip" and self.is_busy())
        else:
            skips = busy == "skip" and self.is_busy()
        if skips:
            return None
        if not shard:
            return self._save_state(
                state, metadata, lambda path, copied: _states.save(copied, path / _states.FILE)
            )
        return self._of_torch().store_shards(
            dict(state),
            metadata,
            self._shards,
            self.wait,
            self._check_metadata,
            self._background.start,
        )

    def _save_state(
        self,
        state: Any,
        metadata: dict[str, Any] | None,
        write: Callable[[Path, Any], object],
    ) -> str:
        """Store what ``write(path, state)`` writes of the state as it is now. It is called in the background
        with a copy; if the memory does not suffice for one, at once with the state itself.
        """
        self.wait()
        given = self._plain_metadata(metadata)
        storage_id = str(uuid.uuid4())
        copied = self._of_torch().copy(state)

        def work(state: Callable[[], Any]) -> None:
            with self._storing(storage_id, given) as path:
                write(path, state())

        if copied is None:
            work(lambda: state)
        else:
            self._background.start(f"storing checkpoint {storage_id}", lambda: work(copied.state))
        return storage_id

    def _of_torch(self) -> States:
        if self._states is None:
            from determined.core._states import States

            self._states = States(self._dist)
        return self._states

    def _close(self) -> None:
        """Give memory back; nothing is being stored any more."""
        if self._states is not None:
            self._states.close()

    def is_busy(self) -> bool:
        """True while a checkpoint is being stored in the background."""
        return self._background.is_busy()

    def wait(self) -> None:
        """Wait until the checkpoint of the background, if any, is stored and reported. Raises its errors."""
        self._background.wait()

    @contextlib.contextmanager
    def _storing(self, storage_id: str, metadata: dict[str, Any] | None) -> Iterator[Path]:
        """The files that the block writes become the checkpoint, which is reported."""
        with self._storage.store(storage_id) as staging:
            yield staging.path
            final = self._plain_metadata(metadata)
            file = staging.path / METADATA_FILE
            file.unlink(missing_ok=True)  # a link that the block made may lead to another file
            file.write_bytes(encoded(final))
        assert staging.manifest is not None
        self._report_checkpoint(storage_id, staging.manifest, final)

    def _store(
        self,
        storage_id: str,
        src: Path,
        metadata: dict[str, Any],
        selector: Callable[[str], bool] | None = None,
    ) -> None:
        extra = {METADATA_FILE: encoded(metadata)}
        manifest = self._storage.upload(src, storage_id, selector, extra)
        self._report_checkpoint(storage_id, manifest, metadata)

    def _store_in_background(
        self, storage_id: str, src: Path, metadata: dict[str, Any], exits: contextlib.ExitStack
    ) -> None:
        """``src`` lasts until ``exits`` is closed; the background thread closes it."""
        until_stored = exits.pop_all()

        def work() -> None:
            with until_stored:
                self._store(storage_id, src, metadata)

        self._background.start(f"storing checkpoint {storage_id}", work)

    def _shards(self, twin: DistributedContext | None = None) -> ShardedStore:
        """``twin``: for the calls of the background."""
        return ShardedStore(
            twin or self._dist,
            self._storage,
            self.wait if twin is None else lambda: None,
            self._check_metadata,
            self._report_checkpoint,
        )

    def download(
        self,
        storage_id: str,
        ckpt_dir: str | os.PathLike[str],
        download_mode: DownloadMode = DownloadMode.LocalWorkersShareDownload,
        *,
        selector: Callable[[str], bool] | None = None,
    ) -> None:
        """Copy a checkpoint's files into ``ckpt_dir``; sizes and checksums are verified.

        A download that workers share contains each file that at least one of their selectors accepts.
        """
        target = Path(ckpt_dir)
        if not self._shares(download_mode):
            self.wait()
            self._storage.download(str(storage_id), target, selector)
            return
        wanted = self._shared_selector(str(storage_id), selector)

        def download() -> None:
            if self._dist.local_rank == 0:
                self._storage.download(str(storage_id), target, wanted)

        everybody(self._dist.allgather_local, download, LOCAL)

    @contextlib.contextmanager
    def restore_path(
        self,
        storage_id: str,
        download_mode: DownloadMode = DownloadMode.LocalWorkersShareDownload,
        *,
        selector: Callable[[str], bool] | None = None,
    ) -> Iterator[Path]:
        """A directory with the checkpoint's files, to be read within the block.

        If the storage is a file system, the directory is the checkpoint itself, complete with any
        ``selector``, with sizes verified: do not write to it. Otherwise it is a download.
        """
        if not self._shares(download_mode):
            self.wait()
            with self._storage.restore_path(str(storage_id), selector) as path:
                yield path
            return
        wanted = self._shared_selector(str(storage_id), selector)
        with contextlib.ExitStack() as exits:

            def restore() -> Path | None:
                if self._dist.local_rank:
                    return None
                return exits.enter_context(self._storage.restore_path(str(storage_id), wanted))

            local = everybody(self._dist.allgather_local, restore, LOCAL)[0]
            assert local is not None
            yield local
            # The files stay until all have read them. Who ends in an exception is not waited for.
            self._dist.allgather_local(None)

    def _shares(self, download_mode: DownloadMode) -> bool:
        mode = DownloadMode(download_mode)
        return mode == DownloadMode.LocalWorkersShareDownload and self._dist.local_size > 1

    def _shared_selector(
        self, storage_id: str, selector: Callable[[str], bool] | None
    ) -> Callable[[str], bool] | None:
        """A selector that accepts each path that some worker of this machine wants."""

        def takes_all() -> bool:
            self.wait()
            return selector is None

        if any(everybody(self._dist.allgather_local, takes_all, LOCAL)):
            return None
        assert selector is not None

        def listed() -> list[str]:
            first = self._dist.local_rank == 0
            return list(self._storage.manifest(storage_id).resources) if first else []

        paths = everybody(self._dist.allgather_local, listed, LOCAL)[0]
        chosen = everybody(
            self._dist.allgather_local, lambda: [path for path in paths if selector(path)], LOCAL
        )
        return {path for some in chosen for path in some}.__contains__

    def get_metadata(self, storage_id: str) -> dict[str, Any]:
        """The metadata given when the checkpoint was stored, with later changes by users.

        NaN and the infinities are floats again, and so are texts that are spelled like their JSON ("NaN").
        """
        from determined.common.api.errors import NotFoundException

        self.wait()
        try:
            answer = self._connection.get(f"/api/v1/checkpoints/{storage_id}")
        except NotFoundException as error:
            raise errors.CheckpointNotFound(str(error)) from None
        return decoded(answer["checkpoint"].get("metadata"))

    def delete(self, storage_id: str) -> None:
        """Remove a checkpoint's files, then mark it deleted. May be repeated.

        Raises CheckpointStateException when it is a version of a model.
        """
        self.wait()
        self._refuse_registered(str(storage_id))
        self._storage.delete(str(storage_id))
        self._report_deleted(str(storage_id))

    def _check_caller(self, method: str, shard: bool, wait: bool) -> None:
        if self._dist.rank != 0 and not shard:
            raise RuntimeError(f"only the chief may call {method}() without shard=True")
        if shard and not wait:
            raise ValueError(
                f"{method}(shard=True, wait=False) is not possible: workers store one checkpoint "
                "by calls that all make together, and the training may make such calls at the "
                "same time; give one of the two, not both"
            )

    def _plain_metadata(self, metadata: dict[str, Any] | None) -> dict[str, Any]:
        """A copy as JSON. Raises ValueError and TypeError for what cannot be stored."""
        copied = as_json(metadata)
        self._check_metadata(copied)
        return copied

    def _check_metadata(self, metadata: dict[str, Any]) -> None:
        steps = metadata.get("steps_completed")
        if not isinstance(steps, int) or isinstance(steps, bool):
            raise ValueError(
                "checkpoint metadata must contain the integer steps_completed, e.g. "
                f"metadata={{'steps_completed': batches_trained}}; found {steps!r}"
            )
        check_steps(steps)

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
            "executable": sorted(manifest.executable),
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

    def _refuse_registered(self, storage_id: str) -> None:
        from determined.common.api.errors import NotFoundException

        try:
            found = self._connection.get(f"/api/v1/checkpoints/{storage_id}")["checkpoint"]
        except NotFoundException:
            return
        for version in found.get("modelVersions") or ():
            raise errors.CheckpointStateException(
                f"checkpoint {storage_id} is version {version['version']} of model"
                f" {version['modelName']!r}: nothing was deleted. Delete the version first"
                " (ModelVersion.delete() or det model delete-version)"
            )

    def _report_deleted(self, storage_id: str) -> None:
        body = {"checkpoints": [{"uuid": storage_id, "resources": {"resources": {}}}]}
        self._connection.patch("/api/v1/checkpoints", json=body)


class DummyCheckpointContext(CheckpointContext):
    """Off-cluster: checkpoints in local storage, of which the service knows nothing."""

    def __init__(self, dist: DistributedContext, storage: StorageManager) -> None:
        self._dist = dist
        self._storage = storage
        self._begin_background()

    def get_metadata(self, storage_id: str) -> dict[str, Any]:
        self.wait()
        with self._storage.restore_path(str(storage_id), METADATA_FILE.__eq__) as path:
            try:
                return decoded(json.loads((path / METADATA_FILE).read_bytes()))
            except FileNotFoundError:
                return {}

    def _check_metadata(self, metadata: dict[str, Any]) -> None:
        """Accept anything: there is no service to send it to."""

    def _report_checkpoint(
        self, storage_id: str, manifest: Manifest, metadata: dict[str, Any]
    ) -> None:
        logger.info("checkpoint %s stored", storage_id)

    def _refuse_registered(self, storage_id: str) -> None:
        """Do nothing: off the cluster there is no model registry."""

    def _report_deleted(self, storage_id: str) -> None:
        logger.info("checkpoint %s deleted", storage_id)
