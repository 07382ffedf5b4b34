"""A shell. What it starts (sshd) is not here yet: none can be launched."""

from __future__ import annotations

from determined.expconf.tasks import ShellConfig
from determined_service.lifecycle.kinds.launched import LaunchedKind
from determined_service.state import task_kinds


class Shell(LaunchedKind):
    """``det shell``."""

    name = task_kinds.SHELL
    noun = "shell"
    title = "Shell"
    config_class = ShellConfig
    launches = False
