"""Files of runs and checkpoints as MLflow's artifacts: one tree over checkpoint storage.

=====================================  =======================================================================
``checkpoints/<uuid>/…``               the checkpoint's files; of a `PyTorchTrial`'s there is an
``MLmodel`` too,
                                       which lies in no storage, so that MLflow can load it
``trials/<id>/checkpoints/<uuid>/…``   the same by trial
``trials/<id>/…``                      what the run has logged besides (``log_artifact``)
``searches/<id>``, ``experiments/<id>``  empty
=====================================  =======================================================================

Lists come from the database; bytes from the storage, if the service opens it
(:mod:`determined_registry.permitted`). Files are written only for users whom the service allows to report for
the trial.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import posixpath
import shutil
import tempfile
import uuid as uuids
from collections.abc import AsyncIterable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import yaml
from mlflow.entities import FileInfo
from mlflow.exceptions import MlflowException
from mlflow.protos.databricks_pb2 import RESOURCE_DOES_NOT_EXIST, TEMPORARILY_UNAVAILABLE
from mlflow.store.artifact.artifact_repo import ArtifactRepository, StreamUploadMixin

from determined import errors, storage
from determined.storage import StorageManager
from determined.storage.base import Manifest
from determined.storage.directory import DirectoryStorageManager
from determined.storage.files import Digest, algorithm_for
from determined.storage.spans import Span
from determined_registry import permitted
from determined_registry.mlflow import configured, names, spool
from determined_registry.mlflow.artifact_paths import parts_of, parts_of_new
from determined_registry.mlflow.by_path import is_private
from determined_registry.mlflow.database import SCHEME, Reader
from determined_registry.mlflow.service import ask, body_of_request, missing, refuse, takes_path

CHECKPOINTS = "checkpoints"
MLMODEL = "MLmodel"
LOAD_FILE = "load_data.json"
"""By this file a checkpoint of a `PyTorchTrial` is known."""
LOADER = "determined.pytorch.mlflow_model"
CONTENT = "content"

_CHECKPOINT = """
    SELECT c.uuid, c.state, c.resources, c.checksums, c.trial_id, c.report_time,
           coalesce(c.storage, e.config -> 'checkpoint_storage') AS storage
    FROM checkpoints c LEFT JOIN experiments e ON e.id = c.experiment_id
    WHERE c.uuid = :uuid AND c.state <> 'DELETED'"""
_TRIAL = """
    SELECT t.id, t.experiment_id, coalesce(m.artifacts, '{}') AS artifacts,
           e.config -> 'checkpoint_storage' AS storage,
           coalesce((SELECT jsonb_agg(c.uuid ORDER BY c.report_time) FROM checkpoints c
                     WHERE c.trial_id = t.id AND c.state NOT IN ('DELETED', 'ACTIVE')), '[]') AS checkpoints
    FROM trials t JOIN experiments e ON e.id = t.experiment_id
    LEFT JOIN mlflow_runs m ON m.trial_id = t.id WHERE t.id = :id"""


class Artifacts(ArtifactRepository, StreamUploadMixin):
    """The tree below ``artifact_uri``; see the module's docstring."""

    def __init__(
        self, artifact_uri: str, tracking_uri: str | None = None, registry_uri: str | None = None
    ) -> None:
        super().__init__(artifact_uri, tracking_uri, registry_uri)
        self._db = Reader(artifact_uri)
        self._cluster = ""

    @classmethod
    def of_server(cls) -> Artifacts:
        """The one tree of the server that the service has started."""
        return cls(f"{SCHEME}:///")

    # Reading

    def list_artifacts(self, path: str | None = None) -> list[FileInfo]:
        """The files and folders in the folder ``path``; empty if ``path`` is a file."""
        parts = parts_of(path)
        files, below = self._files(parts)
        inside = "/".join(below)
        found: dict[str, FileInfo] = {}
        for name, size in files.items():
            if inside and not name.startswith(f"{inside}/"):
                continue
            rest = name[len(inside) + 1 :] if inside else name
            first, slash, _ = rest.partition("/")
            if not first:
                continue
            shown = "/".join([*parts, first])
            found[first] = FileInfo(shown, bool(slash), None if slash else size)
        return [found[name] for name in sorted(found)]

    def _files(self, parts: list[str]) -> tuple[Mapping[str, int], list[str]]:
        """Every path and its bytes below the root that ``parts`` begin with, and the parts within it."""
        if len(parts) < 2 or parts[0] in ("searches", "experiments"):
            return {}, []
        if parts[0] == CHECKPOINTS:
            return self._resources(self._checkpoint(parts[1])), parts[2:]
        trial = self._trial(parts)
        if len(parts) > 3 and parts[2] == CHECKPOINTS:
            return self._resources(self._checkpoint(parts[3], trial)), parts[4:]
        listed = dict(trial.artifacts)
        # A file without a name: each makes a folder of the list.
        listed |= {f"{CHECKPOINTS}/{uuid}/": 0 for uuid in trial.checkpoints}
        return listed, parts[2:]

    def _resources(self, checkpoint: Any) -> dict[str, int]:
        found = dict(checkpoint.resources)
        if checkpoint.state == "ACTIVE":
            found = spool.files(checkpoint.uuid)
        if LOAD_FILE in found and MLMODEL not in found:
            found[MLMODEL] = len(_mlmodel(checkpoint))
        return found

    def get_local_path(self, artifact_path: str) -> str | None:
        """The file itself where the storage is a folder of this machine, so that it is sent without a
        copy. Raises MlflowException (404)."""
        checkpoint, path = self._in_checkpoint(artifact_path)
        if checkpoint is None:
            trial, path = self._own(parts_of(artifact_path))
            if path not in trial.artifacts:
                raise missing(f"artifact {artifact_path}")
            # Whoever makes the answer of the file alone would give it the name and the type of CONTENT.
            if not takes_path.get():
                return None
            manager = _manager(trial.storage, trial.id)
            inner = f"{self._key(trial, path)}/{CONTENT}"
        else:
            if path not in checkpoint.resources:
                return None
            manager = _manager(checkpoint.storage, checkpoint.trial_id)
            inner = f"{checkpoint.uuid}/{path}"
        if not isinstance(manager, DirectoryStorageManager):
            return None
        found = manager.root / inner
        if not os.path.lexists(found):
            raise missing(f"the file of artifact {artifact_path}")
        return str(found) if manager.trusted is None or is_private(found) else None

    def _download_file(self, remote_file_path: str, local_path: str) -> None:
        target = Path(local_path)
        checkpoint, path = self._in_checkpoint(remote_file_path)
        if checkpoint is None:
            self._fetch(parts_of(remote_file_path), target)
        elif checkpoint.state == "ACTIVE":
            raise missing(f"artifact {remote_file_path}")
        elif path in checkpoint.resources:
            with _explained():
                _copy(checkpoint, path, target)
        elif path == MLMODEL and LOAD_FILE in checkpoint.resources:
            target.write_bytes(_mlmodel(checkpoint))
        else:
            raise missing(f"artifact {remote_file_path}")

    def _fetch(self, parts: list[str], target: Path) -> None:
        trial, path = self._own(parts)
        if path not in trial.artifacts:
            raise missing(f"artifact {'/'.join(parts)}")
        with tempfile.TemporaryDirectory(dir=target.parent) as folder, _explained():
            _manager(trial.storage, trial.id).fetch(self._key(trial, path), Path(folder))
            found = Path(folder) / CONTENT
            if not found.exists():
                raise missing(f"the file of artifact {'/'.join(parts)}")
            found.replace(target)

    def _in_checkpoint(self, path: str) -> tuple[Any, str]:
        """The checkpoint that the file is in, and its path there; None: it is in none."""
        parts = parts_of(path)
        if len(parts) > 2 and parts[0] == CHECKPOINTS:
            return self._checkpoint(parts[1]), "/".join(parts[2:])
        if len(parts) > 4 and parts[0] == "trials" and parts[2] == CHECKPOINTS:
            return self._checkpoint(parts[3], self._trial(parts)), "/".join(parts[4:])
        return None, ""

    def _checkpoint(self, text: str, trial: Any = None) -> Any:
        """The checkpoint of that uuid, which must be the trial's if one is named. Raises MlflowException."""
        row = None
        with contextlib.suppress(ValueError):
            row = self._db.first(_CHECKPOINT, {"uuid": uuids.UUID(text)})
        if row is None or (trial is not None and row.trial_id != trial.id):
            raise missing(f"checkpoint {text}")
        return row

    def _trial(self, parts: list[str]) -> Any:
        """The trial of ``trials/<id>/…``. Raises MlflowException (404)."""
        number = names.number(parts[1]) if len(parts) > 1 and parts[0] == "trials" else None
        row = None if number is None else self._db.first(_TRIAL, {"id": number})
        if row is None:
            raise missing(f"artifact {'/'.join(parts)}")
        return row

    def _own(self, parts: list[str]) -> tuple[Any, str]:
        """The trial, and the path of a file that it has logged besides its checkpoints."""
        return self._trial(parts), "/".join(parts[2:])

    def _key(self, trial: Any, path: str) -> str:
        """The path of the file in storage. Each file has a separate folder, because storages fetch
        folders."""
        if not self._cluster:
            self._cluster = str(self._db.first("SELECT id FROM cluster").id)
        folder = f"{self._cluster}/mlflow/experiment/{trial.experiment_id}/trial/{trial.id}"
        return f"{folder}/{path}"

    # Writing

    def log_artifact(self, local_file: str, artifact_path: str | None = None) -> None:
        """Raises MlflowException (403) for a file of a complete checkpoint, which never changes."""
        name = posixpath.join(artifact_path or "", Path(local_file).name)
        self._keep(name, Path(local_file), move=False)

    def log_artifact_from_stream(
        self, stream: BinaryIO, artifact_file_name: str, artifact_path: str | None = None
    ) -> None:
        """Like :meth:`log_artifact`, with the contents read from ``stream``."""
        with _draft() as draft:
            with draft.open("wb") as file:
                shutil.copyfileobj(stream, file)
            self._keep(posixpath.join(artifact_path or "", artifact_file_name), draft, move=True)

    async def log_artifact_from_async_stream(
        self,
        chunks: AsyncIterable[bytes],
        artifact_file_name: str,
        artifact_path: str | None = None,
    ) -> None:
        """As :meth:`log_artifact`, for bytes that come in ``chunks``."""
        name = posixpath.join(artifact_path or "", artifact_file_name)
        if whole := body_of_request.get():
            await asyncio.to_thread(self._keep, name, Path(whole), move=True)
            return
        with _draft() as draft:
            with draft.open("wb") as file:
                async for chunk in chunks:
                    await asyncio.to_thread(file.write, chunk)
            await asyncio.to_thread(self._keep, name, draft, move=True)

    def _keep(self, name: str, file: Path, *, move: bool) -> None:
        """``move``: the file is nobody's but ours."""
        parts = parts_of_new(name)
        size = file.stat().st_size
        if len(parts) > 2 and parts[0] == CHECKPOINTS:
            self._keep_in_checkpoint(parts, file, move=move)
            return
        trial, path = self._own(parts)
        if not path or parts[2] == CHECKPOINTS:
            refuse(
                f"{name}: the folder {CHECKPOINTS} of a run holds its checkpoints: choose another"
            )
        _require_reporter(trial.id)
        with _explained():
            _manager(trial.storage, trial.id).put(
                f"{self._key(trial, path)}/{CONTENT}", file, move=move
            )
        ask("PATCH", f"/api/v1/mlflow/runs/{trial.id}", {"artifacts": {path: size}})

    def _keep_in_checkpoint(self, parts: list[str], file: Path, *, move: bool) -> None:
        checkpoint = self._checkpoint(parts[1])
        _require_incomplete(checkpoint)
        _require_reporter(checkpoint.trial_id)
        target = spool.folder_of(checkpoint.uuid).joinpath(*parts[2:])
        with _draft() as draft:
            if move:
                draft = file
            else:
                shutil.copyfile(file, draft)
            with spool.completing(checkpoint.uuid):
                # It may be complete by now.
                _require_incomplete(self._checkpoint(parts[1]))
                target.parent.mkdir(parents=True, exist_ok=True)
                draft.replace(target)

    def log_artifacts(self, local_dir: str, artifact_path: str | None = None) -> None:
        """Every file below ``local_dir``."""
        for file in sorted(Path(local_dir).rglob("*")):
            if file.is_file():
                folder = file.parent.relative_to(local_dir).as_posix()
                self.log_artifact(str(file), posixpath.normpath(f"{artifact_path or ''}/{folder}"))

    def delete_artifacts(self, artifact_path: str | None = None) -> None:
        """Files that a run has logged besides its checkpoints."""
        parts = parts_of(artifact_path)
        if not parts or parts[0] != "trials" or len(parts) < 3 or parts[2] == CHECKPOINTS:
            refuse(
                "a checkpoint's files never change: `det checkpoint delete` deletes the checkpoint"
            )
        trial, path = self._own(parts)
        gone = [one for one in trial.artifacts if one == path or one.startswith(f"{path}/")]
        if not gone:
            raise missing(f"artifact {artifact_path}")
        _require_reporter(trial.id)
        ask("PATCH", f"/api/v1/mlflow/runs/{trial.id}", {"artifacts": dict.fromkeys(gone)})
        manager = _manager(trial.storage, trial.id)
        with _explained():
            for one in gone:
                manager.discard(self._key(trial, one))

    def store(self, checkpoint: uuids.UUID) -> Manifest:
        """Store all files sent for the checkpoint, or none of them. The caller is :func:`completing` it, and
        forgets them when the service knows that they are there."""
        row = self._checkpoint(str(checkpoint))
        _require_reporter(row.trial_id)
        folder = spool.folder_of(checkpoint)
        folder.mkdir(parents=True, exist_ok=True)
        with _explained():
            manager = _manager(row.storage, row.trial_id)
            manager.delete(str(checkpoint))
            return manager.upload(folder, str(checkpoint), lambda name: not spool.is_hidden(name))

    @staticmethod
    def forget(checkpoint: uuids.UUID) -> None:
        """Files that were sent for a checkpoint that will not be."""
        shutil.rmtree(spool.folder_of(checkpoint), ignore_errors=True)


