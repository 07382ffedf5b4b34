"""``python3 -m determined.launch.deepspeed [deepspeed options --] script.py args…``

Becomes DeepSpeed's launcher, which starts the script once per GPU of the trial, on one machine; what each
process prints has its rank in front.
"""

from __future__ import annotations

import os
import sys

from determined.launch import _command
from determined.launch._fail import fail

USAGE = "usage: python3 -m determined.launch.deepspeed [DEEPSPEED_OPTIONS... --] SCRIPT [ARGS...]"


def command_line(program: str, options: list[str], script: list[str]) -> list[str]:
    """What is executed; the user's ``options`` come last, and win."""
    launcher = ["--master_addr", "localhost", "--no_python", "--no_local_rank", "--no_ssh_check"]
    return [program, *launcher, *options, *_command.wrapped("RANK", script)]


def main(arguments: list[str]) -> None:
    """Raises SystemExit."""
    options, script = _command.split_arguments(arguments)
    if not script or script[0].startswith("-"):
        fail(f"no script to launch; {USAGE}")
    program = _command.find_program("deepspeed", "deepspeed")
    _command.slots_of_one_machine("deepspeed")
    os.environ["USE_DEEPSPEED"] = "1"
    os.environ.setdefault("DET_CHIEF_IP", "127.0.0.1")
    _command.become(command_line(program, options, script))


if __name__ == "__main__":
    main(sys.argv[1:])
