"""A command: a program with its arguments, whose exit is the task's end."""

from __future__ import annotations

from determined.expconf.tasks import CommandConfig
from determined_service.lifecycle.kinds.launched import LaunchedKind
from determined_service.state import task_kinds


class Command(LaunchedKind):
    """``det cmd run``."""

    name = task_kinds.COMMAND
    noun = "command"
    title = "Command"
    config_class = CommandConfig
    needs_entrypoint = False
