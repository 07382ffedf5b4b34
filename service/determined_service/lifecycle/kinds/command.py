"""A command: a program with its arguments, whose exit is the task's end."""

from __future__ import annotations

from determined.common.wire.kinds import TaskKind
from determined.expconf.tasks import CommandConfig
from determined_service.lifecycle.kinds.launched import LaunchedKind


class CommandKind(LaunchedKind):
    """``det cmd run``."""

    name, noun = TaskKind.COMMAND.name, TaskKind.COMMAND.value
    title = "Command"
    config_class = CommandConfig
    needs_entrypoint = False
