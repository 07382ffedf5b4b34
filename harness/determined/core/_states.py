"""Storing states of torch while the training goes on: ``CheckpointContext.save_state``."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from determined.core._distributed import DistributedContext
from determined.core._everybody import everybody
from determined.core._metadata import as_json
from determined.core._sharded_store import ShardedStore
from determined.core._shards import Shard, merge_metadata
from determined.core._staging import Copy, StateMemory

FILE = "state.pt"

save = torch.save


class States:
    """The memory for copies of one worker, and what workers need to store together in the background."""

    def __init__(self, dist: DistributedContext) -> None:
        self._dist = dist
        self._staging = StateMemory()
        self._twin: DistributedContext | None = None
        self._group: Any = None

    def copy(self, state: Any, processes: int = 1) -> Copy | None:
        """See :meth:`StateMemory.copy`."""
        return self._staging.copy(state, processes)

    def close(self) -> None:
        self._staging.close()

    def store_shards(
        self,
        state: dict[str, Any],
        metadata: dict[str, Any] | None,
        sharded: Callable[[DistributedContext | None], ShardedStore],
        before: Callable[[], None],
        check: Callable[[dict[str, Any]], None],
        start: Callable[[str, Callable[[], None]], None],
    ) -> str:
        """All workers call it. Returns the uuid. ``sharded(twin)``: the store for calls of another thread;
        ``before`` raises the last checkpoint's error; ``check`` raises for metadata of all workers that is
        wrong; ``start(what, work)`` does the work in the background.
        """
        copies: list[Copy | None] = []

        def prepare() -> tuple[str, dict[str, Any], bool]:
            self._check_torch()
            before()
            given = as_json(metadata)
            copies.append(self.copy(_of_stateful(state), self._dist.local_size))
            return str(uuid.uuid4()), given, copies[0] is not None

        answers = everybody(self._dist.allgather, prepare)
        metadata = answers[self._dist.rank][1]
        check(merge_metadata([Shard({}, given, None) for _, given, _ in answers]))
        storage_id = answers[0][0]
        copied = copies[0]
        # Either all store in the background, or none: they make the same calls.
        if copied is None or not all(fits for _, _, fits in answers):
            with sharded(None).store_path(metadata, storage_id) as (path, _):
                self._write(_of_stateful(state), path)
            return storage_id
        twin = self._beside()
        store = sharded(twin)

        def work() -> None:
            found: list[Any] = []
            # Whoever fails in this tells the others, who would wait for it in torch's calls.
            everybody(twin.allgather, lambda: found.append(copied.state()))
            with store.store_path(metadata, storage_id) as (path, _):
                self._write(found.pop(), path)

        start(f"storing checkpoint {storage_id}", work)
        return storage_id

    def _check_torch(self) -> None:
        if self._dist.size > 1 and not self._in_a_group():
            raise RuntimeError(
                "save_state(shard=True) in a trial of several processes needs torch's process group: call "
                "torch.distributed.init_process_group() first"
            )

    @staticmethod
    def _in_a_group() -> bool:
        return torch.distributed.is_available() and torch.distributed.is_initialized()

    def _beside(self) -> DistributedContext:
        """Connections of the background's own: the training may use the others at the same time."""
        if self._twin is None:
            self._twin = self._dist.twin()
            if self._in_a_group():
                self._group = torch.distributed.new_group(backend="gloo")
        return self._twin

    def _write(self, state: dict[str, Any], path: Path) -> None:
        from torch.distributed import checkpoint

        # The storage syncs the files, and hashes them at the same time.
        writer = checkpoint.FileSystemWriter(path, sync_files=False)
        checkpoint.save(state, storage_writer=writer, process_group=self._group)


def _of_stateful(state: dict[str, Any]) -> dict[str, Any]:
    """With the states of modules, optimizers and the like in their places."""
    from torch.distributed.checkpoint.stateful import Stateful

    return {
        key: value.state_dict() if isinstance(value, Stateful) else value
        for key, value in state.items()
    }
