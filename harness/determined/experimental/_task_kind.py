"""The kinds of task; imported wherever `det` names one, so nothing else is here."""

from __future__ import annotations

from enum import Enum


class TaskKind(Enum):
    """The kinds of task that people launch."""

    COMMAND = "command"
    NOTEBOOK = "notebook"
    SHELL = "shell"
    TENSORBOARD = "tensorboard"

    @property
    def plural(self) -> str:
        """Its name in addresses and lists."""
        return f"{self.value}s"
