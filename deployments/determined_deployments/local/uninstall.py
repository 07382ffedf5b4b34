"""Removes a local cluster with all files that it has written, and lists those that it leaves.

Only names that the cluster itself makes are removed: what else lies in its folder stays, and is named.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import yaml

from determined.common.api.token_store import TokenStore, config_dir
from determined_deployments.local import daemon, lock, postgres_user
from determined_deployments.local import state as states
from determined_deployments.local.down import cluster_down
from determined_deployments.local.errors import ClusterError
from determined_deployments.local.layout import Layout
from determined_deployments.local.plan import ALL
from determined_deployments.local.report import ClusterReporter

_PARTS = {
    "postgres": "experiments, metrics, models and users",
    "checkpoints": "checkpoints, TensorBoard files, the files of notebooks; also checkpoints of scripts that"
    " ran here without a cluster",
    "prefect": "Prefect's home",
    "agent": "what trials and tasks wrote on this machine",
    "logs": "the logs of the cluster's own processes",
    "run": "pid files",
    "cluster.yaml": "the cluster configuration",
    "cluster.yaml.before": "an earlier cluster configuration",
    "service.json": "settings of the service",
    "agent.json": "settings of the agent",
    "cluster.json": "addresses and passwords",
}
"""The files that a cluster writes into its folder, in the order in which they are removed."""
KEPT = "checkpoints"
_OF_OTHERS = {
    ".prefect": "Prefect",
    ".mlflow": "MLflow",
    ".jupyter": "Jupyter",
    ".ipython": "IPython",
    ".local/share/jupyter": "Jupyter",
}
"""Files that libraries write into the home directory."""


@dataclass(frozen=True)
class Removable:
    """A file or folder that is removed. ``size`` in bytes."""

    path: Path
    what: str
    size: int


@dataclass(frozen=True)
class Left:
    """Something that stays: whose it is, and how it is removed."""

    name: str
    why: str
    command: str


@dataclass(frozen=True)
class Removal:
    """``parts`` and ``logins`` (of which users a token is kept) go; ``left`` stays."""

    root: Path
    parts: list[Removable]
    master_url: str
    logins: list[str]
    database: str
    left: list[Left]

    @property
    def is_empty(self) -> bool:
        return not self.parts and not self.logins


def plan(
    data_dir: str | os.PathLike[str] | None = None, *, keep_checkpoints: bool = False
) -> Removal:
    """Plan an :func:`uninstall`; changes nothing. Raises ClusterError for a damaged record."""
    layout = Layout.of(data_dir)
    state = states.load(layout) if layout.root.exists() else None
    found = {
        name: Removable(layout.root / name, what, _size(layout.root / name))
        for name, what in _PARTS.items()
        if (layout.root / name).exists()
    }
    kept = found.pop(KEPT, None) if keep_checkpoints else None
    url = state.master_url if state else ""
    return Removal(
        layout.root,
        list(found.values()),
        url,
        TokenStore().users(url) if url else [],
        "prefect and determined" if state and state.external_db_url else "",
        [*_left(layout, kept, url)],
    )


def uninstall(removal: Removal, reporter: ClusterReporter) -> None:
    """Ends the cluster and removes what ``removal`` says. Raises ClusterError."""
    store = TokenStore()
    for user in removal.logins:
        store.drop(removal.master_url, user)
    if not removal.root.exists():
        return
    layout = Layout.of(removal.root)
    cluster_down(layout.root, delete_db=True, reporter=reporter)
    with lock.held(layout.lock, reporter.note):
        begun = [name for name in ALL if daemon.running(layout, name)]
        if begun:
            raise ClusterError(f"{begun[0]} was started meanwhile in {layout.root}: try again")
        for part in removal.parts:
            _remove(part.path)
        # Its lock goes with it: a waiting command finds no cluster any more.
        _remove(layout.lock.parent)
        with contextlib.suppress(OSError):  # something else is in it, which stays
            layout.root.rmdir()


def _remove(path: Path) -> None:
    try:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
    except FileNotFoundError:
        pass
    except OSError as error:
        raise ClusterError(f"{path} cannot be removed: {error}") from error


def _size(path: Path) -> int:
    """Bytes of the files below."""
    if path.is_symlink() or not path.is_dir():
        return path.lstat().st_size
    total = 0
    for folder, _, names in os.walk(path):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                total += Path(folder, name).lstat().st_size
    return total


def _left(layout: Layout, kept: Removable | None, url: str) -> Iterator[Left]:
    if kept is not None:
        yield Left(str(kept.path), "as --keep-checkpoints says", _rm(kept.path))
    if (elsewhere := _storage_elsewhere(layout)) is not None:
        yield elsewhere
    if layout.root.exists():
        for path in sorted(layout.root.iterdir()):
            if path.name not in _PARTS:
                yield Left(str(path), "no cluster has made it", _rm(path))
    if url and any((config_dir() / "ssh").glob("*.conf")):
        why = "shells that ssh knows (det shell config-ssh)"
        yield Left(str(config_dir() / "ssh"), why, f"det -m {url} shell config-ssh --remove")
    for name, whose in _OF_OTHERS.items():
        path = Path.home() / name
        if path.exists():
            why = f"{whose}'s own: also of other programs that use {whose}"
            yield Left(str(path), why, _rm(path))
    for path in sorted({Path.home() / "mlruns", Path.cwd() / "mlruns"}):
        if path.is_dir():
            why = "MLflow's own: runs of scripts that logged without a server"
            yield Left(str(path), why, _rm(path))
    if postgres_user.is_made():
        user = postgres_user.USER
        yield Left(f"the account {user}", "Postgres ran as it", f"userdel {user}")
    yield Left(
        "the package determined-prefect", "installed by pip", "pip uninstall determined-prefect"
    )


def _storage_elsewhere(layout: Layout) -> Left | None:
    """The checkpoint storage that the cluster configuration names."""
    try:
        given = yaml.safe_load(layout.cluster_config.read_text())
        storage = given["checkpoint_storage"]
        where = " ".join(
            str(storage[key])
            for key in ("type", "bucket", "container", "host_path", "storage_path", "prefix")
            if storage.get(key)
        )
    except (OSError, yaml.YAMLError, KeyError, TypeError, AttributeError):
        return None
    return Left(
        f"the checkpoint storage {where}", "cluster.yaml names it", "remove its files there"
    )


def _rm(path: Path) -> str:
    return f"rm -r {shlex.quote(str(path))}"
