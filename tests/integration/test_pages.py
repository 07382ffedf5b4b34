"""The book's pages work as printed: each block, in the page's order, for a reader who has run `make run`."""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import installed, page_session, ssh_server
from tests.local_cluster import LocalCluster
from tests.memory_folder import memory_folder
from tests.printed import ROOT, blocks

LIMIT_S = 900
FOLDERS = ("start", "train", "search", "look", "automate", "sit-down", "operate")
TASKS = ("command", "notebook", "shell", "tensorboard")

ITS_OWN = {
    "start/five-minutes.md": "ends the cluster",
    "look/job-queue.md": "names experiments by their numbers",
    "sit-down/dev.md": "names trials by their numbers",
    "operate/local-cluster.md": "ends the cluster",
    "operate/cluster-config.md": "changes the cluster's configuration",
}
"""The pages that are tried on another cluster than all others, and why."""


def _names() -> list[str]:
    docs = ROOT / "docs"
    pages = sorted(page for folder in FOLDERS for page in (docs / folder).glob("*.md"))
    # A page on which nothing runs would cost a copy of the tree, and say nothing.
    return [
        page.relative_to(docs).as_posix() for page in pages if any(b.runs for b in blocks(page))
    ]


def _after_make_run(cluster: LocalCluster) -> LocalCluster:
    """Experiment 1 is the search of `make run`, as pages have it."""
    digits = str(ROOT / "examples/digits")
    cluster.det("flow", "run", f"{digits}/random.yaml", digits)
    return cluster


@pytest.fixture(scope="module")
def shared() -> Iterator[LocalCluster]:
    with LocalCluster.running(torch=True) as cluster:
        yield _after_make_run(cluster)


@pytest.fixture
def folder() -> Iterator[Path]:
    with memory_folder("determined-page-") as name:
        (Path(name) / "home/.local/share").mkdir(parents=True)
        yield Path(name)


def _ssh_with_this_home(checkout: Path) -> None:
    """ssh and scp look for their configuration in the account's home; HOME has no effect."""
    for program in ("ssh", "scp"):
        path = checkout / ".venv/bin" / program
        path.write_text(
            "#!/bin/sh\n"
            '[ ! -e "$HOME/.ssh/config" ] || set -- -F "$HOME/.ssh/config" "$@"\n'
            f'exec {shutil.which(program)} "$@"\n'
        )
        path.chmod(0o755)


@contextlib.contextmanager
def _ended(cluster: LocalCluster) -> Iterator[None]:
    """Programs that a page has left running take no slots from the next one, its workspaces no names."""
    before = {workspace["name"] for workspace in cluster.json("workspace", "list")}
    try:
        yield
    finally:
        cluster.det("experiment", "kill", "--all", "--yes", check=False)
        for kind in TASKS:
            ids = [task["id"] for task in cluster.json(kind, "list") if not task.get("endTime")]
            if ids:
                cluster.det(kind, "kill", *ids, check=False)
        for name in {workspace["name"] for workspace in cluster.json("workspace", "list")} - before:
            cluster.det("workspace", "delete", "--yes", name)


@pytest.mark.timeout(LIMIT_S)
@pytest.mark.parametrize("name", _names())
def test_a_page_works_as_printed(name: str, folder: Path, request: pytest.FixtureRequest) -> None:
    if name == "sit-down/shells.md":
        ssh_server.require()
        if why := installed.from_debian(["rsync"], ["rsync"]):
            pytest.skip(why)
    checkout, home = folder / "checkout", folder / "home"
    data = home / ".local/share/determined"
    page_session.clone(checkout)
    if name == "sit-down/shells.md":
        _ssh_with_this_home(checkout)
    env = page_session.environment(home, checkout)
    with contextlib.ExitStack() as stack:
        if name in ITS_OWN:
            cluster = LocalCluster(data, env)
            stack.callback(cluster.end)
            cluster.up()
            _after_make_run(cluster)
        else:
            cluster = request.getfixturevalue("shared")
            data.symlink_to(cluster.data_dir)
            stack.enter_context(_ended(cluster))
        record = json.loads((data / "cluster.json").read_text())
        names = {
            page_session.ADDRESS: record["master_url"],
            f"{page_session.HOME}/.local/share/determined": str(cluster.data_dir),
            page_session.HOME: str(home),
            f"agent {page_session.MACHINE}": f"agent {socket.gethostname()}",
        }
        page_session.run(checkout / "docs" / name, checkout, folder, env, names)
