"""Storing one checkpoint by several workers."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from determined import errors
from determined.core._distributed import DistributedContext
from determined.core._everybody import everybody
from determined.core._metadata import METADATA_FILE, as_json, encoded
from determined.core._shards import Shard, list_shard, merge_metadata, store_shards
from determined.storage import Manifest, StorageManager


class ShardedStore:
    """Every worker calls each method, in the same order. If a method fails in one worker, all raise.

    Each worker calls ``before`` at the start and ``check_metadata`` with the metadata of all workers; the
    latter raises for wrong metadata. The chief calls ``report`` (uuid, manifest, metadata) once the
    checkpoint is stored.
    """

    def __init__(
        self,
        dist: DistributedContext,
        storage: StorageManager,
        before: Callable[[], None],
        check_metadata: Callable[[dict[str, Any]], None],
        report: Callable[[str, Manifest, dict[str, Any]], None],
    ) -> None:
        self._dist = dist
        self._storage = storage
        self._before = before
        self._check_metadata = check_metadata
        self._report = report

    def upload(
        self,
        src: Path | None,
        selector: Callable[[str], bool] | None,
        metadata: dict[str, Any] | None,
    ) -> str:
        """As ``CheckpointContext.upload(shard=True)``."""
        storage_id = self._begin()
        with self._abort_if_it_fails(storage_id):
            stored = self._store(storage_id, src, lambda: self._list(src, selector, metadata))
        self._report_once(storage_id, *stored)
        return storage_id

    @contextlib.contextmanager
    def store_path(
        self, metadata: dict[str, Any] | None, storage_id: str | None = None
    ) -> Iterator[tuple[Path, str]]:
        """As ``CheckpointContext.store_path(shard=True)``; ``storage_id``: the chief's choice."""
        storage_id = self._begin(storage_id)
        with (
            self._abort_if_it_fails(storage_id),
            self._storage.stage(storage_id, str(self._dist.rank)) as path,
        ):
            error: BaseException | None = None
            try:
                yield path, storage_id
            except (Exception, SystemExit) as raised:
                error = raised

            def shard() -> Shard:
                if error is not None:
                    raise error
                return self._list(path, None, metadata)

            stored = self._store(storage_id, path, shard)
        self._report_once(storage_id, *stored)

    def _begin(self, chosen: str | None = None) -> str:
        def begin() -> str:
            self._before()
            if self._dist.rank:
                return ""
            storage_id = chosen or str(uuid.uuid4())
            self._storage.begin(storage_id)
            return storage_id

        return everybody(self._dist.allgather, begin)[0]

    @contextlib.contextmanager
    def _abort_if_it_fails(self, storage_id: str) -> Iterator[None]:
        try:
            yield
        except errors.WorkerLost:
            # Others may still be writing: a later sweep removes their files.
            raise
        except BaseException as error:
            # Of these all workers have heard; of Ctrl-C, say, only this one.
            all_know = isinstance(error, Exception | SystemExit)
            if self._dist.rank == 0 and (all_know or self._dist.size == 1):
                with contextlib.suppress(errors.StorageError):
                    self._storage.abort(storage_id)
            raise

    def _list(
        self,
        src: Path | None,
        selector: Callable[[str], bool] | None,
        metadata: dict[str, Any] | None,
    ) -> Shard:
        given = as_json(metadata)
        return list_shard(self._dist, src, selector, given, [METADATA_FILE])

    def _store(
        self, storage_id: str, src: Path | None, shard: Callable[[], Shard]
    ) -> tuple[Manifest, dict[str, Any]]:
        shards = everybody(self._dist.allgather, shard)
        metadata = merge_metadata(shards)
        self._check_metadata(metadata)
        extra = {METADATA_FILE: encoded(metadata)}
        manifest = store_shards(self._dist, self._storage, storage_id, src, shards, extra)

        def finish() -> None:
            if self._dist.rank == 0:
                self._storage.finish(storage_id, manifest)

        everybody(self._dist.allgather, finish)
        return manifest, metadata

    def _report_once(self, storage_id: str, manifest: Manifest, metadata: dict[str, Any]) -> None:
        def report() -> None:
            if self._dist.rank == 0:
                self._report(storage_id, manifest, metadata)

        everybody(self._dist.allgather, report)
