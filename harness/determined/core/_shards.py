"""One checkpoint from the files of several workers."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import operator
from collections.abc import Callable, Collection, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from determined import errors
from determined.core._distributed import DistributedContext
from determined.core._everybody import everybody
from determined.storage import Manifest, StorageManager, files


@dataclasses.dataclass(frozen=True)
class Shard:
    """One worker's part of the checkpoint: ``paths`` → bytes in a directory, and metadata.

    ``directory``: identifies the directory (machine, device, inode), None without one.
    """

    paths: Mapping[str, int]
    metadata: dict[str, Any]
    directory: tuple[int, int, int] | None


def list_shard(
    dist: DistributedContext,
    src: Path | None,
    selector: Callable[[str], bool] | None,
    metadata: dict[str, Any],
    ignored: Collection[str],
) -> Shard:
    """This worker's shard, without files called ``ignored``. Raises errors.StorageError."""
    if src is None:
        return Shard({}, metadata, None)
    with files.explained("read", src):
        paths = files.selected(files.list_files(src), selector)
        stat = src.stat()
    for path in ignored:
        paths.pop(path, None)
    return Shard(paths, metadata, (dist.cross_rank, stat.st_dev, stat.st_ino))


def store_shards(
    dist: DistributedContext,
    storage: StorageManager,
    storage_id: str,
    src: Path | None,
    shards: list[Shard],
    extra: Mapping[str, bytes],
) -> Manifest:
    """Adds every worker's files, and the chief's ``extra``, to the unfinished checkpoint, each file once.

    All workers call it, with the same ``shards`` in the order of ranks. Raises errors.CheckpointConflict,
    errors.StorageError, errors.WorkerError on all of them.
    """
    mine = shards[dist.rank].paths

    def checksums() -> dict[str, str]:
        doubtful = _in_several(shards)
        return {
            path: files.checksum((src or Path()) / path)
            for path in mine
            if path in doubtful and not path.endswith("/")
        }

    _check_kinds(shards)
    # Usually no file is in several shards: then no worker is asked for checksums.
    if _in_several(shards):
        _check_contents(everybody(dist.allgather, checksums))
    earlier = {path for shard in shards[: dist.rank] for path in shard.paths}
    own = [path for path in mine if path not in earlier]

    def add() -> Manifest:
        more = extra if dist.rank == 0 else {}
        if not own and not more:
            return Manifest({}, {})
        return storage.add(storage_id, src or Path(), own, more)

    return functools.reduce(operator.or_, everybody(dist.allgather, add))


def _in_several(shards: list[Shard]) -> set[str]:
    """Paths that several workers have and that may be different files."""
    where: dict[str, set[object]] = {}
    for shard in shards:
        for path in shard.paths:
            if not path.endswith("/"):
                where.setdefault(path, set()).add(shard.directory)
    return {path for path, directories in where.items() if len(directories) > 1}


def _check_contents(checksums: list[dict[str, str]]) -> None:
    """Raise if workers have different contents for one path. The same file from several workers is not a
    conflict.
    """
    found: dict[str, dict[str, list[int]]] = {}
    for rank, sums in enumerate(checksums):
        for path, checksum in sums.items():
            found.setdefault(path, {}).setdefault(checksum, []).append(rank)
    _refuse(
        "files of the same name with different contents",
        {path: sorted(itertools.chain(*by.values())) for path, by in found.items() if len(by) > 1},
    )


def _check_kinds(shards: list[Shard]) -> None:
    """Raise if a file of one worker is a directory of another."""
    directories: dict[str, set[int]] = {}
    for rank, shard in enumerate(shards):
        for path in shard.paths:
            # The path itself too, when it ends in "/".
            for parent in PurePosixPath(path + "x").parents:
                directories.setdefault(str(parent), set()).add(rank)
    conflicts: dict[str, set[int]] = {}
    for rank, shard in enumerate(shards):
        for path in shard.paths.keys() & directories.keys():
            conflicts.setdefault(path, {rank}).update(directories[path])
    _refuse(
        "files that are directories of other workers",
        {path: sorted(ranks) for path, ranks in conflicts.items()},
    )


def merge_metadata(shards: list[Shard]) -> dict[str, Any]:
    """The union, dictionaries within it too. Raises errors.CheckpointConflict for a key to which workers
    give different values.
    """
    conflicts: dict[str, list[int]] = {}

    def merge(parts: list[tuple[int, dict[str, Any]]], prefix: str) -> dict[str, Any]:
        merged: dict[str, Any] = {}
        for key in dict.fromkeys(key for _, part in parts for key in part):
            given = [(rank, part[key]) for rank, part in parts if key in part]
            values = [value for _, value in given]
            if all(isinstance(value, dict) for value in values):
                merged[key] = merge(given, f"{prefix}{key}.")
            elif all(value == values[0] for value in values):
                merged[key] = values[0]
            else:
                conflicts[f"{prefix}{key}"] = [rank for rank, _ in given]
        return merged

    whole = merge([(rank, shard.metadata) for rank, shard in enumerate(shards)], "")
    _refuse("metadata of the same key with different values", conflicts)
    return whole


def _refuse(what: str, conflicts: Mapping[str, list[int]]) -> None:
    if conflicts:
        raise errors.CheckpointConflict(
            f"the parts of this checkpoint do not fit together, {what}: "
            + "; ".join(
                f"{name} (ranks {', '.join(map(str, ranks))})"
                for name, ranks in sorted(conflicts.items())
            )
        )