@contextlib.contextmanager
def _draft() -> Iterator[Path]:
    """A temporary file, beside the files that wait for the rest of a checkpoint."""
    beside = configured.current().spool if configured.is_there() else None
    with tempfile.TemporaryDirectory(dir=beside) as folder:
        yield Path(folder) / CONTENT


def _manager(section: Mapping[str, Any] | None, trial_id: int | None) -> StorageManager:
    """The storage of the trial's files. Raises MlflowException (403) for one that the service does not open,
    or that takes keys of the trial's owner, for everybody else.
    """
    if not section:
        raise missing("the checkpoint storage of this experiment")
    manager = storage.build(dict(section))
    if not configured.is_there():
        # The user who started this process reads with their own rights.
        return manager
    own = configured.current().storage or None
    reason = permitted.refusal(section, own, "the artifact")
    if reason is not None:
        refuse(reason)
    if permitted.has_keys_for_aws(section) and section != own:
        _require_reporter(trial_id)
    if isinstance(manager, DirectoryStorageManager):
        trusted = storage.build(dict(own or {}))
        assert isinstance(trusted, DirectoryStorageManager)
        manager.trusted = trusted.root
    return manager


def _copy(checkpoint: Any, path: str, target: Path) -> None:
    """Writes the checkpoint's file to ``target``. Raises errors.StorageError."""
    size, expected = int(checkpoint.resources[path]), (checkpoint.checksums or {}).get(path)
    digest = Digest(algorithm_for(size, expected))
    manager = _manager(checkpoint.storage, checkpoint.trial_id)
    with target.open("wb") as file:
        for piece in manager.read(str(checkpoint.uuid), [Span(path, 0, size)]):
            digest.update(piece)
            file.write(piece)
    if expected is not None and digest.value() != expected:
        target.unlink()
        raise errors.CheckpointCorrupted(
            f"checkpoint {checkpoint.uuid}: {path} differs from the stored file (checksum mismatch)"
        )


