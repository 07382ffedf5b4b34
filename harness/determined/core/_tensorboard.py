"""TensorBoard files of a trial: a local directory and its copy in checkpoint storage."""

from __future__ import annotations

import contextlib
import enum
import logging
import os
import re
import shutil
import tempfile
import threading
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from stat import S_ISREG
from typing import Any

from determined import errors
from determined.core._events import EventFiles
from determined.storage import StorageManager, files

logger = logging.getLogger("determined.core")

# Seconds between uploads: a crash loses the charts of that much training.
INTERVAL = 10.0
# The first one comes sooner, so that a mistake in the storage's configuration shows.
FIRST_INTERVAL = 2.0

_TRACE = re.compile(r"(?P<worker>.*?)(?P<rest>(\.\d+)?\.pt\.trace\.json(\.gz)?)")


writers: weakref.WeakSet[Any] = weakref.WeakSet()
"""Of event files (with ``flush()``), made by the script: what they hold back is to be uploaded too."""


class TensorboardMode(enum.Enum):
    """AUTO: reported metrics are written as event files. Every process uploads these files, and all other
    files in ``get_tensorboard_path()``, in the background as they grow. MANUAL: no metrics are written, and
    files are uploaded only when the script calls ``upload_tensorboard_files()``.
    """

    AUTO = "AUTO"
    MANUAL = "MANUAL"


def tensorboard_prefix(cluster_id: str, experiment_id: int, trial_id: int) -> str:
    """The prefix of a trial's files in checkpoint storage."""
    return f"{cluster_id}/tensorboard/experiment/{experiment_id}/trial/{trial_id}"


def local_directory(allocation_id: str, rank: int) -> Path:
    """The directory in which the trial's process of this rank writes its files."""
    parent = os.environ.get("DET_RUN_DIR") or tempfile.gettempdir()
    return Path(parent) / f"tensorboard-{allocation_id}-{rank}"


def temporary_directory() -> Path:
    """Make a directory for the files of a process off the cluster. They stay there and are not uploaded."""
    return Path(tempfile.mkdtemp(prefix="determined-tensorboard-"))


def with_rank(path: Path, rank: int) -> Path:
    """The name under which the file of a process is stored, so that no two processes' files meet.

    Files of rank 0 keep their names. Other names get ``#<rank>`` behind the name of the worker, where
    TensorBoard's profiler plugins look for it: ``host_7.1619.pt.trace.json`` becomes
    ``host_7#3.1619.pt.trace.json``.
    """
    name = path.name
    if rank == 0:
        return path
    if "tfevents" in name:
        return path.with_name(f"{name}#{rank}")
    trace = _TRACE.fullmatch(name)
    if trace is not None:
        return path.with_name(f"{trace['worker']}#{rank}{trace['rest']}")
    stem, dot, rest = name.partition(".")
    return path.with_name(f"{stem}#{rank}{dot}{rest}")


class TensorboardFiles:
    """Copies new and changed files below ``path`` to ``prefix`` in the storage.

    ``automatic``: reported metrics are written too, and a thread uploads, from the first report or the first
    call of :meth:`get_path` until :meth:`close`. ``temporary``: :meth:`close` removes the directory.
    ``check`` raises errors.AllocationEnded once another process runs the trial and writes the files. A forked
    process writes its reports at once, to a separate file, and its parent uploads it.
    """

    def __init__(
        self,
        path: Path,
        storage: StorageManager,
        prefix: str,
        *,
        automatic: bool = False,
        rank: int = 0,
        begin_after: int | None = None,
        temporary: bool = False,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        self._path = path
        self._storage = storage
        self._prefix = prefix
        self._automatic = automatic
        self._rank = rank
        self._temporary = temporary
        self._check = check
        self._uploaded: dict[Path, tuple[int, int]] = {}
        # Held while files are written and copied: the thread does so, and checkpoints.
        self._lock = threading.Lock()
        self._events = EventFiles(path, begin_after)
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()
        self._last_problem = ""
        self._pid = os.getpid()
        self._forked = False
        self.logs_metrics = automatic

    def get_path(self) -> Path:
        """The directory to write to; made by the first call."""
        self._path.mkdir(parents=True, exist_ok=True)
        self._start()
        return self._path

    def log(self, group: str, steps: int, metrics: Mapping[str, Any]) -> None:
        """Queue frozen metrics for writing, in the mode AUTO and unless ``logs_metrics`` is off."""
        if self.logs_metrics:
            forked = self._is_forked()
            self._events.add(group, steps, metrics)
            if forked:
                self._events.write()
            elif self._thread is None:
                self._start()

    def _is_forked(self) -> bool:
        if self._pid != os.getpid():
            # The thread is not here, and it may have held the lock.
            self._pid, self._forked = os.getpid(), True
            self._lock, self._thread = threading.Lock(), None
            self._events = self._events.in_fork()
        return self._forked

    def _start(self) -> None:
        if self._is_forked():
            return
        if self._automatic and self._thread is None and not self._stop.is_set():
            self._thread = threading.Thread(
                target=self._run, name="determined-tensorboard", daemon=True
            )
            self._thread.start()

    def _run(self) -> None:
        interval = FIRST_INTERVAL
        while not self._stop.wait(interval):
            self.upload()
            interval = INTERVAL

    def upload(self) -> None:
        """Write and upload the files, in the mode AUTO. Errors are only logged, since charts are not worth
        losing a training.
        """
        if not self._automatic or self._is_forked():
            return
        try:
            with files.explained("write", self._path):
                for writer in list(writers):
                    writer.flush()
            with self._lock:
                self._events.write()
                self._sync(lambda _: True, with_rank, self._rank)
        except errors.StorageError as error:
            if str(error) != self._last_problem:
                logger.warning("TensorBoard files are not uploaded: %s", error)
                self._last_problem = str(error)
        except errors.AllocationEnded:
            # The next report raises it where the training sees it.
            self._stop.set()

    def sync(
        self,
        selector: Callable[[Path], bool] = lambda _: True,
        mangler: Callable[[Path, int], Path] = lambda path, _: path,
        rank: int = 0,
    ) -> None:
        """Upload what changed; both functions get paths relative to the directory.

        Raises errors.StorageError, errors.AllocationEnded.
        """
        self._is_forked()
        with self._lock:
            self._sync(selector, mangler, rank)

    def _sync(
        self,
        selector: Callable[[Path], bool],
        mangler: Callable[[Path, int], Path],
        rank: int,
    ) -> None:
        self._check()
        for path, version in self._versions().items():
            relative = path.relative_to(self._path)
            if self._uploaded.get(path) == version or not selector(relative):
                continue
            self._storage.put(f"{self._prefix}/{mangler(relative, rank).as_posix()}", path)
            self._uploaded[path] = version

    def _versions(self) -> dict[Path, tuple[int, int]]:
        """The files that exist, with (time of change in ns, bytes)."""
        found = {}
        # Its writers may remove files and directories meanwhile.
        with files.explained("read", self._path):
            for path in sorted(self._path.rglob("*")) if self._path.is_dir() else []:
                with contextlib.suppress(OSError):  # a link that leads nowhere
                    stat = path.stat()
                    if S_ISREG(stat.st_mode):
                        found[path] = (stat.st_mtime_ns, stat.st_size)
        return found

    def close(self) -> None:
        """Upload the rest and end the thread; may be called twice. Not for a forked process."""
        if self._is_forked():
            return
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self.upload()
        with self._lock:
            self._events.close()
        self.logs_metrics = False
        if self._temporary:
            shutil.rmtree(self._path, ignore_errors=True)
