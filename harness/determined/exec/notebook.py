"""``python3 -m determined.exec.notebook``: JupyterLab in a task of the kind notebook.

Beside JupyterLab's own server this process keeps the files of the working directory in the cluster's
checkpoint storage (:mod:`determined.exec._kept_files`), and tells the service whether anybody uses the
notebook.
"""

from __future__ import annotations

import datetime
import importlib.util
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from determined import errors, storage
from determined._info import ClusterInfo, get_cluster_info
from determined.common import installation
from determined.common.api import Session
from determined.common.api.errors import APIException, ForbiddenException, NotFoundException
from determined.common.forking.process import tied_to_parent
from determined.exec._kept_files import KeptFiles
from determined.launch._fail import fail

LOOK_S = 5.0
"""Between two looks at the files, and at who uses it."""
TELL_S = 60.0
"""Seconds after which the service is told again whether the notebook is used."""
RECENT_S = 2 * LOOK_S
_HOST = "127.0.0.1"


def say(words: str) -> None:
    """A line for the task's log."""
    print(words, file=sys.stderr, flush=True)


def command(task_id: str, directory: Path) -> list[str]:
    """JupyterLab's command line. Its token is in the environment, which other accounts cannot read."""
    options = {
        "ServerApp.ip": os.environ.get("DET_LISTEN_HOST", _HOST),
        "ServerApp.port": os.environ["NOTEBOOK_PORT"],
        "ServerApp.port_retries": "0",
        "ServerApp.base_url": f"/proxy/{task_id}/",
        "ServerApp.root_dir": str(directory),
        "ServerApp.open_browser": "False",
        "ServerApp.allow_root": "True",
        # It is asked by the task's own host name; the proxy has checked who asks.
        "ServerApp.allow_remote_access": "True",
        "ServerApp.quit_button": "False",
        "LabApp.check_for_updates_class": "jupyterlab.NeverCheckForUpdate",
        "LabApp.extension_manager": "readonly",
        # Over sockets that other accounts cannot open: a process that reaches a kernel's port can read its
        # output.
        "KernelManager.transport": "ipc",
    }
    arguments = [f"--{name}={value}" for name, value in options.items()]
    return [sys.executable, "-P", "-m", "determined.exec._jupyterlab", *arguments]


def is_used(
    kind: str,
    kernels: Sequence[Mapping[str, Any]],
    terminals: Sequence[Mapping[str, Any]],
    now: datetime.datetime,
) -> bool:
    """True if a notebook with these kernels and terminals is in use, by ``notebook_idle_type``."""
    if kind == "kernel_connections":
        return any(kernel.get("connections") for kernel in kernels)
    if kind == "activity":
        if any(kernel.get("execution_state") == "busy" for kernel in kernels):
            return True
        last = [
            datetime.datetime.fromisoformat(str(one["last_activity"]))
            for one in (*kernels, *terminals)
        ]
        return any((now - moment).total_seconds() < RECENT_S for moment in last)
    return bool(kernels or terminals)


class NotebookUse:
    """Tells the service whether the notebook is used."""

    def __init__(self, session: Session, info: ClusterInfo, token: str) -> None:
        self._session = session
        self._path = f"/api/v1/notebooks/{info.task_id}/report_idle"
        self._kind = os.environ.get("DET_NOTEBOOK_IDLE_TYPE", "kernels_or_terminals")
        host = os.environ.get("DET_LISTEN_HOST", _HOST)
        self._login = {"Authorization": f"token {token}"}
        self._jupyter = Session(
            f"http://{_HOST if host == '0.0.0.0' else host}:{os.environ['NOTEBOOK_PORT']}"
            f"/proxy/{info.task_id}/api",
            timeout=LOOK_S,
            max_retries=0,
        )
        self._said: bool | None = None
        self._told = 0.0

    def look(self) -> None:
        """Nothing is told while JupyterLab starts, or cannot be asked."""
        try:
            kernels, terminals = self._ask("kernels"), self._ask("terminals")
        except APIException:
            return
        used = is_used(self._kind, kernels, terminals, datetime.datetime.now(datetime.UTC))
        if used == self._said and time.monotonic() - self._told < TELL_S:
            return
        try:
            self._session.put(self._path, json={"idle": not used})
        except APIException:
            return  # the next look tells it
        self._said, self._told = used, time.monotonic()

    def _ask(self, what: str) -> list[dict[str, Any]]:
        # This question must not itself count as activity.
        asked = {"no_track_activity": "1"}
        try:
            return list(self._jupyter.get(f"/{what}", params=asked, headers=self._login))
        except NotFoundException:
            return []  # it has no terminals