@contextlib.contextmanager
def _explained() -> Iterator[None]:
    try:
        yield
    except errors.CheckpointNotFound as error:
        raise missing(str(error)) from error
    except errors.CheckpointCorrupted as error:
        # A repeated request would get the same answer; for storage errors clients ask again for minutes.
        raise MlflowException(str(error), RESOURCE_DOES_NOT_EXIST) from error
    except errors.StorageError as error:
        raise MlflowException(str(error), TEMPORARILY_UNAVAILABLE) from error


def _require_incomplete(checkpoint: Any) -> None:
    if checkpoint.state != "ACTIVE":
        refuse(
            f"checkpoint {checkpoint.uuid} is complete, and its files never change: log another model"
        )


def _require_reporter(trial_id: int | None) -> None:
    """Raises MlflowException (403) unless the service allows the user to report for the trial."""
    if trial_id is None:
        refuse("this checkpoint belongs to no trial: its files never change")
    ask("PATCH", f"/api/v1/mlflow/runs/{trial_id}", {})


def _mlmodel(checkpoint: Any) -> bytes:
    """The ``MLmodel`` that makes ``mlflow.pyfunc.load_model`` build the trial's model again."""
    described = {
        "flavors": {
            "python_function": {"loader_module": LOADER, "data": ".", "env": {}},
        },
        "model_uuid": checkpoint.uuid.hex,
        "utc_time_created": checkpoint.report_time.strftime("%Y-%m-%d %H:%M:%S.%f"),
    }
    return yaml.safe_dump(described).encode()
