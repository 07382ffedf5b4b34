"""Looks for the programs that some tasks need: programs that this package does not bring, and mounts."""

from __future__ import annotations

import importlib.util
import os
import shutil
import time
from collections.abc import Callable, Mapping

from determined.common import installation
from determined.common.wire import agents, shells
from determined_tasks import mounts

LOOK_SECONDS = 60.0
_EXTRAS = {agents.JUPYTERLAB: "notebook", agents.TENSORBOARD: "tensorboard"}


def missing() -> dict[str, str]:
    """Programs that are not installed where the agent's tasks run, and what installs each."""
    found = {
        module: installation.command(extra)
        for module, extra in _EXTRAS.items()
        if importlib.util.find_spec(module) is None
    }
    path = os.pathsep.join([os.environ.get("PATH", ""), shells.SSHD_FOLDERS])
    if not all(shutil.which(name, path=path) for name in shells.SSHD_PROGRAMS):
        found[agents.SSHD] = "install the machine's package openssh-server"
    return found


def lacking() -> dict[str, str]:
    """:func:`missing`, and why nothing can be mounted, if nothing can."""
    found = missing()
    refusal = mounts.refused()
    if refusal is not None:
        found[agents.MOUNTS] = refusal
    return found


class ProgramWatch:
    """Which programs are missing, told to the service again when that has changed: they are installed while
    the agent runs, and a task finds them at once."""

    def __init__(self, look: Callable[[], dict[str, str]]) -> None:
        self._look = look
        self._look_at = 0.0
        self._told: Mapping[str, str] | None = None

    def registered(self, lacks: Mapping[str, str]) -> None:
        """The service has these, of the registration."""
        self._told = {name: how for name, how in lacks.items() if name in agents.PROGRAMS}
        self._look_at = time.monotonic() + LOOK_SECONDS

    def untold(self) -> dict[str, str] | None:
        """Those that are missing now; None: they were not looked for, or the service knows it."""
        if time.monotonic() < self._look_at:
            return None
        self._look_at = time.monotonic() + LOOK_SECONDS
        found = self._look()
        return None if found == self._told else found

    def told(self, found: Mapping[str, str] | None) -> None:
        """The service has these, of :meth:`untold`."""
        if found is not None:
            self._told = found