def _places(session: Session, info: ClusterInfo) -> dict[str, Any]:
    """The storage of the files, and the archive this notebook starts from."""
    try:
        return dict(session.get(f"/api/v1/notebooks/{info.task_id}/files"))
    except APIException as error:
        say(f"warning: the files of this notebook are not kept after its end: {error}")
        return {"storage": None, "restore": ""}


def _asking(session: Session, info: ClusterInfo) -> Callable[[int], str | None]:
    """A function that asks the service whether that many bytes may be kept; it counts all notebooks of the
    owner. It returns the refusal, empty: they may be kept, None: the service did not answer."""

    def refusal(size: int) -> str | None:
        try:
            session.put(f"/api/v1/notebooks/{info.task_id}/files", json={"bytes": size})
        except ForbiddenException as error:
            return str(error)
        except APIException:
            # The service is away (or too old to count): keeping the user's files matters more.
            return None
        return ""

    return refusal


def _files(
    given: Mapping[str, Any], directory: Path, refusal: Callable[[int], str | None]
) -> KeptFiles | None:
    """Restore an earlier notebook's files into ``directory``. Returns None if this notebook keeps nothing."""
    if given["storage"] is None:
        return None
    try:
        kept = KeptFiles(storage.build(given["storage"]), given["key"], directory, say, refusal)
        if given["restore"]:
            kept.restore(given["restore"])
        return kept
    except errors.StorageError as error:
        if given["restore"]:
            fail(f"the files of the earlier notebook cannot be read: {error}")
        say(f"warning: the files of this notebook are not kept after its end: {error}")
        return None


def _with(name: str, folder: str, *more: Path) -> str:
    """The paths in a variable, and the interpreter's own."""
    found = [os.environ.get(name, ""), str(Path(sys.prefix) / folder), *map(str, more)]
    return os.pathsep.join(filter(None, found))


def _settings(folder: Path) -> Path:
    """A directory of settings for JupyterLab's page: it asks nobody for leave to fetch news of Jupyter's."""
    page = folder / "labconfig/page_config.json"
    page.parent.mkdir(parents=True, exist_ok=True)
    off = {"@jupyterlab/apputils-extension:announcements": True}
    page.write_text(json.dumps({"disabledExtensions": off}))
    return folder


def main() -> None:
    """Serves until the task is ended."""
    info = get_cluster_info()
    token = os.environ.pop("DET_NOTEBOOK_TOKEN", "")
    if info is None or not token or "NOTEBOOK_PORT" not in os.environ:
        fail("determined.exec.notebook runs in tasks only: det notebook start")
    if importlib.util.find_spec("jupyterlab") is None:
        fail(
            f"JupyterLab is not installed where this task runs: {installation.command('notebook')} on "
            f"agent {info.agent_id}, or into the image that environment.image names"
        )
    directory = Path.cwd()
    session = Session(info.master_url, info.session_token)
    given, refusal = _places(session, info), _asking(session, info)
    # The page shows them from the beginning.
    kept = _files(given, directory, refusal) if given["restore"] else None
    # Of the task alone, as its path is short: those of sockets have to be.
    runtime = Path(os.environ.get("TMPDIR") or os.environ["DET_RUN_DIR"]).resolve() / "jupyter"
    settings = _settings(runtime / "settings")
    environment = {
        **os.environ,
        # Otherwise the directory of packages that the notebook installs replaces the interpreter's own, and
        # packages installed in the interpreter are not found.
        "JUPYTER_CONFIG_PATH": _with("JUPYTER_CONFIG_PATH", "etc/jupyter", settings),
        "JUPYTER_PATH": _with("JUPYTER_PATH", "share/jupyter"),
        "JUPYTER_TOKEN": token,
        "JUPYTER_RUNTIME_DIR": str(runtime),
        "SHELL": os.environ.get("SHELL", "/bin/bash"),
    }
    jupyter = subprocess.Popen(
        command(info.task_id, directory),
        env=environment,
        stdin=subprocess.DEVNULL,
        preexec_fn=tied_to_parent(),
    )
    if not given["restore"]:
        # Beside JupyterLab's start: a storage's library takes a while to import.
        kept = _files(given, directory, refusal)
    use = NotebookUse(session, info, token)
    while True:
        try:
            code = jupyter.wait(LOOK_S)
        except subprocess.TimeoutExpired:
            code = None
        if kept is not None:
            kept.save()
        if code is not None:
            say(f"JupyterLab ended (exit code {code})")
            sys.exit(code if code >= 0 else 128 - code)
        use.look()


if __name__ == "__main__":
    main()
