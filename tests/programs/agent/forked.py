"""Runs in forks of the fork server."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from determined.common.forking import python


def write(order: dict[str, Any]) -> int:
    """Evaluates ``code`` and writes the value to ``path``."""
    Path(order["path"]).write_text(str(eval(order["code"])))
    return 0


def become(order: dict[str, Any]) -> int:
    """Becomes the script ``argv`` with the variables ``env`` in the directory ``workdir``, as a leg's
    training process does."""
    os.chdir(order["workdir"])
    python.run_as_main(
        order["argv"], as_module=False, env=order["env"], base_path=order["base_path"]
    )
