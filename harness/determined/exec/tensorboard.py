"""``python3 -m determined.exec.tensorboard [ARGUMENT...]``: TensorBoard over the files of experiments.

The program of a task of the kind TensorBoard: TensorBoard's own server, and beside it this process, which
copies the files from checkpoint storage as they grow. The service says which: experiments, trials, and how
their storage is opened.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from determined import errors, storage
from determined._info import get_cluster_info
from determined.common import installation
from determined.common.api import Session
from determined.common.api.errors import APIException
from determined.common.forking.process import tied_to_parent
from determined.launch._fail import fail

SOURCES = "/api/v1/tensorboards/{task_id}/sources"
INTERVAL_S = 3.0
"""Between two looks at what grows."""
ENDED_S = 60.0
"""Seconds between two looks at ended experiments: files may still come late, or be deleted."""
LIMIT = 20 << 30
"""Bytes of all copies together."""
KEEP_FREE = 1 << 30
"""So many bytes of the disk stay free."""
STARTS = 5
"""So often a server that ends by itself is started again, at most once in ``AGAIN_S``."""
AGAIN_S = 2.0


def say(words: str) -> None:
    """A line for the task's log."""
    print(words, file=sys.stderr, flush=True)


@dataclass
class Room:
    """The space that copies may still take. ``left``: in bytes. A file without room is reported once."""

    folder: Path
    limit: int = LIMIT
    used: int = 0
    full: bool = False

    def measure(self) -> None:
        self.used = sum(path.stat().st_size for path in self.folder.rglob("*") if path.is_file())

    def admit(self, name: str, more: int) -> bool:
        """Asked by several threads: the sum may be off by what they copy at the same time."""
        free = shutil.disk_usage(self.folder).free - KEEP_FREE
        if more > min(self.limit - self.used, free):
            if not self.full:
                self.full = True
                say(
                    f"warning: {name} and perhaps others are not shown: the copies of TensorBoard files may"
                    f" take {self.limit >> 30} GiB here, and {max(free, 0) >> 30} GiB of the disk are left;"
                    " show fewer experiments or trials"
                )
            return False
        self.used += max(0, more)
        return True


@dataclass
class FileFollower:
    """Copies the files of ``sources`` into ``folder``."""

    folder: Path
    room: Room
    _storages: dict[str, storage.StorageManager] = field(default_factory=dict)
    _due: dict[str, float] = field(default_factory=dict)
    _said: dict[str, str] = field(default_factory=dict)

    def look(self, sources: Sequence[Mapping[str, Any]]) -> None:
        """Copy new data of the sources that are due. A failure is printed, and the copy tried again."""
        wanted = {source["path"] for source in sources}
        for path in [path for path in self._due if path not in wanted]:
            # Its experiment was deleted.
            del self._due[path]
            shutil.rmtree(self.folder / path, ignore_errors=True)
        for source in sources:
            path = source["path"]
            if time.monotonic() < self._due.get(path, 0.0):
                continue
            try:
                self._manager(source["storage"]).fetch(
                    source["key"], self.folder / path, self.room.admit
                )
                self._said.pop(path, None)
            except errors.StorageError as error:
                if self._said.get(path) != str(error):
                    self._said[path] = str(error)
                    say(f"warning: the files of {source['name']} cannot be read now: {error}")
            pause = ENDED_S if source["ended"] else INTERVAL_S
            self._due[path] = time.monotonic() + pause

    def _manager(self, section: Mapping[str, Any]) -> storage.StorageManager:
        known = repr(sorted(section.items()))
        if known not in self._storages:
            self._storages[known] = storage.build(dict(section))
        return self._storages[known]


def command(folder: Path, task_id: str, arguments: Sequence[str]) -> list[str]:
    """TensorBoard's command line."""
    return [
        *(sys.executable, "-P", "-m", "tensorboard.main", f"--logdir={folder}"),
        f"--host={os.environ.get('DET_LISTEN_HOST', '127.0.0.1')}",
        f"--port={os.environ['TENSORBOARD_PORT']}",
        f"--path_prefix=/proxy/{task_id}",
        *(f"--reload_interval={INTERVAL_S:.0f}", "--reload_multifile=true"),
        *arguments,
    ]


class TensorBoardServer:
    """TensorBoard's own process. It needs nothing of the cluster's, so it gets none of its tokens."""

    def __init__(self, argv: Sequence[str]) -> None:
        self._argv = list(argv)
        self._starts = 0
        self._process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        hidden = ("DET_SESSION_TOKEN", "DET_USER_TOKEN")
        environment = {name: value for name, value in os.environ.items() if name not in hidden}
        # Its data server would otherwise compute with as many threads as there are cores.
        environment.setdefault("RAYON_NUM_THREADS", "4")
        self._starts += 1
        return subprocess.Popen(
            self._argv, env=environment, stdin=subprocess.DEVNULL, preexec_fn=tied_to_parent()
        )

    def keep_running(self) -> None:
        """Starts it again if it has ended; ends this process when that does not help."""
        code = self._process.poll()
        if code is None:
            return
        if code == 0 or self._starts >= STARTS:
            say(f"TensorBoard ended (exit code {code})")
            sys.exit(code if code >= 0 else 128 - code)
        say(f"warning: TensorBoard ended (exit code {code}): it is started again")
        time.sleep(AGAIN_S)
        self._process = self._start()


def main(arguments: Sequence[str]) -> None:
    """Serves until the task is ended."""
    info = get_cluster_info()
    if info is None or "TENSORBOARD_PORT" not in os.environ:
        fail("determined.exec.tensorboard runs in tasks only: det tensorboard start EXPERIMENT")
    if importlib.util.find_spec("tensorboard") is None:
        fail(
            f"TensorBoard is not installed where this task runs: {installation.command('tensorboard')} on "
            f"agent {info.agent_id}, or into the image that environment.image names"
        )
    folder = Path(os.environ.get("DET_RUN_DIR") or ".").resolve() / "tensorboard"
    folder.mkdir(parents=True, exist_ok=True)
    room = Room(folder)
    follower = FileFollower(folder, room)
    server = TensorBoardServer(command(folder, info.task_id, arguments))
    session = Session(info.master_url, info.session_token)
    path, problem = SOURCES.format(task_id=info.task_id), ""
    sources: list[dict[str, Any]] = []
    while True:
        server.keep_running()
        try:
            sources = session.get(path)["sources"]
            problem = ""
        except APIException as error:
            # What is known goes on growing while the service is away.
            if str(error) != problem:
                problem = str(error)
                say(f"warning: the service does not say which files to show: {error}")
        room.measure()
        follower.look(sources)
        time.sleep(INTERVAL_S if not all(source["ended"] for source in sources) else ENDED_S / 6)


if __name__ == "__main__":
    main(sys.argv[1:])
