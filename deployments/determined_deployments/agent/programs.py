"""What some tasks need of this machine, looked for: programs that this package does not bring, and mounts."""

from __future__ import annotations

import importlib.util
import os
import shutil

from determined.common import installation
from determined.common.wire import agents, shells
from determined_tasks import mounts

_EXTRAS = {agents.JUPYTERLAB: "notebook", agents.TENSORBOARD: "tensorboard"}


def lacking() -> dict[str, str]:
    """Those that are not installed where the agent's tasks run, and what installs each; and why nothing can
    be mounted, if nothing can."""
    found = {
        module: installation.command(extra)
        for module, extra in _EXTRAS.items()
        if importlib.util.find_spec(module) is None
    }
    path = os.pathsep.join([os.environ.get("PATH", ""), shells.SSHD_FOLDERS])
    if not all(shutil.which(name, path=path) for name in shells.SSHD_PROGRAMS):
        found[agents.SSHD] = "install the machine's package openssh-server"
    refusal = mounts.refused()
    if refusal is not None:
        found[agents.MOUNTS] = refusal
    return found
