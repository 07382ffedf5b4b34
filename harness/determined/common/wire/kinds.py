"""The kinds of task that people launch: their names, which `det`, the SDK, the service and flows share."""

from __future__ import annotations

from enum import Enum


class TaskKind(Enum):
    """A kind of task that people launch.

    Attributes:
        title: for people. group: the group of `det`. command: how one is launched.
    """

    title: str
    group: str
    command: str

    def __new__(cls, value: str, title: str, group: str, command: str) -> TaskKind:
        kind = object.__new__(cls)
        kind._value_ = value
        kind.title, kind.group, kind.command = title, group, f"det {group} {command}"
        return kind

    COMMAND = "command", "command", "cmd", "run"
    NOTEBOOK = "notebook", "notebook", "notebook", "start"
    SHELL = "shell", "shell", "shell", "start"
    TENSORBOARD = "tensorboard", "TensorBoard", "tensorboard", "start"

    @property
    def plural(self) -> str:
        """Its name in addresses and lists."""
        return f"{self.value}s"


GENERIC = "generic"
"""A generic task, which has its own routes and verbs."""
