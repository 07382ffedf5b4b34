"""A local cluster's directory, and its output to the user, for tests without the whole cluster."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from determined_deployments.local import cluster_down
from determined_deployments.local import state as states
from determined_deployments.local.layout import Layout
from determined_deployments.local.report import Silent
from determined_deployments.local.state import ClusterState


class Notes(Silent):
    """Keeps the lines a user would see."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def note(self, text: str) -> None:
        self.lines.append(text)

    def done(self, component: str, what: str, seconds: float | None = None) -> None:
        self.lines.append(f"{component} {what}")

    def has(self, text: str) -> bool:
        return any(text in line for line in self.lines)


@contextlib.contextmanager
def plain_layout(folder: Path, **fields: Any) -> Iterator[Layout]:
    """A new cluster's directory below ``folder``; its processes are ended afterwards."""
    made = Layout.of(folder / "plain")
    made.create()
    cluster_id = f"test-{os.getpid()}-{time.time_ns()}"
    states.save(made, ClusterState(cluster_id=cluster_id, **fields))
    yield made
    cluster_down(made.root)


def marker(layout: Layout) -> str:
    state = states.load(layout)
    assert state is not None
    return state.marker
