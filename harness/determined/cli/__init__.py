"""``det``, the command line."""

import os
import sys
from pathlib import Path


def main() -> None:
    """The console script; exits the process."""
    _open_streams()
    from determined.cli.following.interrupt import interrupt_once

    interrupt_once()  # before the imports, which take longest
    from determined.common.wire import no_telemetry

    no_telemetry.forbid()  # also for what this starts: the components of a cluster, agents
    from determined.cli.root import app

    app()


def _open_streams() -> None:
    """Opens the standard streams that whoever started this closed, as cron's jobs and daemons do.

    Without a reader what is said goes nowhere, and no file or connection gets the number of a stream.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open(mode, encoding="utf-8"))  # noqa: SIM115
