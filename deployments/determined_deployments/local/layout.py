"""The files of one local cluster."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path

from determined.common import local_cluster


@dataclass(frozen=True)
class Layout:
    """Paths under one data directory."""

    root: Path

    @classmethod
    def of(cls, data_dir: str | os.PathLike[str] | None = None) -> Layout:
        """The layout of ``data_dir``, or of the default (see ``local_cluster.data_dir``)."""
        return cls(local_cluster.data_dir(data_dir))

    @property
    def state(self) -> Path:
        return self.root / local_cluster.FILE_NAME

    @property
    def cluster_config(self) -> Path:
        return self.root / "cluster.yaml"

    @property
    def earlier_config(self) -> Path:
        """The contents of ``cluster_config`` before the change that is being applied; empty: there were
        none."""
        return self.root / "cluster.yaml.before"

    @property
    def lock(self) -> Path:
        return self.root / "run" / "lock"

    @property
    def postgres(self) -> Path:
        return self.root / "postgres"

    @property
    def prefect_home(self) -> Path:
        return self.root / "prefect"

    @property
    def agent_work(self) -> Path:
        return self.root / "agent"

    @property
    def checkpoints(self) -> Path:
        return self.root / "checkpoints"

    def log(self, component: str) -> Path:
        return self.root / "logs" / f"{component}.log"

    def pid_file(self, component: str) -> Path:
        return self.root / "run" / f"{component}.json"

    def create(self) -> None:
        """Makes the folders. Private to the user; as root, others may pass through (not list),
        because Postgres refuses to run as root and needs to reach its own folder."""
        mode = 0o711 if os.geteuid() == 0 else 0o700
        self.root.mkdir(mode=mode, parents=True, exist_ok=True)
        for name in ("run", "logs"):
            (self.root / name).mkdir(mode=0o700, exist_ok=True)
        self.checkpoints.mkdir(mode=0o700, exist_ok=True)
        found = stat.S_IMODE(self.checkpoints.stat().st_mode)
        # Of an earlier release, whose folder everybody could read. With the sticky bit, it was opened on
        # purpose: every account stores there.
        if found & 0o077 and not found & stat.S_ISVTX:
            self.checkpoints.chmod(0o700)


def write_private(path: Path, text: str) -> None:
    """Replaces ``path`` in one step by a file of mode 0600 holding ``text``."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}.new")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
