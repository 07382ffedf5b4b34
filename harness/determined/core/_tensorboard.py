"""TensorBoard files of a trial: a local directory and its copy in checkpoint storage."""

from __future__ import annotations

import enum
import logging
import threading
from collections.abc import Callable
from pathlib import Path

from determined.storage import StorageManager

logger = logging.getLogger("determined.core")


class TensorboardMode(enum.Enum):
    """AUTO: what the script writes to ``get_tensorboard_path()`` is uploaded at checkpoints and at the
    end. MANUAL: only when the script calls ``upload_tensorboard_files()``.
    """

    AUTO = "AUTO"
    MANUAL = "MANUAL"


def tensorboard_prefix(cluster_id: str, experiment_id: int, trial_id: int) -> str:
    """Where a trial's files are in checkpoint storage."""
    return f"{cluster_id}/tensorboard/experiment/{experiment_id}/trial/{trial_id}"


class TensorboardFiles:
    """Copies new and changed files below ``path`` to ``prefix`` in the storage."""

    def __init__(self, path: Path, storage: StorageManager, prefix: str) -> None:
        self._path = path
        self._storage = storage
        self._prefix = prefix
        self._uploaded: dict[Path, tuple[int, int]] = {}
        # A checkpoint may be stored in the background.
        self._lock = threading.Lock()

    def get_path(self) -> Path:
        """The directory to write to; made by the first call."""
        self._path.mkdir(parents=True, exist_ok=True)
        return self._path

    def sync(
        self,
        selector: Callable[[Path], bool] = lambda _: True,
        mangler: Callable[[Path, int], Path] = lambda path, _: path,
        rank: int = 0,
    ) -> None:
        """Upload what changed; both functions get paths relative to the directory.

        Raises errors.StorageError.
        """
        with self._lock:
            for path in sorted(self._path.rglob("*")) if self._path.is_dir() else []:
                relative = path.relative_to(self._path)
                if not path.is_file() or not selector(relative):
                    continue
                stat = path.stat()
                version = (stat.st_mtime_ns, stat.st_size)
                if self._uploaded.get(path) == version:
                    continue
                self._storage.put(f"{self._prefix}/{mangler(relative, rank).as_posix()}", path)
                self._uploaded[path] = version
