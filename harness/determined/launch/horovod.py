"""``python3 -m determined.launch.horovod [--autohorovod] [horovodrun options --] script.py args…``

Becomes horovodrun, which starts the script once per slot of the trial, on one machine; what each
process prints has its rank in front. With ``--autohorovod`` a trial of one slot runs the script itself.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Any

from determined._experiment_config import ExperimentConfig
from determined._info import get_cluster_info
from determined.launch import _command
from determined.launch._fail import fail

USAGE = (
    "usage: python3 -m determined.launch.horovod [--autohorovod] "
    "[HOROVODRUN_OPTIONS... --] SCRIPT [ARGS...]"
)
SSH_PORT = 12350
START_TIMEOUT_S = 1200
GLOO_TIMEOUT_S = 240
RANKS = "HOROVOD_RANK,OMPI_COMM_WORLD_RANK,PMI_RANK"


def command_line(
    program: str,
    slots: int,
    optimizations: Mapping[str, Any],
    options: list[str],
    script: list[str],
) -> list[str]:
    """The command to execute. ``optimizations`` is that section of the configuration. The user's
    ``options`` come last, so they win.
    """

    def setting(name: str, default: int) -> str:
        value = optimizations.get(name)
        return str(default if value is None else value)

    launcher = {
        "-np": str(slots),
        "-p": os.environ.get("DTRAIN_SSH_PORT", str(SSH_PORT)),
        "-H": f"localhost:{slots}",
        "--start-timeout": str(START_TIMEOUT_S),
        "--gloo-timeout-seconds": str(GLOO_TIMEOUT_S),
    }
    words = [program, *(word for option in launcher.items() for word in option)]
    if optimizations.get("auto_tune_tensor_fusion"):
        words.append("--autotune")
    else:
        words += ["--fusion-threshold-mb", setting("tensor_fusion_threshold", 64)]
        words += ["--cycle-time-ms", setting("tensor_fusion_cycle_time", 1)]
        words += ["--cache-capacity", "1024"]
        words += ["--no-hierarchical-allreduce", "--no-hierarchical-allgather"]
    return [*words, *options, *_command.wrapped(RANKS, script)]


def main(arguments: list[str]) -> None:
    """Raises SystemExit."""
    automatic = arguments[:1] == ["--autohorovod"]
    options, script = _command.split_arguments(arguments[automatic:])
    if not script or script[0].startswith("-"):
        fail(f"no script was given to launch; {USAGE}")
    slots = _command.slots_of_one_machine("horovod")
    os.environ.setdefault("DET_CHIEF_IP", "127.0.0.1")
    if automatic and slots == 1:
        _command.become([sys.executable, *script] if script[0].endswith(".py") else script)
    program = _command.find_program("horovodrun", "horovod")
    info = get_cluster_info()
    assert info is not None  # there are slots
    config = ExperimentConfig(info.trial._config) if info.task_type == "TRIAL" else None
    optimizations = config.get_optimizations_config() if config is not None else {}
    os.environ["USE_HOROVOD"] = "1"
    _command.become(command_line(program, slots, optimizations, options, script))


if __name__ == "__main__":
    main(sys.argv[1:])
