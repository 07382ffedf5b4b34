"""``det shell``"""

from __future__ import annotations

from determined.cli.groups import group
from determined.cli.launched.commands import add_commands
from determined.cli.launched.nouns import SHELL

app = group("Shells: terminals on the cluster's machines.", default="list")

add_commands(app, SHELL)
