"""``python3 -m determined.launch.torch_distributed [torchrun options --] script.py args…``

Starts the script once per slot of the trial (``--nproc_per_node`` says otherwise), by torchrun, on one
machine; what each process prints has its rank in front, and when one fails the others are ended. With
one slot it runs the script in this very process, with the environment that torchrun sets. Either way
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

from determined._info import get_cluster_info
from determined.launch._fail import fail

USAGE = (
    "usage: python3 -m determined.launch.torch_distributed "
    "[TORCHRUN_OPTIONS... --] (--trial MODULE:CLASS | SCRIPT [ARGS...])"
)
_PYTHON = re.compile(r"python[0-9.]*$")


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
        os.environ["MASTER_PORT"] = str(free_port())


def free_port() -> int:
    """Trials share machines: a fixed port would meet another trial's."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def worker_count(options: list[str]) -> int:
    """How many processes torchrun's ``options`` ask for, else one per slot. Raises SystemExit."""
    count = None
    for at, option in enumerate(options):
        name, given, value = option.lstrip("-").replace("-", "_").partition("=")
        value = value if given else "".join(options[at + 1 : at + 2])
        if name == "nnodes" and value not in ("1", "1:1"):
            fail(f"--nnodes {value}: a trial trains on one machine in this release")
        if name == "nproc_per_node":
            if not value.isdecimal() or int(value) < 1:
                fail(f"--nproc_per_node must be a number of processes, found {value!r}")
            count = int(value)
    if count is None:
        info = get_cluster_info()
        count = max(len(info.slot_ids), 1) if info is not None else 1
    return count


def torchrun(count: int, options: list[str], command: list[str]) -> NoReturn:
    """Becomes torchrun, which starts ``command`` in ``count`` processes."""
    python = sys.executable
    os.environ["USE_TORCH_DISTRIBUTED"] = "True"
    os.environ.setdefault("DET_CHIEF_IP", "127.0.0.1")
    # Of the whole trial, on the cluster: each process has its share of the cores.
    threads = os.environ.get("OMP_NUM_THREADS") or str(os.cpu_count() or 1)
    if threads.isdecimal():
        os.environ["OMP_NUM_THREADS"] = str(max(int(threads) // count, 1))
    if command[0].endswith(".py"):
        command = [python, *command]
    elif _is_python(command[0]):
        command = [python, *command[1:]]
    # Later options win: the user's come last.
    launcher = ["--nnodes=1", f"--nproc_per_node={count}", "--max_restarts=0"]
    launcher += ["--master_addr=127.0.0.1", f"--master_port={free_port()}", "--no_python"]
    worker = [python, "-m", "determined.launch.wrap_rank", "RANK", *command]
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(python, [python, "-m", "torch.distributed.run", *launcher, *options, *worker])


def _is_python(program: str) -> bool:
    return program == sys.executable or bool(_PYTHON.fullmatch(os.path.basename(program)))  # noqa: PTH119


def run(command: list[str]) -> None:
    """Become ``command``: a script or module in this interpreter, anything else by exec."""
    if _is_python(command[0]):
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
    count = worker_count(options)
    if command and command[0].partition("=")[0] == "--trial":
        spec = command[0].partition("=")[2] or "".join(command[1:2])
        if count > 1:
            torchrun(count, options, [sys.executable, "-m", "determined.pytorch._run", spec])
        set_environment()
        from determined.pytorch import _run  # torch takes its time

        _run.run(spec)
        return
    if not command or command[0].startswith("-"):
        fail(f"no script to launch; {USAGE}")
    if count > 1:
        torchrun(count, options, command)
    set_environment()
    run(command)


if __name__ == "__main__":
    main(sys.argv[1:])
