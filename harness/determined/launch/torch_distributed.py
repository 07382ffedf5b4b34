"""``python3 -m determined.launch.torch_distributed [torchrun options --] script.py args…``

Starts the script once per slot, as torchrun would. With one slot, all that this release trains
with, it runs the script in this very process, with the environment that torchrun sets, so
``DistributedContext.from_torch_distributed()`` and ``torch.distributed.init_process_group()`` work.
"""

from __future__ import annotations

import os
import re
import runpy
import shutil
import socket
import sys
from typing import NoReturn

USAGE = (
    "usage: python3 -m determined.launch.torch_distributed "
    "[TORCHRUN_OPTIONS... --] (--trial MODULE:CLASS | SCRIPT [ARGS...])"
)
_PYTHON = re.compile(r"python[0-9.]*$")


def fail(message: str) -> NoReturn:
    """One line for the user, exit code 1."""
    print(f"error: {message}", file=sys.stderr)
    raise SystemExit(1)


def split_arguments(arguments: list[str]) -> tuple[list[str], list[str]]:
    """(torchrun's options, the script and its arguments): only a ``--`` *before* the script counts."""
    if arguments and arguments[0].startswith("-") and "--" in arguments:
        at = arguments.index("--")
        return arguments[:at], arguments[at + 1 :]
    return [], arguments


def set_environment() -> None:
    """What torchrun tells a single worker."""
    single = {"RANK": 0, "LOCAL_RANK": 0, "GROUP_RANK": 0, "WORLD_SIZE": 1, "LOCAL_WORLD_SIZE": 1}
    os.environ.update({name: str(value) for name, value in single.items()})
    os.environ["USE_TORCH_DISTRIBUTED"] = "True"
    os.environ.setdefault("DET_CHIEF_IP", "127.0.0.1")
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    if "MASTER_PORT" not in os.environ:
        # Trials share machines: a fixed port would meet another trial's.
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            os.environ["MASTER_PORT"] = str(probe.getsockname()[1])


def run(command: list[str]) -> None:
    """Become ``command``: a script or module in this interpreter, anything else by exec."""
    if command[0] == sys.executable or _PYTHON.fullmatch(os.path.basename(command[0])):  # noqa: PTH119
        if command[1:2] == ["-m"] and len(command) > 2:
            sys.argv = command[2:]
            runpy.run_module(command[2], run_name="__main__", alter_sys=True)
            return
        if len(command) > 1 and not command[1].startswith("-"):
            command = command[1:]
    if command[0].endswith(".py"):
        sys.argv = command
        # As `python3 script.py` would: modules beside the script come first.
        sys.path[0] = os.path.dirname(os.path.abspath(command[0]))  # noqa: PTH100, PTH120
        runpy.run_path(command[0], run_name="__main__")
        return
    if shutil.which(command[0]) is None:
        fail(f"there is no program {command[0]!r} to launch")
    os.execvp(command[0], command)


def main(arguments: list[str]) -> None:
    """Launch what the arguments say. Raises SystemExit."""
    options, command = split_arguments(arguments)
    for at, option in enumerate(options):
        name, given, value = option.lstrip("-").replace("-", "_").partition("=")
        value = value if given else "".join(options[at + 1 : at + 2])
        if name in ("nproc_per_node", "nnodes") and value not in ("1", "1:1"):
            fail(f"--{name} {value}: this release trains with one process")
    if command and command[0].partition("=")[0] == "--trial":
        spec = command[0].partition("=")[2] or "".join(command[1:2])
        set_environment()
        from determined.pytorch import _run  # torch takes its time

        _run.run(spec)
        return
    if not command or command[0].startswith("-"):
        fail(f"no script to launch; {USAGE}")
    set_environment()
    run(command)


if __name__ == "__main__":
    main(sys.argv[1:])
