"""``python3 -m determined.launch.deepspeed [deepspeed options --] script.py args…``, or
``… --trial MODULE:CLASS``.

Becomes DeepSpeed's launcher, which starts the script once per GPU of the trial, on one machine; what each
process prints has its rank in front.
"""

from __future__ import annotations

import os
import sys

from determined.constants import COMM_PORT_VARIABLE
from determined.launch import _command, _ports
from determined.launch._fail import fail
from determined.launch._torch_gang import share_threads

USAGE = (
    "usage: python3 -m determined.launch.deepspeed "
    "[DEEPSPEED_OPTIONS... --] (--trial MODULE:CLASS | SCRIPT [ARGS...])"
)


def command_line(program: str, port: int, options: list[str], script: list[str]) -> list[str]:
    """The command to execute. The user's ``options`` come last, so they win."""
    launcher = ["--master_addr", "localhost", "--master_port", str(port)]
    launcher += ["--no_python", "--no_local_rank", "--no_ssh_check"]
    return [program, *launcher, *options, *_command.wrapped("RANK", script)]


def main(arguments: list[str]) -> None:
    """Raises SystemExit."""
    options, script = _command.split_arguments(arguments)
    script = _command.of_trial_class(script) or script
    if not script or script[0].startswith("-"):
        fail(f"no script was given to launch; {USAGE}")
    program = _command.find_program("deepspeed", "deepspeed")
    slots = _command.slots_of_one_machine("deepspeed")
    os.environ["USE_DEEPSPEED"] = "1"
    os.environ.setdefault("DET_CHIEF_IP", "127.0.0.1")
    # How many processes are wanted where there is no GPU to count.
    os.environ.setdefault("LOCAL_SIZE", str(slots))
    share_threads(slots)
    # DeepSpeed's own port is the same for all trials of a machine. These are free as long as this
    # program has not become DeepSpeed's.
    with _ports.reserve() as comm, _ports.reserve() as master:
        os.environ[COMM_PORT_VARIABLE] = str(_ports.port_of(comm))
        _command.become(command_line(program, _ports.port_of(master), options, script))


if __name__ == "__main__":
    main(sys.argv[1:])
