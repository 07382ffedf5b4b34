"""``python -m determined_deployments.agent.launchers.call FILE``: makes the call that FILE describes.

FILE is JSON: ``function`` (``module:function``) and ``argument``. The exit code is what the function
returns. For launchers whose jobs are programs: of this machine, of a container.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
from pathlib import Path
from types import FrameType

ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)


def main(path: str) -> int:
    if os.getpid() == 1:
        # The kernel drops the signals that a container's first process does not handle.
        for number in ENDING:
            signal.signal(number, _end)
    order = json.loads(Path(path).read_text())
    # Without the current directory, which `-m` puts in front.
    sys.path[:] = sys.path if sys.flags.safe_path else sys.path[1:]
    module, _, function = order["function"].partition(":")
    argument = {**order["argument"], "base_path": list(sys.path)}
    result = getattr(importlib.import_module(module), function)(argument)
    return result if isinstance(result, int) else 0


def _end(number: int, frame: FrameType | None) -> None:
    """The kernel's default for the signal, until the call handles the signal itself."""
    os._exit(128 + number)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
