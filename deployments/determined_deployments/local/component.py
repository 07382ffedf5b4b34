"""A component of the cluster: one long-running process, and how to check that it works."""

from __future__ import annotations

import functools
import hashlib
import json
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from determined.common import installation

StopSignals = tuple[tuple[signal.Signals, float], ...]
"""Signals in order, each with the seconds to wait after it."""

TERMINATE: StopSignals = ((signal.SIGTERM, 15.0),)


@dataclass(frozen=True)
class RunAs:
    """Another user to run as (only root can)."""

    name: str
    uid: int
    gid: int


@dataclass(frozen=True)
class Component:
    """One process. The order of calls, by ``up``: write ``files`` → ``prepare`` → start ``argv`` →
    ``is_ready`` until true → ``established``. Each may happen again after a crash at any point.
    """

    name: str
    argv: tuple[str, ...]
    is_ready: Callable[[], bool]
    """True if the component works now. A process of another cluster must not pass the check. It returns at
    once (a second at most) and never raises for "not yet"."""
    url: str
    port: int | None = None
    """The port where it listens on loopback; None: it does not listen."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Added to the caller's environment."""
    files: Mapping[Path, str] = field(default_factory=dict)
    """Settings files (mode 0600) written before each start."""
    after: tuple[str, ...] = ()
    """Components that must be ready before this one is started."""
    prepare: Callable[[Callable[[str], None]], None] | None = None
    """Makes the things that the process needs (folders, a new database). It gets a function for notes.
    """
    established: Callable[[], None] | None = None
    """Runs once the process is ready, before those that come after it start."""
    stop_signals: StopSignals = TERMINATE
    """The signals that stop it; SIGKILL follows the last one."""
    hands_over: bool = False
    """After SIGKILL what it runs goes on, and the next release's process takes it over."""
    ready_timeout: float = 120.0
    run_as: RunAs | None = None

    @property
    def fingerprint(self) -> str:
        """Of the settings and the release: a running process that has another one must be restarted."""
        parts = [
            list(self.argv),
            sorted(self.env.items()),
            sorted((str(path), text) for path, text in self.files.items()),
        ]
        return f"{hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]}@{_release()}"


@functools.cache
def _release() -> str:
    return installation.release()


def release_of(fingerprint: str) -> str:
    """Empty: one that did not say it."""
    return fingerprint.partition("@")[2]
