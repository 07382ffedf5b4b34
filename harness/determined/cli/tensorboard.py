"""``det tensorboard``"""

from __future__ import annotations

from determined.cli.groups import group
from determined.cli.launched.commands import add_commands
from determined.cli.launched.nouns import TENSORBOARD

app = group("TensorBoards: the curves of experiments and trials.", default="list")

add_commands(app, TENSORBOARD)
